"""Does the page say what the outcomes say, and does taking results leave the runs behind?"""

import json
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import UserError
from thinwire.reproduction.page import page, take
from thinwire.reproduction.registry import all_items, find_item

OUTCOME: dict[str, Any] = {
    "item": "soma-toy",
    "covers": ["soma-table0"],
    "scale": "smoke",
    "shows": "a toy",
    "paper": "a|b",
    "rule": "ours is 4",
    "ours": "5",
    "verdict": "differs",
    "notes": "equal bytes",
    "has_figure": True,
}


def write_outcome(folder: Path, **changes: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps(OUTCOME | changes))
    (folder / "rows.csv").write_text("a\n1\n")


def test_every_outcome_stands_on_the_page_with_its_verdict(tmp_path: Path) -> None:
    write_outcome(tmp_path / "smoke" / "soma-toy")
    write_outcome(tmp_path / "cpu" / "soma-b", item="soma-b", verdict="agrees", has_figure=False)
    write_outcome(tmp_path / "cpu" / "soma-a", item="soma-a", verdict="agrees")
    text = page(tmp_path, link="../results", order=["soma-b"])
    assert "| [soma-toy](#soma-toy) | differs | 5 | a\\|b |" in text
    assert "![soma-toy](../results/smoke/soma-toy/figure.png)" in text
    assert "figure.png" not in text.split("### soma-b")[1].split("### soma-a")[0]
    assert "2 agrees." in text
    assert "equal bytes" in text


def test_taking_copies_what_was_found_and_nothing_else(tmp_path: Path) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    write_outcome(out / "soma-toy")
    (out / "soma-toy" / "parts").mkdir()
    (out / "runs" / "n4").mkdir(parents=True)
    assert take(out, into=results) == ["soma-toy"]
    assert sorted(path.name for path in (results / "soma-toy").iterdir()) == ["outcome.json", "rows.csv"]
    assert [path.name for path in results.iterdir()] == ["soma-toy"]
    with pytest.raises(UserError, match="no finished item"):
        take(tmp_path / "nothing", into=results)


def test_committed_outcomes_are_of_the_items_as_they_stand(repository: Path) -> None:
    """A rule that has changed since is a verdict that nobody has computed."""
    outcomes = sorted((repository / "results" / "reproduction").glob("*/*/outcome.json"))
    assert len(outcomes) >= 14
    for path in outcomes:
        outcome, item = json.loads(path.read_text()), find_item(path.parent.name, among=all_items())
        assert (outcome["rule"], outcome["paper"]) == (item.rule, item.paper), path
        assert (path.parent / "rows.csv").is_file()
