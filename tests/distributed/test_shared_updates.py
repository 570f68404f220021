"""Do ranks that share an update's directions make the update of one process, for the bytes that the formula says?"""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gloo_ranks import RankPool, RanksFailedError
from soma_crews import Sent, job_on_ranks, job_that_is_stopped
from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.comm.group import Group
from thinwire.data.corpus import Corpus
from thinwire.runs.layout import JobFolder
from thinwire.soma.config import Difference, Exchange, Implementation, SomaConfig, gradient_parts
from thinwire.soma.expert_job import ExpertJob, initial_state
from thinwire.soma.job_checkpoint import load_state
from thinwire.soma.perturbation_parallel import Crew, bytes_of_update, digest_of, meet, parts_of, sum_of_parts
from thinwire.soma.run import SomaRun
from thinwire.soma.scalar_log import UpdateRecord, ValidationRecord, read
from tiny_runs import CONFIG, JOB, assert_same_end, prepared_data, train_job

DIRECTIONS = 5
"""Neither 2 nor 3 divides it."""


def setting(
    *, ranks: int, exchange: Exchange = "scalars", difference: Difference = "central", accumulation: int = 1
) -> SomaConfig:
    """Its experts train E as well, so that the delta rule's step is part of what must agree."""
    experts = replace(JOB, directions=DIRECTIONS, difference=difference, accumulation=accumulation, decoder="trained")
    return replace(CONFIG, exchange=exchange, experts=experts, launch=replace(CONFIG.launch, ranks=ranks))


def job_of(config: SomaConfig, *, run: Path, data: Path) -> ExpertJob:
    there = SomaRun.open(run)
    return SomaRun(there.folder, there.preset, config).job("0", corpus=Corpus.open(data))


