"""Does ``thinwire reproduce`` keep its contract: the list's keys, a near name, exit statuses?"""

import json
from pathlib import Path

import pytest

from command_lines import Here, assert_refused
from thinwire.reproduction import registry
from thinwire.reproduction.item import Findings, Item
from thinwire.reproduction.workplace import Workplace


def _counted(place: Workplace) -> Findings:
    made = place.part("one", inputs=[1], compute=lambda: {"value": 4})
    return Findings([made], f"{made['value']}", "agrees", [])


def _interrupted(place: Workplace) -> Findings:
    raise KeyboardInterrupt(place.item)


def _failing(place: Workplace) -> Findings:
    raise ValueError(place.item)


@pytest.fixture
def items(monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = {"smoke": 0.1, "cpu": 1, "paper": 9}
    found = tuple(
        Item(name, covers, "a toy", "4", "ours is 4", minutes, find)
        for name, covers, find in (
            ("soma-fig1", ("soma-table4",), _counted),
            ("soma-stopped", (), _interrupted),
            ("soma-broken", (), _failing),
        )
    )
    monkeypatch.setattr(registry, "all_items", lambda: found)


@pytest.mark.usefixtures("items")
def test_list_says_the_state_of_every_item(here: Here, tiny_data: Path, tmp_path: Path) -> None:
    assert here("reproduce", "table4", "--data", tiny_data, "--out", tmp_path).status == 0
    listed = json.loads(here("reproduce", "--list", "--json", "--out", tmp_path).out)
    assert [set(entry) for entry in listed] == [{"item", "scale", "state", "verdict", "ours", "paper", "rule"}] * 3
    assert [(entry["item"], entry["state"], entry["verdict"]) for entry in listed] == [
        ("soma-fig1", "done", "agrees"),
        ("soma-stopped", "missing", None),
        ("soma-broken", "missing", None),
    ]
    text = here("reproduce", "--list", "--out", tmp_path).out.decode()
    assert "soma-fig1 (table4)" in text
    assert f"thinwire reproduce soma-stopped soma-broken --scale smoke --out {tmp_path}" in text


@pytest.mark.usefixtures("items")
def test_json_is_one_list_of_outcomes(here: Here, tiny_data: Path, tmp_path: Path) -> None:
    done = here("reproduce", "soma-fig1", "--data", tiny_data, "--out", tmp_path, "--json")
    assert done.status == 0
    assert [outcome["ours"] for outcome in json.loads(done.out)] == ["4"]


@pytest.mark.usefixtures("items")
def test_an_interrupt_says_how_to_go_on(here: Here, tiny_data: Path, tmp_path: Path) -> None:
    stopped = here("reproduce", "soma-stopped", "--data", tiny_data, "--out", tmp_path)
    assert stopped.status == 130
    assert f"thinwire reproduce soma-stopped --data {tiny_data} --out {tmp_path}" in stopped.err


@pytest.mark.usefixtures("items")
def test_a_failing_item_is_named_and_the_others_done(here: Here, tiny_data: Path, tmp_path: Path) -> None:
    failed = here("reproduce", "soma-broken", "soma-fig1", "--data", tiny_data, "--out", tmp_path)
    assert failed.status == 1
    assert "soma-broken: ValueError" in failed.err
    assert (tmp_path / "soma-fig1" / "outcome.json").is_file()


@pytest.mark.usefixtures("items")
def test_mistakes_are_answered(here: Here, tmp_path: Path) -> None:
    assert_refused(here("reproduce", "soma-fig11"), "no item 'soma-fig11'")
    assert "did you mean 'soma-fig1'" in here("reproduce", "soma-fig11").err
    assert_refused(here("reproduce", "--data", tmp_path / "none", "--out", tmp_path), "no such data folder")
    assert_refused(here("reproduce", "--threads", "-1"), "cannot be negative")
    assert_refused(here("reproduce", "--scale", "paper", "--out", tmp_path), "needs a text of its own")
