"""A prepared text, a trained run, and two of its jobs with every write of them; made once for this room's tests."""

from pathlib import Path

import pytest

import tiny_runs
from kills import JOBS, Undisturbed, Writes
from thinwire.data.corpus import Corpus
from thinwire.runs.layout import JobFolder
from thinwire.soma.run import SomaRun


@pytest.fixture(scope="session")
def jobs(tiny_run: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Undisturbed]:
    run, made = SomaRun.open(tiny_run), {}
    for name in JOBS:
        job = run.job(name, corpus=Corpus.open(tiny_data))
        folder = JobFolder(tmp_path_factory.mktemp("undisturbed") / name)
        writes = Writes()
        with pytest.MonkeyPatch.context() as patch:
            writes.install(patch.setattr)
            tiny_runs.train_job(job, folder)
        made[name] = Undisturbed(job, folder, writes.seen)
    return made


@pytest.fixture(params=JOBS)
def one(request: pytest.FixtureRequest, jobs: dict[str, Undisturbed]) -> Undisturbed:
    return jobs[request.param]
