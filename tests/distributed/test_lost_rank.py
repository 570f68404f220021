"""A rank is killed, or hangs: the others notice, become one model again, share its chunks and go on."""

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from disturbed_runs import AVERAGED, EVERY_STEP, JUMP_AVERAGED, JUMP_SUMMED, events, losses, records, with_ranks

from forked_runs import Ended, ForkServer, Plan, all_ended, digests, wait_for
from thinwire.subspaces.config import SubspacesConfig

SUMMED = with_ranks(EVERY_STEP, 4)
DRIFTING = with_ranks(replace(AVERAGED, sync=replace(AVERAGED.sync, outer="none")), 4)


@pytest.fixture(scope="module")
def alone(forks: ForkServer, tiny_data: Path, runs_folder: Path) -> dict[int, dict[int, float]]:
    """Losses of undisturbed runs by ``sync.every``."""
    found = {}
    for config in (SUMMED, DRIFTING):
        out = runs_folder / f"four-{config.sync.every}"
        assert forks.train(config, data=tiny_data, out=out).status == 0
        assert len(set(digests(out).values())) == 1
        found[config.sync.every] = losses(out)
    return found


def assert_no_jump(out: Path, alone: dict[int, float], *, bound: float) -> None:
    here = losses(out)
    assert max(here) == 16
    assert len(here) >= 12, "records of at most a few updates are lost with a rank"
    jump = max(abs(loss - alone[step]) for step, loss in here.items())
    assert jump < bound


class Lost:
    """Trains with plans; looks at what is always true of a run that lost a rank and ended."""

    def __init__(self, forks: ForkServer, data: Path, folder: Path) -> None:
        self.forks, self.data, self.folder = forks, data, folder

    def train(self, config: SubspacesConfig, *plans: Plan, name: str) -> tuple[Ended, Path]:
        out = self.folder / name
        launcher = self.forks.start(config, data=self.data, out=out, plans=plans)
        ended = self.forks.finish(launcher)
        assert all_ended(launcher), "orphans"
        assert ended.status == 0, ended
        assert len(set(digests(out).values())) == 1, "the ranks ended with different weights"
        return ended, out


@pytest.fixture
def lost(forks: ForkServer, tiny_data: Path, runs_folder: Path) -> Lost:
    return Lost(forks, tiny_data, runs_folder)


@pytest.mark.parametrize("member", [0, 2])
def test_three_go_on_where_gradients_are_summed(lost: Lost, alone: dict[int, dict[int, float]], member: int) -> None:
    ended, out = lost.train(SUMMED, Plan(member, "backward", 7, "kill"), name=f"lost-{member}")
    assert f"rank {member} was killed by signal 9" in ended.said
    assert f"rank {member} closed the connection; going on with 3 ranks from update 6" in ended.said
    assert_no_jump(out, alone[1], bound=JUMP_SUMMED)
    (event,) = [record for record in records(out, "event") if record["what"] == "lost rank"]
    assert (event["members"], event["ranks"], event["step"]) == ([member], 3, 6)
    assert {r["step"]: r["ranks"] for r in records(out, "step")}[16] == 3
    assert len(digests(out)) == 3


def test_three_go_on_where_weights_are_averaged(lost: Lost, alone: dict[int, dict[int, float]]) -> None:
    _, out = lost.train(DRIFTING, Plan(0, "step", 10, "kill"), name="lost-drifting")
    assert_no_jump(out, alone[DRIFTING.sync.every], bound=JUMP_AVERAGED)
    assert events(out).count("lost rank") == 1


def test_two_lost_at_once_and_one_more_at_the_meeting(lost: Lost, alone: dict[int, dict[int, float]]) -> None:
    plans = (Plan(1, "step", 8, "kill"), Plan(3, "step", 8, "kill"), Plan(0, "meet again", 0, "kill"))
    _, out = lost.train(SUMMED, *plans, name="lost-three")
    assert_no_jump(out, alone[1], bound=JUMP_SUMMED)
    gone = [member for record in records(out, "event") for member in record.get("members", [])]
    assert sorted(gone) == [0, 1, 3]
    assert records(out, "step")[-1]["ranks"] == 1


def test_checkpoint_is_written_by_the_survivors(lost: Lost, alone: dict[int, dict[int, float]]) -> None:
    """The first rank dies between the ranks' parts and the commit, at the last update too."""
    _, out = lost.train(SUMMED, Plan(0, "before commit", 16, "kill"), name="lost-commit")
    assert_no_jump(out, alone[1], bound=JUMP_SUMMED)
    assert (out / "checkpoints" / "00000016.json").is_file()


