"""Does a run that is killed, interrupted or terminated leave nothing at work, and go on to the same bits?"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from command_lines import PROGRAM, apart
from thinwire.soma.run import SomaRun
from thinwire.soma.scalar_log import read
from tiny_runs import CONFIG, assert_same_runs, copy_of, flags

# Updates slow enough, and many enough, to be caught in the middle.
SLOW = replace(
    CONFIG,
    experts=replace(
        CONFIG.experts,
        updates=80,
        directions=64,
        batch=16,
        window_bytes=64,
        validate_every=20,
        checkpoint_every=35,
        log_every=10,
    ),
)
LOG_BYTES_IN_THE_MIDDLE = 8_000
PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def slow_run(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nobody disturbed, trained in this process."""
    return tiny_runs.train_in_process(SLOW, data=tiny_data, out=tmp_path_factory.mktemp("slow") / "run").folder.root


@pytest.fixture
def started(slow_run: Path, tiny_data: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``thinwire train`` in a process group of its own, its experts in the middle of their updates."""
    out = copy_of(slow_run, tmp_path / "run", without=("experts", "results"))
    argv = [*PROGRAM, "train", "demo", *flags(SLOW), "--data", str(tiny_data), "--out", str(out)]
    with (
        (tmp_path / "stderr").open("w") as stderr,
        subprocess.Popen(argv, stderr=stderr, stdout=subprocess.PIPE, text=True, start_new_session=True) as process,
    ):
        logs = [SomaRun.open(out).job_folder(name).scalars for name in ("0", "1")]
        wait_until(lambda: any(log.exists() and log.stat().st_size > LOG_BYTES_IN_THE_MIDDLE for log in logs))
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def stop_by_kill(process: subprocess.Popen[str]) -> None:
    """The parent alone; its workers are orphans."""
    os.kill(process.pid, signal.SIGKILL)


def stop_by_interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C on a terminal reaches the whole group."""
    os.killpg(process.pid, signal.SIGINT)


def stop_by_termination(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("stop", "status"), [(stop_by_kill, -signal.SIGKILL), (stop_by_interrupt, 130), (stop_by_termination, 130)]
)
def test_a_stopped_run_goes_on_to_the_same_bits(
    started: subprocess.Popen[str],
    slow_run: Path,
    tiny_data: Path,
    tmp_path: Path,
    stop: Callable[[subprocess.Popen[str]], None],
    status: int,
) -> None:
    stop(started)
    assert started.wait(PATIENCE_SECONDS) == status
    wait_until(lambda: not members(started.pid))
    out = tmp_path / "run"
    folders = [SomaRun.open(out).job_folder(name) for name in ("0", "1")]
    made = [max((record.update for record in read(folder.scalars).records), default=0) for folder in folders]
    assert max(made) > 0
    assert not all(folder.done.exists() for folder in folders), f"it was over before it was stopped: {made}"
    err = (tmp_path / "stderr").read_text()
    assert "Traceback" not in err
    argv = ["train", "demo", *flags(SLOW), "--data", str(tiny_data), "--out", str(out)]
    if status == 130:
        printed = [line.split("to go on: ")[1] for line in err.splitlines() if "to go on: " in line]
        assert [shlex.split(line) for line in printed] == [["thinwire", *argv]]
    again = apart(*argv)
    assert again.status == 0, again.err
    assert "seed run: already trained, kept" in again.err
    assert_same_runs(out, slow_run, data=tiny_data)
