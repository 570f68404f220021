"""Does the benchmark of shared updates print what the two forms sent, and no time where a weight is wrong?"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def exchange(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "bench")
    for name in ("measuring", "training", "exchange"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("exchange")


def test_every_link_has_both_forms(repository: Path) -> None:
    command = [sys.executable, str(repository / "bench" / "exchange.py"), "--tiny", "--json", "--repeats", "1"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert [row["link_bits_per_s"] for row in rows] == [0.0, 300e6, 100e6]
    for row in rows:
        assert row["scalars_bytes"] == 8 * (4 + 4)
        assert row["gradients_bytes"] == row["scalars_bytes"] + 8 * row["parameters"]
        assert min(row[f"{form}_seconds"] for form in ("scalars", "gradients")) > 0


def test_no_time_where_weights_are_wrong(
    exchange: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"case": "first", "parameters": 1}
    monkeypatch.setattr(exchange, "rows_of", lambda **_: iter([good, {"wrong": ["second: other weights"]}]))
    assert exchange.main([]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "second: other weights" in said.err
