"""Does ``thinwire reproduce`` keep its contract: the list's keys, a near name, exit statuses?"""

import json
from pathlib import Path

import pytest

import tiny_runs
from command_lines import Here, assert_refused
from thinwire.data.prepare import PrepareOptions, prepare
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
    keys = {"item", "scale", "state", "verdict", "ours", "paper", "rule", "minutes"}
    assert [set(entry) for entry in listed] == [keys] * 3
    assert [(entry["item"], entry["state"], entry["verdict"]) for entry in listed] == [
        ("soma-fig1", "done", "agrees"),
        ("soma-stopped", "missing", None),
        ("soma-broken", "missing", None),
    ]
    text = here("reproduce", "--list", "--out", tmp_path).out.decode()
    assert "soma-fig1 (table4)" in text
    assert f"thinwire reproduce soma-stopped soma-broken --scale smoke --out {tmp_path}\n" in text
    assert "about 10 s" in text


@pytest.mark.usefixtures("items")
def test_the_printed_command_has_every_option(here: Here, tiny_data: Path, tmp_path: Path) -> None:
    given = ["--data", tiny_data, "--texts", tmp_path, "--out", tmp_path / "none", "--threads", "3"]
    text = here("reproduce", "table4", "--list", *given).out.decode()
    assert f"reproduce table4 --scale smoke {' '.join(map(str, given))}\n" in text
    assert "nothing is there yet" in text
    text = here("reproduce", "--list", "--scale", "paper", "--out", tmp_path / "none").out.decode()
    assert "--scale paper --data DATA" in text
    assert "a prepared folder, which the scale paper needs" in text


@pytest.mark.usefixtures("items")
def test_a_list_sees_another_text_and_another_scale(
    here: Here, tiny_data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here("reproduce", "table4", "--data", tiny_data, "--out", tmp_path)
    folder = tmp_path_factory.mktemp("other")
    texts, other = tiny_runs.write_texts(folder / "texts", documents=12, words=60), folder / "data"
    prepare([str(texts)], out=other, options=PrepareOptions())
    for data, state in ((tiny_data, "done"), (other, "outdated")):
        listed = json.loads(here("reproduce", "table4", "--list", "--json", "--data", data, "--out", tmp_path).out)
        assert listed[0]["state"] == state
    assert_refused(here("reproduce", "--list", "--scale", "cpu", "--out", tmp_path), "another scale")


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
    assert "soma-fig1" in failed.out.decode()


@pytest.mark.usefixtures("items")
def test_json_has_what_was_done_where_another_item_fails(here: Here, tiny_data: Path, tmp_path: Path) -> None:
    failed = here("reproduce", "soma-broken", "soma-fig1", "--data", tiny_data, "--out", tmp_path, "--json")
    assert failed.status == 1
    assert [outcome["item"] for outcome in json.loads(failed.out)] == ["soma-fig1"]


def test_a_long_outcome_fits_the_terminal(
    here: Here, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wordy(place: Workplace) -> Findings:
        return Findings([{"value": 4}], "a loss of 1.5, " * 20 + place.item, "agrees", [])

    minutes = {"smoke": 0.1, "cpu": 1, "paper": 9}
    toy = Item("soma-wordy", (), "a toy", "four " * 40, "ours is 4", minutes, wordy)
    monkeypatch.setattr(registry, "all_items", lambda: (toy,))
    monkeypatch.setenv("COLUMNS", "60")
    done = here("reproduce", "--data", tiny_data, "--out", tmp_path)
    lines = [line for line in done.out.decode().splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 60
    assert " ".join(done.out.decode().split()).count("a loss of 1.5") == 20
    assert "a loss of 1.5" not in done.err


@pytest.mark.usefixtures("items")
def test_mistakes_are_answered(here: Here, tmp_path: Path) -> None:
    assert_refused(here("reproduce", "soma-fig11"), "no item 'soma-fig11'")
    assert "did you mean 'soma-fig1'" in here("reproduce", "soma-fig11").err
    assert_refused(here("reproduce", "--data", tmp_path / "none", "--out", tmp_path), "no such data folder")
    assert_refused(here("reproduce", "--texts", tmp_path / "none", "--out", tmp_path), "no such folder of texts")
    assert_refused(here("reproduce", "--threads", "-1"), "cannot be negative")
    assert_refused(here("reproduce", "--scale", "paper", "--out", tmp_path), "needs a text of its own")
