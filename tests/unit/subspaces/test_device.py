"""Does a run compute where it was asked to, and is a device that is missing refused before anything is written?"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from thinwire.base.errors import UserError
from thinwire.subspaces import recipe
from thinwire.subspaces.config import LaunchConfig
from thinwire.subspaces.device import scoring_device, training_device
from thinwire.subspaces.run import compute_of
from thinwire.subspaces.scoring import evaluate
from tiny_runs import prepared_data
from tiny_subspaces import CONFIG, untrained_run


@pytest.fixture
def two_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("two_accelerators")
def test_an_accelerator_is_used_where_the_run_names_it_alone() -> None:
    for device in ("auto", "cpu"):
        launch = LaunchConfig(device=device)
        assert training_device(launch, member=1) == scoring_device(launch) == torch.device("cpu")
        assert not compute_of(launch, member=1).is_mixed
    launch = LaunchConfig(device="cuda")
    assert [training_device(launch, member=member).index for member in range(3)] == [0, 1, 0]
    assert scoring_device(launch).type == "cuda"
    assert compute_of(launch, member=1).is_mixed


@pytest.mark.usefixtures("no_accelerator")
def test_a_missing_accelerator_is_refused_in_training_and_not_needed_to_score() -> None:
    launch = LaunchConfig(device="cuda")
    with pytest.raises(UserError, match="no CUDA device was found"):
        training_device(launch, member=0)
    assert scoring_device(launch) == torch.device("cpu")


@pytest.mark.usefixtures("two_accelerators")
def test_a_run_that_did_not_ask_for_an_accelerator_is_scored_without_one(tiny_folder: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, launch=replace(CONFIG.launch, device="auto"))
    run = untrained_run(config, data=prepared_data(tiny_folder), out=tmp_path / "run")
    assert evaluate(run)["windows"] == CONFIG.test_sequences


@pytest.mark.usefixtures("no_accelerator")
def test_a_missing_accelerator_is_refused_before_anything_is_written(tiny_folder: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, launch=replace(CONFIG.launch, device="cuda"))
    with pytest.raises(UserError, match="no CUDA device was found"):
        recipe.train(config, data=prepared_data(tiny_folder), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
