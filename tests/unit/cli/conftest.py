"""A prepared text and a trained run, made once for all tests of this room."""

from pathlib import Path

import pytest

import tiny_runs


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
