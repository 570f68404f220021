"""What every test may ask for, and ``--forbid-skips``, under which a skipped test fails the run."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ALLOWED_SKIP = "needs a GPU"


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
