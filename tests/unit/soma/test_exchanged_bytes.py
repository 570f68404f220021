"""Is what ranks sent read off the run folder start by start, and set beside the formula?"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from command_lines import Here, assert_refused
from thinwire.base.files import write_json
from thinwire.runs.layout import RunFolder
from thinwire.soma.config import SomaConfig
from thinwire.soma.exchanged_bytes import exchanged_by_job
from thinwire.soma.perturbation_parallel import ExchangedBytes, bytes_of_update
from tiny_runs import CONFIG, copy_of

EACH = (2 - 1) * 8 * (4 * 1 + 2 * 2)
"""Bytes of an update of two ranks: four one-sided forwards, and two numbers a rank."""


def line(after: int, update: int, *, ranks: int = 2, losses: int, gradient: int = 0) -> str:
    sent = {"losses": losses, "gradient": gradient, "agreement": 100, "job": 5000}
    return json.dumps({"after": after, "update": update, "ranks": ranks, "wire_bytes": sent}) + "\n"


def test_formula_at_the_paper_size() -> None:
    job = replace(CONFIG.experts, directions=64, difference="central", accumulation=1)
    by_losses = bytes_of_update(job, num_parameters=8_325_713, ranks=8, gradient_parts=1)
    assert by_losses == ExchangedBytes(losses=7 * 8 * (128 + 16), gradient=0)
    by_sums = bytes_of_update(job, num_parameters=8_325_713, ranks=8, gradient_parts=8)
    assert by_sums == ExchangedBytes(by_losses.losses, gradient=2 * 7 * 4 * 8_325_713)
    assert bytes_of_update(job, num_parameters=8_325_713, ranks=1, gradient_parts=1) == (0, 0)


def test_a_start_from_the_same_update_is_another_one(tiny_run: Path, tmp_path: Path) -> None:
    """A kill before the first checkpoint: both starts began at 0, and both sent."""
    root = copy_of(tiny_run, tmp_path / "run")
    updates = (2, 4, 2, 4, 6)
    lines = [line(0, update, losses=update * EACH) for update in updates]
    (root / "experts" / "000" / "exchange.jsonl").write_text("".join(lines))
    job = exchanged_by_job(root)[1]
    assert (job.ranks, job.updates) == ((2, 2), 10)
    assert job.counted == job.expected == ExchangedBytes(10 * EACH, 0)


def test_every_start_counts_once_and_a_torn_line_not_at_all(tiny_run: Path, tmp_path: Path) -> None:
    """Two starts, the second goes back to update 2; then a third with three ranks."""
    root = copy_of(tiny_run, tmp_path / "run")
    lines = [
        line(0, 2, losses=2 * EACH),
        line(0, 4, losses=4 * EACH),
        line(3, 4, losses=EACH),
        line(3, 6, losses=3 * EACH),
        line(6, 8, ranks=3, losses=2 * 2 * 8 * (4 + 6)),
        '{"after": 6, "upd',
    ]
    (root / "experts" / "000" / "exchange.jsonl").write_text("".join(lines))
    seed, first, second = exchanged_by_job(root)
    assert seed.ranks == second.ranks == ()
    assert seed.updates == sum(seed.counted) == 0
    assert first.ranks == (2, 2, 3)
    assert first.updates == 4 + 3 + 2
    assert first.counted == first.expected == ExchangedBytes(7 * EACH + 320, 0)
    assert (first.agreement_bytes, first.handed_bytes) == (300, 15_000)


@pytest.mark.parametrize("change", [{"ranks": "two"}, {"ranks": 0}, {"after": 9}, {"wire_bytes": 3}, {"update": None}])
def test_a_damaged_line_is_named(here: Here, tiny_run: Path, tmp_path: Path, change: dict[str, object]) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    damaged = json.loads(line(0, 2, losses=EACH)) | change
    (root / "experts" / "000" / "exchange.jsonl").write_text(json.dumps(damaged) + "\n")
    assert_refused(here("measure", "traffic", root), "a line of what ranks sent is damaged")


def record_of(root: Path, config: SomaConfig, text: str) -> None:
    """Make a run one of this configuration, whose first expert sent this."""
    folder = RunFolder(root)
    config_record = folder.read_config()
    config_record["config"]["exchange"] = config.exchange
    config_record["config"]["launch"]["ranks"] = config.launch.ranks
    write_json(folder.config, config_record)
    folder.expert(0).exchange.write_text(text)


def test_measure_traffic_prints_counted_beside_expected(here: Here, tiny_run: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    silent = here("measure", "traffic", root, "--json")
    assert silent.status == 0
    assert json.loads(silent.out) == json.loads((root / "results" / "traffic.json").read_text())
    assert json.loads(silent.out)["counted_bytes"] == json.loads(silent.out)["closed_form_bytes"] == 0
    assert b"never talk to each other" in here("measure", "traffic", root).out
    config = replace(CONFIG, exchange="gradients", launch=replace(CONFIG.launch, ranks=2))
    parameters = json.loads((root / "manifest.json").read_text())["num_parameters"]
    record_of(root, config, line(0, 6, losses=6 * EACH, gradient=6 * 8 * parameters))
    record = json.loads(here("measure", "traffic", root, "--json").out)
    assert record["is_equal"]
    assert record["counted_bytes"] == 6 * EACH + 6 * 8 * parameters
    record_of(root, config, line(0, 6, losses=6 * EACH - 8, gradient=6 * 8 * parameters))
    assert not json.loads(here("measure", "traffic", root, "--json").out)["is_equal"]
    assert b"DIFFERS" in here("measure", "traffic", root).out
