"""What every test may ask for, and ``--forbid-skips``, under which a skipped test fails the run."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the package is imported by fixtures, after the hook that checks shapes has been installed
    from command_lines import Here, Outcome
    from gloo_ranks import RankPool

REPOSITORY = Path(__file__).resolve().parent.parent
ALLOWED_SKIP = "needs a GPU"

# Triton reads this once, when it is first imported: its kernels then run on CPU tensors, one operation at a time.
os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forbid-skips", action="store_true", help=f"fail when a test is skipped, except '{ALLOWED_SKIP}'"
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.getoption("--forbid-skips") or reporter is None:
        return
    skipped = [report for report in reporter.stats.get("skipped", []) if ALLOWED_SKIP not in str(report.longrepr)]
    if skipped:
        reporter.write_line(f"{len(skipped)} tests were skipped, and none may be here:", red=True)
        for report in skipped:
            reporter.write_line(f"  {report.nodeid}: {report.longrepr}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text beside the repository; the project works without it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real text is absent: {folder}")
    return folder


@pytest.fixture
def here(capsysbinary: pytest.CaptureFixture[bytes]) -> "Iterator[Here]":
    """Gives a command line in this process."""
    import command_lines

    def call(*argv: str | Path) -> "Outcome":
        capsysbinary.readouterr()
        status = command_lines.in_this_process(*argv)
        written = capsysbinary.readouterr()
        return command_lines.Outcome(status, written.out, written.err.decode())

    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def apart() -> "Here":
    """Gives a command line in a process of its own."""
    import command_lines

    return command_lines.apart


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the prepared text and the run of all tests lie."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="session")
def tiny_data(tiny_folder: Path) -> Path:
    """A data folder of three subjects."""
    import tiny_runs

    return tiny_runs.prepared_data(tiny_folder)


@pytest.fixture(scope="session")
def tiny_run(tiny_folder: Path) -> Path:
    """Finished; read it, do not change it."""
    import tiny_runs

    return tiny_runs.finished_run(tiny_folder)


@pytest.fixture(scope="session")
def tiny_llama(tiny_folder: Path) -> Path:
    """A finished context-parallel run on bytes; read it, do not change it."""
    import tiny_subspaces

    return tiny_subspaces.finished_run(tiny_folder)


@pytest.fixture(scope="session")
def tiny_token_llama(tiny_folder: Path) -> Path:
    """The same on byte pairs."""
    import tiny_subspaces

    return tiny_subspaces.finished_run(tiny_folder, "llama-tokens")


@pytest.fixture(scope="session")
def rank_pool() -> "Iterator[RankPool]":
    """Four processes, on which a test runs a function as one to four ranks."""
    import gloo_ranks

    with gloo_ranks.RankPool(4) as pool:
        yield pool
