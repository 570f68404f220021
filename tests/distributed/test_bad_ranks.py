"""Ranks that do not fit together, a run that cannot go on, a loss that is not finite: said, and nothing lost."""

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from disturbed_runs import EVERY_STEP, events, records, tensors, with_ranks

from forked_runs import Ended, ForkServer, Plan
from thinwire.base.errors import ConfigError
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.subspaces import saving
from thinwire.subspaces.config import SubspacesConfig, SyncConfig, check
from tiny_runs import write_texts

PAIR = with_ranks(EVERY_STEP, 2, meeting_seconds=30.0)


@pytest.fixture
def port() -> int:
    """Free when the test begins."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def other_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    texts = write_texts(folder / "texts", documents=11)
    prepare([str(texts)], out=folder / "data", options=PrepareOptions(valid_fraction=0.1, test_fraction=0.2))
    return folder / "data"


def place(rank: int, *, port: int, size: int = 2) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def assert_said(ended: Ended, *words: str, status: int = 2) -> None:
    assert ended.status == status, ended
    for word in (*words, "fix:") if status == 2 else words:
        assert word in ended.complaint
    assert "Traceback" not in ended.complaint


def pair_by_hand(
    forks: ForkServer, configs: list[SubspacesConfig], data: list[Path], folder: Path, *, port: int
) -> list[Ended]:
    """Two ranks with run folders of their own, as on two machines."""
    ranks = [
        forks.start_by_hand(
            configs[rank], data=data[rank], out=folder / f"machine-{rank}", environment=place(rank, port=port)
        )
        for rank in range(2)
    ]
    return [forks.finish(rank) for rank in ranks]


def test_two_machines_with_folders_of_their_own(forks: ForkServer, tiny_data: Path, tmp_path: Path, port: int) -> None:
    """The second time they find a finished run, and say so by ending well."""
    for _ in ("train", "find a finished run"):
        both = pair_by_hand(forks, [PAIR, PAIR], [tiny_data, tiny_data], tmp_path, port=port)
        assert [one.status for one in both] == [0, 0], both
    assert (tmp_path / "machine-0" / "results" / "test.json").is_file()
    assert saving.last_step(tmp_path / "machine-0") == 16
    assert saving.last_step(tmp_path / "machine-1") == 0


def test_ranks_with_different_settings(forks: ForkServer, tiny_data: Path, tmp_path: Path, port: int) -> None:
    other = replace(PAIR, optimizer=replace(PAIR.optimizer, learning_rate=0.5))
    for ended in pair_by_hand(forks, [PAIR, other], [tiny_data, tiny_data], tmp_path, port=port):
        assert_said(ended, "rank 1 differs from rank 0", "config.optimizer.learning_rate: 0.01 there, 0.5 now")


def test_ranks_with_different_data(
    forks: ForkServer, tiny_data: Path, other_data: Path, tmp_path: Path, port: int
) -> None:
    for ended in pair_by_hand(forks, [PAIR, PAIR], [tiny_data, other_data], tmp_path, port=port):
        assert_said(ended, "rank 1 differs from rank 0", "data: ")


def test_another_number_of_ranks_was_started(forks: ForkServer, tiny_data: Path, tmp_path: Path, port: int) -> None:
    rank = forks.start_by_hand(PAIR, data=tiny_data, out=tmp_path / "a", environment=place(0, port=port, size=3))
    assert_said(forks.finish(rank), "3 ranks were started, the configuration has 2", "WORLD_SIZE")


def test_port_is_taken(forks: ForkServer, tiny_data: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        rank = forks.start_by_hand(PAIR, data=tiny_data, out=tmp_path / "a", environment=place(0, port=number))
        assert_said(forks.finish(rank), "cannot be served", f"127.0.0.1:{number}", "choose a free port")


def test_rank_that_does_not_come_is_named(forks: ForkServer, tiny_data: Path, tmp_path: Path, port: int) -> None:
    config = with_ranks(PAIR, 2, meeting_seconds=1.0)
    first = forks.start_by_hand(config, data=tiny_data, out=tmp_path / "a", environment=place(0, port=port))
    assert_said(forks.finish(first), "rank 1 of 2 did not come to the meeting within 1 s", status=1)
    second = forks.start_by_hand(config, data=tiny_data, out=tmp_path / "b", environment=place(1, port=port))
    assert_said(forks.finish(second), "nobody serves the store where the ranks meet", f"127.0.0.1:{port}")


def test_loss_that_is_not_finite(forks: ForkServer, tiny_data: Path, tmp_path: Path) -> None:
    """The weights before the update are kept; giving the command again says the same."""
    out = tmp_path / "run"
    config = replace(PAIR, optimizer=replace(PAIR.optimizer, learning_rate=1e30, clip_norm=0.0))
    for _ in range(2):
        ended = forks.train(config, data=tiny_data, out=out)
        kept = saving.last_step(out)
        assert_said(
            ended,
            f"of update {kept + 1} is not finite",
            f"the weights after update {kept} are kept",
            "--optimizer.learning-rate",
            status=1,
        )
    assert 0 < kept < 16
    found = records(out, "step")
    assert [record["step"] for record in found] == list(range(1, kept + 2))
    numbers = [(record["loss_nats_per_token"], record["gradient_norm"]) for record in found]
    assert None in numbers[-1]
    assert not any(None in one for one in numbers[:-1])
    assert "not finite" in events(out)


def test_run_that_cannot_go_on(forks: ForkServer, tiny_data: Path, other_data: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "run", shutil.copytree(tiny_data, tmp_path / "data")
    stopped = forks.train(PAIR, data=data, out=out, plans=(Plan(0, "step", 10, "kill all"),))
    assert stopped.status == -9
    before = {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()}

    assert_said(forks.train(replace(PAIR, seed=4), data=data, out=out), "another configuration", "seed: 3 there, 4 now")
    shutil.rmtree(data)
    assert_said(forks.train(PAIR, data=data, out=out), "no such data folder", str(data))
    shutil.copytree(other_data, data)
    assert_said(forks.train(PAIR, data=data, out=out), "a run on other data")
    shutil.rmtree(data)
    shutil.copytree(tiny_data, data)

    part = out / "ranks" / "001" / "00000008.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    assert_said(forks.train(PAIR, data=data, out=out), "a checkpoint is truncated or altered", str(part))
    part.write_bytes(whole)
    (out / "ranks").rename(tmp_path / "ranks")
    assert_said(forks.train(PAIR, data=data, out=out), "no rank has its part of the checkpoint of update 8")
    shutil.rmtree(out / "ranks")
    (tmp_path / "ranks").rename(out / "ranks")

    assert {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()} == before
    assert forks.train(PAIR, data=data, out=out).status == 0


DAMAGED = 12
"""The newest checkpoint of a run that was killed in update 14; the one before is of update 8."""


@pytest.fixture(scope="module", params=[1, 4], ids=["summed", "averaged"])
def damaged(
    request: pytest.FixtureRequest, forks: ForkServer, tiny_data: Path, runs_folder: Path
) -> tuple[SubspacesConfig, Path, dict[str, bytes]]:
    """A run in which rank 1's part of the newest checkpoint is cut short; and what one that was left alone ends as."""
    every = request.param
    sync = SyncConfig(every=every, fragments=2 if every > 1 else 1)
    config = replace(PAIR, sync=sync, phases=replace(PAIR.phases, unplug="never"))
    alone, out = runs_folder / f"undamaged-{every}", runs_folder / f"damaged-{every}"
    assert forks.train(config, data=tiny_data, out=alone).status == 0
    assert forks.train(config, data=tiny_data, out=out, plans=(Plan(0, "step", 14, "kill all"),)).status == -9
    assert saving.last_step(out) == DAMAGED
    part = out / "ranks" / "001" / f"{DAMAGED:08d}.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    return config, out, tensors(alone)


