"""Do settings at the edge of what is allowed train, go on and score?  Whole runs of the smallest size."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_subspaces
from thinwire.base.files import read_json_lines
from thinwire.subspaces import saving
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.scoring import evaluate
from tiny_runs import prepared_data
from tiny_subspaces import CONFIG, train_here

ONE = {"key_rate": 1.0, "value_rate": 1.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "rank 1, learned": ONE,
    "rank 1, learned from the chunk itself": ONE | {"theta_source": "chunk", "generators": 2},
    "rank 1, fixed": ONE | {"theta_source": "none"},
    "rank 1, basis of activations": ONE | {"basis": "activation"},
    "rank 1, random": ONE | {"basis": "random", "theta_source": "random"},
    "rank 1, keys alone": {"key_rate": 1.0},
    "the last layer plain": {"uncompressed_layers": (1,)},
    "the first layer plain, chunk": {"uncompressed_layers": (0,), "theta_source": "chunk"},
    "all layers plain": {"uncompressed_layers": (0, 1)},
}


def assert_whole(run: Path, config: SubspacesConfig) -> None:
    steps = [record for record in read_json_lines(run / "log.jsonl") if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, 13))
    assert steps[-1]["loss_nats_per_token"] < steps[0]["loss_nats_per_token"]
    record = evaluate(run)
    assert record["step"] == 12
    assert record["loss_nats_per_token"] < steps[0]["loss_nats_per_token"]
    assert record["phase"] == ("folded" if config.phases.unplug == "fold" else "compressed")


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_run_is_trained_stopped_and_goes_on(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    """Stopped while it is compressed; then its checkpoint is scored as well."""
    config = replace(CONFIG, codec=replace(CONFIG.codec, **SETTINGS[name]))
    data = prepared_data(tiny_folder)
    train_here(config, data=data, out=tmp_path / "run", until=8)
    assert saving.last_step(tmp_path / "run") == 8
    assert evaluate(tmp_path / "run")["phase"] == "compressed"
    assert_whole(train_here(config, data=data, out=tmp_path / "run"), config)


def test_a_key_rate_that_leaves_one_direction_of_a_narrow_model(tiny_folder: Path, tmp_path: Path) -> None:
    """The preset's own rates at d_kv = 16: round(0.02 * 16) = 0, and r_min = 1."""
    rates = tiny_subspaces.preset(tiny_subspaces.PRESET).codec
    codec = replace(CONFIG.codec, key_rate=rates.key_rate, value_rate=rates.value_rate)
    config = replace(CONFIG, codec=codec, phases=replace(CONFIG.phases, unplug="never"))
    assert_whole(train_here(config, data=prepared_data(tiny_folder), out=tmp_path / "run"), config)
