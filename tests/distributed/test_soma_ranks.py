"""Whole SOMA runs whose ranks share every update: processes of one machine, or started by hand as torchrun would."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from command_lines import PROGRAM, Outcome, apart, assert_refused
from thinwire.base.errors import ConfigError
from thinwire.data.corpus import Corpus
from thinwire.runs.layout import JobFolder
from thinwire.soma.config import SomaConfig, check
from thinwire.soma.run import SomaRun
from thinwire.soma.scalar_log import UpdateRecord, read
from tiny_runs import CONFIG, PRESET, assert_same_end, assert_same_runs, copy_of, flags, train_job

LONG = replace(CONFIG, experts=replace(CONFIG.experts, updates=4000))
"""Its experts take long enough to be disturbed."""
SECONDS = 120.0


def with_ranks(config: SomaConfig, ranks: int) -> SomaConfig:
    return replace(config, launch=replace(config.launch, ranks=ranks))


def command(config: SomaConfig, *, data: Path, out: Path) -> list[str]:
    return ["train", PRESET, "--data", str(data), "--out", str(out), *flags(config)]


def trained_seed(run: Path, out: Path) -> Path:
    """A copy of a run with its seed trained and its experts not."""
    root = copy_of(run, out, without=("experts",))
    shutil.rmtree(root / "results")
    return root


def updates_in(folder: JobFolder) -> int:
    """How many were acknowledged."""
    return sum(isinstance(record, UpdateRecord) for record in read(folder.scalars).records)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)


def workers_of(parent: int) -> dict[str, int]:
    """Command lines of a process's children, and their numbers."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip(): int(pid) for pid in children}


def test_ranks_of_one_machine_train_the_run_of_one_process(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    root = trained_seed(tiny_run, tmp_path / "run")
    done = apart(*command(with_ranks(CONFIG, 2), data=tiny_data, out=root))
    assert done.status == 0, done.err
    assert_same_runs(tiny_run, root, data=tiny_data)
    events = [json.loads(line) for line in (root / "log.jsonl").read_text().splitlines()]
    assert [event["ranks"] for event in events if event.get("stage") == "train" and event["state"] == "started"] == [2]


@pytest.mark.parametrize("deed", [signal.SIGKILL, signal.SIGINT])
def test_lost_rank_and_interrupt_lose_no_acknowledged_update(
    tiny_run: Path, tiny_data: Path, tmp_path: Path, deed: signal.Signals
) -> None:
    """One process goes on, and replays every update to the bits of a run that was never disturbed."""
    root = trained_seed(tiny_run, tmp_path / "run")
    long = command(with_ranks(LONG, 2), data=tiny_data, out=root)
    running = subprocess.Popen([*PROGRAM, *long], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: (root / "experts" / "000" / "exchange.jsonl").is_file())
    if deed == signal.SIGKILL:
        (victim,) = [pid for line, pid in workers_of(running.pid).items() if " 1 127.0.0.1 " in line]
        os.kill(victim, deed)
    else:
        running.send_signal(deed)
    _, said = running.communicate(timeout=SECONDS)
    assert "Traceback" not in said
    if deed == signal.SIGKILL:
        assert running.returncode == 1, said
        assert "expert 0, rank 1 was killed by signal 9" in said
        assert "fix:   give the same command again; it goes on from the last finished update" in said
    else:
        assert running.returncode == 130, said
        assert "to go on" in said or "continue" in said
    corpus, run = Corpus.open(tiny_data), SomaRun.open(root)
    ended = replace(
        run.job("0", corpus=corpus), config=replace(LONG.experts, updates=updates_in(run.job_folder("0")) + 3)
    )
    alone = JobFolder(tmp_path / "alone")
    for folder in (run.job_folder("0"), alone):
        train_job(ended, folder)
    assert_same_end(ended, run.job_folder("0"), alone)


def test_ranks_by_hand_with_the_run_on_the_first(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    """As on two machines: the second has the data, and leaves nothing behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root, other = trained_seed(tiny_run, tmp_path / "run"), tmp_path / "other"
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [*PROGRAM, *command(with_ranks(CONFIG, 2), data=tiny_data, out=out), "--json"],
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in ((1, other), (0, root))
    ]
    ended = [(one.communicate(timeout=SECONDS), one.returncode) for one in ranks]
    assert [status for _, status in ended] == [0, 0], ended
    assert ended[0][0][0] == ""
    assert json.loads(ended[1][0][0])["loss_nats_per_byte"] > 0
    assert not other.exists()
    assert_same_runs(tiny_run, root, data=tiny_data)


def test_another_number_of_ranks_than_was_started(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    refused: Outcome = apart(*command(with_ranks(CONFIG, 2), data=tiny_data, out=tmp_path / "run"))
    assert_refused(refused, "3 ranks were started, the configuration has 2")


def test_eggroll_is_one_process(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}.items():
        monkeypatch.setenv(name, value)
    refused = apart("train", "eggroll-small", "--data", tiny_data, "--out", tmp_path / "run")
    assert_refused(refused, "an EGGROLL run is one process, and 2 were started")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_ranks(CONFIG, 0), "launch.ranks"),
        (with_ranks(CONFIG, 5), "at most experts.directions = 4"),
        (with_ranks(replace(CONFIG, losses="summed"), 2), "must be 1 where losses = summed"),
        (with_ranks(replace(CONFIG, experts=replace(CONFIG.experts, estimator="bptt")), 2), "estimator = spsa"),
    ],
)
def test_settings_that_ranks_cannot_share(config: SomaConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config, where="here")