def remove(folder: Path, step: int) -> None:
    for path in folder.glob(f"{step:08d}.*"):
        path.unlink()


def test_a_damaged_part_is_refused_with_what_can_be_done(damaged, forks: ForkServer, tiny_data: Path) -> None:
    config, out, _ = damaged
    ended = forks.train(config, data=tiny_data, out=out)
    assert_said(ended, "a checkpoint is truncated or altered", str(out / "ranks" / "001" / "00000012.safetensors"))
    assert "remove 00000012.json and 00000012.safetensors in the folder 'checkpoints'" in ended.complaint
    assert "all ranks go on from the checkpoint before" in ended.complaint
    assert "in 'ranks/001': this rank then goes on from update 12 with the moments of another one" in ended.complaint


def test_without_the_damaged_checkpoint_the_one_before_is_gone_on_from(
    damaged, forks: ForkServer, tiny_data: Path, tmp_path: Path
) -> None:
    config, out, alone = damaged
    run = shutil.copytree(out, tmp_path / "run")
    remove(run / "checkpoints", DAMAGED)
    ended = forks.train(config, data=tiny_data, out=run)
    assert ended.status == 0, ended
    assert [record["step"] for record in records(run, "event") if record["what"] == "resumed"] == [8]
    assert "moments" not in ended.said
    assert "moments of another rank" not in events(run)
    assert tensors(run) == alone


