"""A pool of four processes for all tests of this folder, and what they found for each case."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from attention_cases import Case, Outcome, join, run_rank

from forked_runs import ForkServer
from gloo_ranks import RankPool


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as ranks:
        yield ranks


class Outcomes:
    """Remembers, because several tests look at the same run."""

    def __init__(self, pool: RankPool) -> None:
        self._pool = pool
        self._known: dict[tuple[Case, int], Outcome] = {}

    def of(self, case: Case, *, ranks: int) -> Outcome:
        """The ranks' joint outcome."""
        if (case, ranks) not in self._known:
            self._known[case, ranks] = join(self._pool.run(run_rank, case, ranks=ranks), case)
        return self._known[case, ranks]


@pytest.fixture(scope="session")
def outcomes(pool: RankPool) -> Outcomes:
    return Outcomes(pool)


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts runs of several ranks without their imports."""
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of this folder's tests lie."""
    return tmp_path_factory.mktemp("runs")
