"""Does training on several ranks follow one process, and do drifted replicas become one model?"""

from dataclasses import replace

import pytest
import torch
import training_cases
from training_cases import CODEC, SYNC, Trained, train

from gloo_ranks import RankPool
from thinwire.comm.group import alone
from thinwire.subspaces.config import CodecConfig, SubspacesConfig, SyncConfig

PHASES = ["warm-up"] * 6 + ["compressed"] * 9 + ["folded"] * 5


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    "codec",
    [CODEC, replace(CODEC, theta_source="chunk", basis="activation"), replace(CODEC, theta_source="random")],
    ids=["previous chunk", "chunk, basis of activations", "random"],
)
def test_summed_gradients_train_like_one_process(codec: CodecConfig, pool: RankPool) -> None:
    """20 updates through three phases; every rank holds the same bits."""
    settings = training_cases.config(codec=codec)
    one = train(alone(), settings)
    assert one.phases == PHASES
    assert one.losses[-1] < one.losses[6] < 0.9 * one.losses[0]
    for ranks in (2, 3):
        found: list[Trained] = pool.run(train, settings, ranks=ranks)
        for step in (1, 6, 7, 15, 16, 20):
            assert farthest(found[0].weights[step], one.weights[step]) < 1e-9
            assert all(farthest(each.weights[step], found[0].weights[step]) == 0.0 for each in found)
        losses = [sum(each) for each in zip(*(each.losses for each in found), strict=True)]
        assert losses == pytest.approx(one.losses, rel=1e-9)
        assert {each.validation for each in found} == {found[0].validation}
        assert found[0].validation == pytest.approx(one.validation, rel=1e-9)


def test_the_fold_makes_no_jump() -> None:
    """On held-out text, of a model whose thetas have been learned."""
    for source in ("previous_chunk", "chunk"):
        found = train(alone(), training_cases.config(codec=replace(CODEC, theta_source=source)))
        before, after = found.around_change["folded"]
        assert before != after
        assert abs(after - before) < 0.01


def averaged(**changes: object) -> SubspacesConfig:
    return training_cases.config(sync=replace(SYNC, every=5, fragments=2, **changes))


@pytest.mark.parametrize(
    "settings",
    [averaged(), averaged(delay=2), averaged(delay=0, rotate=False), averaged(outer="nesterov")],
    ids=["delay 1", "delay 2", "at once", "outer step"],
)
def test_averaged_replicas_drift_and_become_one_model(settings: SubspacesConfig, pool: RankPool) -> None:
    found, again = (pool.run(train, settings, ranks=3) for _ in range(2))
    assert sorted(found[0].weights) == [6, 15, 20]
    for step in found[0].weights:
        assert all(farthest(each.weights[step], found[0].weights[step]) == 0.0 for each in found)
    assert farthest(found[0].drifted, found[1].drifted) > 1e-6
    for one, other in zip(found, again, strict=True):
        assert one.losses == other.losses
        assert all(farthest(one.weights[step], other.weights[step]) == 0.0 for step in one.weights)
    assert sum(each.losses[-1] for each in found) < 0.8 * sum(each.losses[0] for each in found)


def test_ranks_move_over_the_chunks(pool: RankPool) -> None:
    """Where they do not, a run is another one."""
    moving, resting = (pool.run(train, averaged(rotate=rotate), ranks=2)[0] for rotate in (True, False))
    assert moving.losses[:6] == resting.losses[:6]
    assert moving.losses[10:] != resting.losses[10:]


def test_an_outer_step_of_rate_one_is_plain_averaging(pool: RankPool) -> None:
    plain = averaged()
    outer = replace(
        plain,
        sync=SyncConfig(
            every=5, fragments=2, wire="float64", outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0
        ),
    )
    one, other = (pool.run(train, settings, ranks=2)[0] for settings in (plain, outer))
    assert farthest(one.weights[20], other.weights[20]) < 1e-10