def test_who_takes_anothers_moments_says_so(damaged, forks: ForkServer, tiny_data: Path, tmp_path: Path) -> None:
    """Where gradients are summed they are the same numbers, and the run ends with the same bits; else with others."""
    config, out, alone = damaged
    run = shutil.copytree(out, tmp_path / "run")
    remove(run / "ranks" / "001", DAMAGED)
    ended = forks.train(config, data=tiny_data, out=run)
    assert ended.status == 0, ended
    assert "moments of the optimizer at update 12 are missing: rank 1 takes those of rank 0" in ended.said
    (event,) = [record for record in records(run, "event") if record["what"] == "moments of another rank"]
    assert (event["step"], event["members"], event["taken_from"]) == (DAMAGED, [1], [0])
    if config.sync.every == 1:
        assert "they are the same numbers" in ended.said
        assert tensors(run) == alone
    else:
        assert "the results will differ from those of an undisturbed run" in ended.said
        assert tensors(run) != alone


@pytest.mark.parametrize("steps", [(12,), (8, 12)], ids=["of one checkpoint", "of all"])
def test_parts_that_all_are_gone(
    damaged, forks: ForkServer, tiny_data: Path, tmp_path: Path, steps: tuple[int, ...]
) -> None:
    config, out, _ = damaged
    run = shutil.copytree(out, tmp_path / "run")
    for step in steps:
        for rank in ("000", "001"):
            remove(run / "ranks" / rank, step)
    ended = forks.train(config, data=tiny_data, out=run)
    assert_said(ended, "no rank has its part of the checkpoint of update 12")
    assert ("to go on from the checkpoint before" in ended.complaint) == (steps == (12,))
    assert ("begin again in a new run folder" in ended.complaint) == (steps == (8, 12))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(PAIR, codec=replace(PAIR.codec, min_rank=17)), "codec.min_rank = 17: must lie between 1 and 16"),
        (with_ranks(PAIR, 5), "sequence.chunks = 4: must be at least launch.ranks = 5"),
        (replace(PAIR, sequence=replace(PAIR.sequence, tokens=3)), "sequence.chunks = 4: must lie between 1 and 3"),
        (with_ranks(PAIR, 2, timeout_seconds=0.0), "launch.timeout_seconds = 0"),
    ],
)
def test_settings_that_do_not_fit(config: SubspacesConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config, where="a test")
