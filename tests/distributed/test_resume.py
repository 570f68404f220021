"""Killed at any moment, or asked to stop, and started again: the same bits as a run that was left alone."""

from pathlib import Path

import pytest
from disturbed_runs import (
    AVERAGED,
    EVERY_STEP,
    JUMP_AVERAGED,
    JUMP_SUMMED,
    events,
    losses,
    records,
    story,
    tensors,
    with_ranks,
)

from forked_runs import ForkServer, Moment, Plan, all_ended
from thinwire.subspaces import saving
from thinwire.subspaces.config import SubspacesConfig

CONFIGS = {"summed every step": EVERY_STEP, "averaged, nesterov": AVERAGED}
KILLS: list[tuple[int, Moment, int]] = [
    (0, "step", 1),
    (1, "backward", 3),
    (1, "rank part written", 4),
    (0, "before commit", 4),
    (0, "committed", 4),
    (0, "plug in", 5),
    (1, "backward", 7),
    (0, "before commit", 12),
    (0, "backward", 16),
]
"""In this order, in one run; each time all processes, the launcher too."""
STOPS = (2, 6, 13)


@pytest.fixture(scope="module", params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> SubspacesConfig:
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def undisturbed(config: SubspacesConfig, forks: ForkServer, tiny_data: Path, runs_folder: Path) -> Path:
    out = runs_folder / f"alone-{config.sync.every}"
    assert forks.train(config, data=tiny_data, out=out).status == 0
    return out


def test_killed_run_goes_on_with_the_same_bits(
    config: SubspacesConfig, undisturbed: Path, forks: ForkServer, tiny_data: Path, runs_folder: Path
) -> None:
    out = runs_folder / f"killed-{config.sync.every}"
    kills = KILLS if config.sync.every == 1 else [kill for kill in KILLS if kill[1] == "backward"]
    for member, moment, step in kills:
        plan = Plan(member, moment, step, "kill all")
        launcher = forks.start(config, data=tiny_data, out=out, plans=(plan,))
        assert forks.finish(launcher).status == -9, plan
        assert all_ended(launcher)
        committed = 4 * ((step - 1) // 4) if moment != "committed" else step
        assert saving.last_step(out) == committed, plan
    assert forks.train(config, data=tiny_data, out=out).status == 0
    assert tensors(out) == tensors(undisturbed)
    assert story(out) == story(undisturbed)
    assert "resumed" in events(out)


def test_interrupted_run_loses_nothing_and_goes_on_with_the_same_bits(
    config: SubspacesConfig, undisturbed: Path, forks: ForkServer, tiny_data: Path, runs_folder: Path
) -> None:
    """Also between two averages of the weights, with fragments on their way."""
    out = runs_folder / f"stopped-{config.sync.every}"
    for step in STOPS:
        launcher = forks.start(config, data=tiny_data, out=out, plans=(Plan(1, "step", step, "interrupt"),))
        assert forks.finish(launcher).status == 130
        assert all_ended(launcher)
        assert saving.last_step(out) >= step
    assert forks.train(config, data=tiny_data, out=out).status == 0
    assert tensors(out) == tensors(undisturbed)
    assert story(out) == story(undisturbed)


def test_checkpoint_of_two_ranks_goes_on_with_three(
    config: SubspacesConfig, undisturbed: Path, forks: ForkServer, tiny_data: Path, runs_folder: Path
) -> None:
    out = runs_folder / f"more-{config.sync.every}"
    stopped = forks.train(config, data=tiny_data, out=out, plans=(Plan(1, "step", 9, "kill all"),))
    assert stopped.status == -9
    ended = forks.train(with_ranks(config, 3), data=tiny_data, out=out)
    assert ended.status == 0, ended
    assert "was made by 2 ranks; its chunks now lie on 3" in ended.said
    assert "rank 2 takes those of rank 0" in ended.said
    assert events(out).count("moments of another rank") == 1
    alone = losses(undisturbed)
    for record in records(out, "step"):
        assert record["ranks"] == (2 if record["step"] <= 8 else 3)
        jump = abs(record["loss_nats_per_token"] - alone[record["step"]])
        assert jump < (JUMP_SUMMED if config.sync.every == 1 else JUMP_AVERAGED)