@pytest.mark.parametrize("config", [SUMMED, DRIFTING], ids=["summed", "averaged"])
def test_replacement_joins(lost: Lost, alone: dict[int, dict[int, float]], config: SubspacesConfig) -> None:
    config = with_ranks(config, 4, restart_lost=True)
    plans = (Plan(1, "step", 6, "kill"), Plan(2, "step", 1, "slow"))
    ended, out = lost.train(config, *plans, name=f"joined-{config.sync.every}")
    bound = JUMP_SUMMED if config.sync.every == 1 else JUMP_AVERAGED
    assert_no_jump(out, alone[config.sync.every], bound=bound)
    assert events(out).count("joined") == 1
    assert "rank 1 joined at update" in ended.said
    assert records(out, "step")[-1]["ranks"] == 4
    assert len(digests(out)) == 4


def test_rank_that_hangs_is_named_and_replaced(lost: Lost, alone: dict[int, dict[int, float]]) -> None:
    config = with_ranks(SUMMED, 4, restart_lost=True, timeout_seconds=2.0)
    plans = (Plan(2, "step", 7, "stop"), Plan(1, "step", 1, "slow"))
    ended, out = lost.train(config, *plans, name="hangs")
    assert "rank 2 answered nothing for 2 s; going on with 3 ranks" in ended.said
    assert_no_jump(out, alone[1], bound=JUMP_SUMMED)
    assert records(out, "step")[-1]["ranks"] == 4


@pytest.mark.parametrize("restarts", [True, False])
def test_all_dead(forks: ForkServer, tiny_data: Path, runs_folder: Path, restarts: bool) -> None:
    config = with_ranks(SUMMED, 4, restart_lost=restarts)
    plans = tuple(Plan(member, "step", 7, "kill") for member in range(4))
    launcher = forks.start(config, data=tiny_data, out=runs_folder / f"dead-{restarts}", plans=plans)
    ended = forks.finish(launcher)
    assert ended.status == 1
    assert "all ranks are lost" in ended.complaint
    assert "give the same command again; it goes on from the last checkpoint" in ended.complaint
    assert all_ended(launcher)


def test_orphans_end_when_only_the_launcher_is_killed(forks: ForkServer, tiny_data: Path, runs_folder: Path) -> None:
    out = runs_folder / "orphans"
    config = with_ranks(SUMMED, 2)
    launcher = forks.start(config, data=tiny_data, out=out, plans=(Plan(1, "step", 1, "slow"),))
    wait_for(lambda: len(records(out, "step")) > 1)
    os.kill(launcher, signal.SIGKILL)
    assert forks.finish(launcher).status == -9
    assert all_ended(launcher)
    assert forks.train(config, data=tiny_data, out=out).status == 0


def by_hand(forks: ForkServer, config: SubspacesConfig, data: Path, out: Path, *, plans: dict[int, Plan]) -> list[int]:
    """Three ranks without a launcher; the first serves the store, and takes its time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        forks.start_by_hand(
            config,
            data=data,
            out=out,
            environment=place | {"RANK": str(rank)},
            plans=(plans[rank],) if rank in plans else (),
        )
        for rank in range(3)
    ]


def test_stopped_rank_comes_back_by_itself(
    forks: ForkServer, tiny_data: Path, runs_folder: Path, alone: dict[int, dict[int, float]]
) -> None:
    """Ranks without a launcher: the one that was left behind joins again when it wakes up."""
    out, config = runs_folder / "by-hand", with_ranks(SUMMED, 3, timeout_seconds=2.0)
    plans = {0: Plan(0, "step", 1, "slow"), 2: Plan(2, "step", 7, "stop")}
    ranks = by_hand(forks, config, tiny_data, out, plans=plans)
    wait_for(lambda: "lost rank" in events(out))
    os.kill(ranks[2], signal.SIGCONT)
    ended = [forks.finish(rank) for rank in ranks]
    assert [one.status for one in ended] == [0, 0, 0], ended
    assert "rank 2 answered nothing for 2 s" in ended[0].said
    assert events(out).count("joined") == 1
    assert records(out, "step")[-1]["ranks"] == 3
    assert len(set(digests(out).values())) == 1
    assert_no_jump(out, alone[1], bound=JUMP_SUMMED)


def test_ranks_end_when_the_store_dies_with_the_first(forks: ForkServer, tiny_data: Path, runs_folder: Path) -> None:
    out, config = runs_folder / "no-store", with_ranks(SUMMED, 3, timeout_seconds=2.0)
    ranks = by_hand(forks, config, tiny_data, out, plans={0: Plan(0, "step", 10, "kill")})
    first, *others = [forks.finish(rank) for rank in ranks]
    assert first.status == -signal.SIGKILL
    for ended in others:
        assert ended.status == 1, ended
        assert "the place where the ranks meet is gone" in ended.complaint
        assert "give the same command again; it goes on from the last checkpoint" in ended.complaint
    ended_well = [forks.finish(rank) for rank in by_hand(forks, config, tiny_data, out, plans={})]
    assert [one.status for one in ended_well] == [0, 0, 0], ended_well
    assert "resumed" in events(out)
