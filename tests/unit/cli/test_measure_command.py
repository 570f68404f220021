"""Does ``measure`` list what there is, say what a run counted, and refuse what it cannot measure?"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_subspaces
from counted_runs import counted_run
from thinwire.cli import measure
from thinwire.subspaces.traffic import step_traffic

CONFIG = replace(tiny_subspaces.CONFIG, launch=replace(tiny_subspaces.CONFIG.launch, ranks=2))
STEPS = 6


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks' log of six updates, without any validation."""
    return counted_run(tmp_path / "run", CONFIG, steps=STEPS)


def test_the_measures_are_listed(here) -> None:
    outcome = here("measure")
    assert outcome.status == 0
    for name in measure.MEASURES:
        assert f"  {name}  " in outcome.out.decode()


def test_json_is_one_object_and_the_file(run: Path, here) -> None:
    outcome = here("measure", "traffic", run, "--json")
    assert outcome.status == 0
    record = json.loads(outcome.out)
    assert record == json.loads((run / "results/traffic.json").read_text())
    assert record["is_equal"]
    assert record["step"] == STEPS
    assert [link["per"] for link in record["links"]] == ["node", "pair"]
    link = record["links"][0]
    assert link["phase"] == "compressed"
    assert link["exchange_seconds"] < link["plain_exchange_seconds"]
    sent = step_traffic(CONFIG, vocab_size=256)
    assert link["sync_bytes_per_update"] == sent.sync_bytes_per_step == sent.sync.sum() / CONFIG.sync.every
    slower = json.loads(here("measure", "traffic", run, "--json", "--link", "150Mbps").out)["links"][0]
    assert slower["exchange_seconds"] == pytest.approx(2 * link["exchange_seconds"])


def test_the_table(run: Path, here) -> None:
    text = here("measure", "traffic", run).out.decode()
    for words in ("kv-forward", "kv-backward", "theta", "sync", "compressed", "300 Mbit/s per node", "of plain"):
        assert words in text
    assert "DIFFERS" not in text
    log = (run / "log.jsonl").read_text().splitlines()
    last = json.loads(log[-1])
    last["wire_bytes"]["kv-backward"] -= 2
    (run / "log.jsonl").write_text("\n".join([*log[:-1], json.dumps(last)]) + "\n")
    changed = here("measure", "traffic", run).out.decode()
    assert changed.count("DIFFERS") == 2


def test_mistakes(run: Path, here, tmp_path: Path) -> None:
    (run / "empty").mkdir()
    soma = tmp_path / "soma"
    soma.mkdir()
    (soma / "config.json").write_text('{"kind": "soma", "config": {}}')
    cases = [
        (("measure", "trafic", run), "did you mean 'traffic'?"),
        (("measure", "traffic", soma), "does not describe a SOMA run"),
        (("measure", "traffic", run / "empty"), "no config.json"),
        (("measure", "traffic", tmp_path / "absent"), "absent"),
        (("measure", "traffic", run, "--link", "fast"), "cannot read 'fast'"),
    ]
    for argv, words in cases:
        outcome = here(*argv)
        assert outcome.status == 2
        assert words in outcome.err
        assert "Traceback" not in outcome.err
