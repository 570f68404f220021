"""Do arms of a comparison share what they say they share, go on where they stopped, and end where jobs end?"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from thinwire.base.progress import Voice
from thinwire.reproduction import arms
from thinwire.reproduction.arms import (
    Arm,
    Stage,
    cold_start,
    end_of,
    prepared_run,
    random_start,
    score_experts,
    train_arm,
    update_operations,
    warm_start,
)
from thinwire.reproduction.soma_allocations import fewer_forwards
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.expert_job import byte_forwards_per_update
from thinwire.soma.run import SEED_NAME, SomaRun
from tiny_runs import CONFIG, JOB


def at_work(data: Path, out: Path) -> tuple[Workplace, SomaRun]:
    place = Workplace(scale="smoke", out=out, item="toy", data=data, voice=Voice(), threads=1)
    return place, prepared_run(place, "base", CONFIG)


def test_starts_are_the_seed_a_random_body_or_all_random(tiny_data: Path, tmp_path: Path) -> None:
    _, run = at_work(tiny_data, tmp_path)
    seed = run.final_expert(SEED_NAME)
    warm, cold, unlearned = warm_start(run), cold_start(run), random_start(run)
    assert all(len(start.experts) == 2 and start.moments is None for start in (warm, cold, unlearned))
    assert torch.equal(warm.experts[1].theta, seed.theta)
    assert torch.equal(cold.experts[1].decoder, seed.decoder)
    assert torch.equal(cold.experts[0].theta, unlearned.experts[0].theta)
    assert not torch.equal(cold.experts[0].theta, seed.theta)
    assert not torch.equal(unlearned.experts[0].decoder, seed.decoder)


def test_stages_are_scored_where_training_in_one_go_passes(tiny_data: Path, tmp_path: Path) -> None:
    place, run = at_work(tiny_data, tmp_path)
    start, arm = warm_start(run), Arm("one", JOB, seed=5)
    stages = train_arm(place, run, arm, start=start, stages=(0, 2, 4))
    straight = train_arm(place, run, replace(arm, name="two"), start=start, stages=(4,))
    assert [stage.updates for stage in stages] == [0, 2, 4]
    assert stages[0].loss == pytest.approx(score_experts(place, run, start.experts), rel=1e-12)
    assert stages[2].loss == straight[0].loss
    assert stages[2].byte_forwards == 4 * 2 * byte_forwards_per_update(JOB)
    assert stages[2].operations == 4 * update_operations(run.shape, JOB, num_experts=2)
    assert 0 == stages[0].device_seconds < stages[1].device_seconds < stages[2].device_seconds


def test_a_finished_arm_is_kept_and_a_lost_score_made_again(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, run = at_work(tiny_data, tmp_path)
    start, arm = warm_start(run), Arm("one", JOB, seed=5)
    stages = train_arm(place, run, arm, start=start, stages=(2, 4, 6, 8))
    (place.folder / "parts" / "one-000002.json").unlink()
    again = train_arm(place, run, arm, start=start, stages=(2,))
    assert again[0].loss == stages[0].loss

    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(arms, "train_together", never)
    assert train_arm(place, run, arm, start=start, stages=(2, 4, 6, 8))[1:] == stages[1:]


def test_another_seed_or_rule_is_another_arm_from_one_start(tiny_data: Path, tmp_path: Path) -> None:
    place, run = at_work(tiny_data, tmp_path)
    start = end_of(place, run, Arm("grown", JOB, seed=1), start=warm_start(run), updates=3)
    assert start.moments is not None
    assert start.moments[0].updates == 3
    found = {
        name: train_arm(place, run, Arm(name, JOB, seed=seed, is_summed=summed), start=start, stages=(0, 3))
        for name, seed, summed in (("a", 1, False), ("b", 2, False), ("c", 1, True))
    }
    assert len({stages[0].loss for stages in found.values()}) == 1
    assert len({stages[1].loss for stages in found.values()}) == 3


def stage(loss: float, forwards: int) -> Stage:
    return Stage(0, loss, forwards, 0, 0.0)


def test_fewer_forwards_are_read_where_the_curve_first_passes_the_other_ones_end() -> None:
    papers = [stage(3.0, 0), stage(2.5, 100), stage(2.2, 200)]
    ours = [stage(3.0, 0), stage(2.4, 50), stage(2.6, 80), stage(2.0, 100)]
    assert fewer_forwards(papers, ours) == pytest.approx(200 / 75)
    assert fewer_forwards(papers, ours[:2]) is None
    assert fewer_forwards([stage(3.0, 0), stage(3.1, 100)], ours) is None


def test_a_base_without_a_seed_run_trains_from_given_weights(tiny_data: Path, tmp_path: Path) -> None:
    place, run = at_work(tiny_data, tmp_path)
    clusters = replace(CONFIG.clusters, partition="random")
    bare = arms.clustered_run(place, "bare", replace(CONFIG, clusters=clusters))
    stages = train_arm(place, bare, Arm("one", JOB, seed=5), start=warm_start(run), stages=(0, 2))
    assert stages[1].loss != stages[0].loss
    assert bare.last_update(SEED_NAME) == 0
