"""A prepared text, a trained run, and the command line."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import command_lines
import tiny_runs
from command_lines import Here, Outcome


@pytest.fixture
def here(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[Here]:
    """Gives a command line in this process."""

    def call(*argv: str | Path) -> Outcome:
        capsysbinary.readouterr()
        status = command_lines.in_this_process(*argv)
        written = capsysbinary.readouterr()
        return Outcome(status, written.out, written.err.decode())

    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def apart() -> Here:
    """Gives a command line in a process of its own."""
    return command_lines.apart


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="session")
def tiny_data(tiny_folder: Path) -> Path:
    return tiny_runs.prepared_data(tiny_folder)


@pytest.fixture(scope="session")
def tiny_run(tiny_folder: Path) -> Path:
    """Finished; read it, do not change it."""
    return tiny_runs.finished_run(tiny_folder)