def on_ranks(
    pool: RankPool, config: SomaConfig, *, run: Path, data: Path, folder: Path, how: Any = job_on_ranks, **more: Any
) -> list[Sent]:
    ranks = config.launch.ranks
    return pool.run(how, run, folder, config=config, data=data, name="0", ranks=ranks, **more)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("difference", ["central", "one_sided"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_scalars_make_the_run_of_one_process_bit_for_bit(
    pool: RankPool,
    tiny_run: Path,
    tiny_data: Path,
    tmp_path: Path,
    ranks: int,
    difference: Difference,
    accumulation: int,
) -> None:
    config = setting(ranks=ranks, difference=difference, accumulation=accumulation)
    job, together, alone = job_of(config, run=tiny_run, data=tiny_data), tmp_path / "together", tmp_path / "alone"
    sent = on_ranks(pool, config, run=tiny_run, data=tiny_data, folder=together)
    train_job(job, JobFolder(alone))
    assert_same_end(job, JobFolder(together), JobFolder(alone))
    expected = bytes_of_update(config.experts, num_parameters=job.shape.num_parameters, ranks=ranks, gradient_parts=1)
    signs = {"central": 2, "one_sided": 1}[difference]
    assert expected.losses == (ranks - 1) * 8 * (accumulation * DIRECTIONS * signs + 2 * ranks)
    assert sum(one.losses for one in sent) == JOB.updates * expected.losses
    assert sum(one.gradient for one in sent) == expected.gradient == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_of_gradients_make_the_run_of_one_process_that_adds_in_parts(
    pool: RankPool, tiny_run: Path, tiny_data: Path, tmp_path: Path, ranks: int
) -> None:
    """The paper's form: the same bits as parts added in one process, other bits than a whole sum, 8 M bytes a pair."""
    config = setting(ranks=ranks, exchange="gradients", difference="one_sided", accumulation=2)
    job, whole = job_of(config, run=tiny_run, data=tiny_data), job_of(setting(ranks=1), run=tiny_run, data=tiny_data)
    assert job.gradient_parts == ranks
    assert job.fingerprint != replace(job, gradient_parts=1).fingerprint
    folders = [JobFolder(tmp_path / name) for name in ("together", "alone", "whole")]
    sent = on_ranks(pool, config, run=tiny_run, data=tiny_data, folder=folders[0].root)
    train_job(job, folders[1])
    train_job(replace(job, gradient_parts=1), folders[2])
    assert_same_end(job, *folders[:2])
    parted, added = (load_state(job, folder=folder, update=JOB.updates).body.first for folder in folders[1:])
    assert not torch.equal(parted, added)
    torch.testing.assert_close(parted, added, rtol=0, atol=1e-4 * float(added.abs().max()))
    expected = bytes_of_update(
        config.experts, num_parameters=whole.shape.num_parameters, ranks=ranks, gradient_parts=ranks
    )
    assert expected.gradient == 2 * (ranks - 1) * 4 * job.shape.num_parameters
    assert sum(one.gradient for one in sent) == JOB.updates * expected.gradient
    assert sum(one.losses for one in sent) == JOB.updates * expected.losses


def test_directions_are_divided_evenly_and_in_order() -> None:
    assert parts_of(5, parts=3) == [range(2), range(2, 4), range(4, 5)]
    assert [index for part in parts_of(64, parts=7) for index in part] == list(range(64))
    assert sum_of_parts([torch.tensor([1.0]).double(), torch.tensor([2.0**-30]).double()]).item() == 1.0


@pytest.mark.parametrize("by", [0, 1])
def test_all_stop_after_the_same_update_and_another_number_of_ranks_goes_on(
    pool: RankPool, tiny_run: Path, tiny_data: Path, tmp_path: Path, by: int
) -> None:
    two, folder = setting(ranks=2), JobFolder(tmp_path / "stopped")
    with pytest.raises(RanksFailedError, match="InterruptedRunError") as failed:
        on_ranks(
            pool,
            two,
            run=tiny_run,
            data=tiny_data,
            folder=folder.root,
            how=job_that_is_stopped,
            by=by,
            after=3,
        )
    assert str(failed.value).count("InterruptedRunError: stopped before update 5") == 2
    updates = [one for one in read(folder.scalars).records if isinstance(one, UpdateRecord)]
    assert len(updates) == 4
    on_ranks(pool, setting(ranks=3), run=tiny_run, data=tiny_data, folder=folder.root)
    job, alone = job_of(two, run=tiny_run, data=tiny_data), JobFolder(tmp_path / "alone")
    train_job(job, alone)
    assert_same_end(job, folder, alone)


def test_a_gradient_in_parts_does_not_go_on_in_other_parts(
    pool: RankPool, tiny_run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    two = setting(ranks=2, exchange="gradients")
    on_ranks(pool, two, run=tiny_run, data=tiny_data, folder=tmp_path / "job")
    three = job_of(setting(ranks=3, exchange="gradients"), run=tiny_run, data=tiny_data)
    with pytest.raises(UserError, match="in 2 parts, not 3") as refused:
        train_job(three, JobFolder(tmp_path / "job"))
    assert "--launch.ranks 2" in refused.value.fix


def part_ways(group: Group, run: Path, *, config: SomaConfig, data: Path) -> None:
    """Rank 1 holds another weight."""
    state = initial_state(job_of(config, run=run, data=data))
    if group.rank == 1:
        state.expert.theta[7] += 1e-6
    Crew(group, should_stop=lambda: False).agree(state, loss=1.0 if group.rank == 0 else None)


def test_ranks_with_other_weights_are_named(pool: RankPool, tiny_run: Path, tiny_data: Path) -> None:
    with pytest.raises(RanksFailedError) as failed:
        pool.run(part_ways, tiny_run, config=setting(ranks=3), data=tiny_data, ranks=3)
    said = "RunFailedError: after update 0 the weights of rank 1 are not those of rank 0"
    assert str(failed.value).count(said) == 3


def differ(group: Group, run: Path, folder: Path, *, config: SomaConfig, data: Path) -> None:
    own = config if group.rank == 0 else replace(config, experts=replace(config.experts, learning_rate=0.5))
    job_on_ranks(group, run, folder, config=own, data=data, name="0")


def test_ranks_with_other_settings_are_refused(pool: RankPool, tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(RanksFailedError) as failed:
        pool.run(differ, tiny_run, tmp_path / "job", config=setting(ranks=2), data=tiny_data, ranks=2)
    assert str(failed.value).count("UserError: rank 1 was started with other settings or text than rank 0") == 2
    assert "settings.experts.learning_rate" in str(failed.value)
    assert not (tmp_path / "job").exists()


def differ_in_text(group: Group, run: Path, folder: Path, *, config: SomaConfig, data: Path, other: Path) -> None:
    own = data if group.rank == 0 else other
    job_on_ranks(group, run, folder, config=config, data=own, name="0")


def differ_in_kernels(group: Group, run: Path, folder: Path, *, config: SomaConfig, data: Path) -> None:
    implementation: Implementation = "numba" if group.rank == 0 else "reference"
    own = replace(config, launch=replace(config.launch, implementation=implementation))
    job_on_ranks(group, run, folder, config=own, data=data, name="0")


def test_ranks_with_other_text_or_kernels_are_refused(
    pool: RankPool, tiny_run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    other = prepared_data(tmp_path / "other", documents=11)
    with pytest.raises(RanksFailedError) as failed:
        pool.run(
            differ_in_text, tiny_run, tmp_path / "job", config=setting(ranks=2), data=tiny_data, other=other, ranks=2
        )
    assert str(failed.value).count("rank 1 was started with other settings or text than rank 0:\n    data: ") == 2
    with pytest.raises(RanksFailedError) as failed:
        pool.run(differ_in_kernels, tiny_run, tmp_path / "job", config=setting(ranks=2), data=tiny_data, ranks=2)
    assert str(failed.value).count("implementation: ") == 2


def shared_seconds(group: Group) -> float:
    """Rank r spent r + 1 seconds."""
    crew = Crew(group, should_stop=lambda: False)
    own = [torch.zeros(len(crew.own(4)), 1, dtype=torch.float64)]
    return crew.share(own, directions=4, update=1, device_seconds=float(group.rank + 1)).device_seconds


def test_device_seconds_are_those_of_all_ranks(pool: RankPool) -> None:
    assert pool.run(shared_seconds, ranks=3) == [6.0, 6.0, 6.0]


def test_the_digest_is_of_weights_and_moments(tiny_run: Path, tiny_data: Path) -> None:
    state = initial_state(job_of(setting(ranks=2), run=tiny_run, data=tiny_data))
    first = digest_of(state)
    assert digest_of(replace(state, device_seconds=9.0)) == first
    for tensor in (*state.expert, *state.body[:2], *state.decoder[:2]):
        before = tensor.flatten()[0].clone()
        tensor.view(-1)[0] += 1.0
        assert digest_of(state) != first
        tensor.view(-1)[0] = before
    assert digest_of(state) == first


def met(store: torch.distributed.Store, *, seconds: float, should_stop: bool) -> None:
    """Rank 0 of two, the other of which does not come."""
    with meet(store, rank=0, size=2, name="crew", timeout_seconds=seconds, should_stop=lambda: should_stop):
        pytest.fail("there is nobody to meet")


def test_a_rank_that_waits_for_another_can_be_stopped() -> None:
    store = torch.distributed.HashStore()
    with pytest.raises(InterruptedRunError, match="before the ranks had met"):
        met(store, seconds=60.0, should_stop=True)
    with pytest.raises(InterruptedRunError):  # one that comes later learns that nobody needs to
        met(store, seconds=60.0, should_stop=False)
    with pytest.raises(RunFailedError, match=r"rank 1 of 2 did not come within 0\.1 s"):
        met(torch.distributed.HashStore(), seconds=0.1, should_stop=False)


def test_what_was_sent_stands_beside_the_log(pool: RankPool, tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    config, folder = setting(ranks=2), JobFolder(tmp_path / "job")
    on_ranks(pool, config, run=tiny_run, data=tiny_data, folder=folder.root)
    lines = [json.loads(line) for line in folder.exchange.read_text().splitlines()]
    validations = [one.update for one in read(folder.scalars).records if isinstance(one, ValidationRecord)]
    assert [line["update"] for line in lines] == validations[1:]
    assert [line["ranks"] for line in lines] == [2, 2, 2]
    weights = sum(tensor.numel() for tensor in (*initial_state(job_of(config, run=tiny_run, data=tiny_data)).expert,))
    assert lines[0]["wire_bytes"]["job"] > 4 * 4 * weights  # start, weights and both moments, in float32
    sent = np.diff([line["wire_bytes"]["losses"] for line in lines])
    each = bytes_of_update(config.experts, num_parameters=1, ranks=2, gradient_parts=gradient_parts(config)).losses
    assert sent.tolist() == [each * (b - a) for a, b in itertools.pairwise(validations[1:])]
