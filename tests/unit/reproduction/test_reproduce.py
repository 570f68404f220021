"""Do items resume, get kept, fail alone and leave whole files?  A toy item of two parts on the tests' text."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.reproduction.item import Findings, Item, Panel, Series, Verdict
from thinwire.reproduction.outcome import list_entry, standing
from thinwire.reproduction.registry import find_item
from thinwire.reproduction.reproduce import ItemsFailedError, Request, reproduce
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.config import TrainingConfig

CONTRACT = {"item", "scale", "state", "verdict", "ours", "paper", "rule", "minutes"}


def item(find: Callable[[Workplace], Findings], *, name: str = "soma-toy", covers: tuple[str, ...] = ()) -> Item:
    return Item(name, covers, "a toy", "4", "ours within 1 of 4", {"smoke": 0.1, "cpu": 1, "paper": 9}, find)


def squares(place: Workplace, log: list[int], *, bases: tuple[int, ...] = (1, 2), stop_at: int = -1) -> Findings:
    rows = []
    for base in bases:

        def compute(base: int = base) -> dict[str, Any]:
            if base == stop_at:
                raise KeyboardInterrupt
            log.append(base)
            return {"base": base, "square": base**2}

        rows.append(place.part(f"square-{base}", inputs=[base], compute=compute))
    last = rows[-1]["square"]
    verdict: Verdict = "agrees" if abs(last - 4) <= 1 else "differs"
    points = Series("squares", [row["base"] for row in rows], [row["square"] for row in rows], kind="points")
    panel = Panel("squares", "base", "square", [points, points._replace(kind="dashed")], x_scale="log")
    return Findings(rows, f"{last}", verdict, [panel])


def request(data: Path, out: Path, *, said: list[str] | None = None) -> Request:
    return Request(scale="smoke", out=out, data=data, threads=1, voice=Voice(say=([] if said is None else said).append))


def test_an_item_leaves_rows_figure_and_a_computed_verdict(tiny_data: Path, tmp_path: Path) -> None:
    toy = item(lambda place: squares(place, []))
    assert list_entry(toy, out=tmp_path, scale="smoke")["state"] == "missing"
    outcome = reproduce([toy], request(tiny_data, tmp_path))[0]
    folder = tmp_path / "soma-toy"
    assert (outcome["verdict"], outcome["ours"]) == ("agrees", "4")
    assert json.loads((folder / "outcome.json").read_text()) == outcome
    assert (folder / "rows.csv").read_text() == "base,square\n1,1\n2,4\n"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    entry = list_entry(toy, out=tmp_path, scale="smoke")
    assert entry.keys() == CONTRACT
    assert (entry["state"], entry["verdict"], entry["minutes"]) == ("done", "agrees", 0.1)


def test_the_verdict_follows_the_numbers(tiny_data: Path, tmp_path: Path) -> None:
    toy = item(lambda place: squares(place, [], bases=(1, 3)))
    assert reproduce([toy], request(tiny_data, tmp_path))[0]["verdict"] == "differs"


def test_an_interrupted_item_goes_on_with_the_part_it_was_at(tiny_data: Path, tmp_path: Path) -> None:
    log: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce([item(lambda place: squares(place, log, stop_at=2))], request(tiny_data, tmp_path))
    toy = item(lambda place: squares(place, log))
    assert standing(toy, out=tmp_path, text=None).state == "partial"
    reproduce([toy], request(tiny_data, tmp_path))
    assert log == [1, 2]
    before = (tmp_path / "soma-toy" / "outcome.json").read_bytes()
    reproduce([toy], request(tiny_data, tmp_path))
    assert log == [1, 2]
    assert (tmp_path / "soma-toy" / "outcome.json").read_bytes() == before


def test_a_killed_item_goes_on(tiny_data: Path, tmp_path: Path) -> None:
    """Killed, without any chance to tidy, between its first part and its second."""
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from thinwire.base.progress import Voice
        from thinwire.reproduction.workplace import Workplace

        place = Workplace("smoke", Path(sys.argv[2]), "soma-toy", Path(sys.argv[1]), Voice(), 1)
        place.part("square-1", inputs=[1], compute=lambda: {"base": 1, "square": 1})
        place.part("square-2", inputs=[2], compute=lambda: os.kill(os.getpid(), signal.SIGKILL))
        """
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tiny_data), str(tmp_path)], check=False)
    assert killed.returncode == -9
    log: list[int] = []
    reproduce([item(lambda place: squares(place, log))], request(tiny_data, tmp_path))
    assert log == [2]


def test_a_part_with_other_inputs_is_computed_anew(tiny_data: Path, tmp_path: Path) -> None:
    place = Workplace("smoke", tmp_path, "soma-toy", tiny_data, Voice(), 1)
    assert place.part("one", inputs={"n": 1}, compute=lambda: {"value": 1}) == {"value": 1}
    assert place.part("one", inputs={"n": 1}, compute=lambda: {"value": 2}) == {"value": 1}
    assert place.part("one", inputs={"n": 2}, compute=lambda: {"value": 2}) == {"value": 2}


def test_a_folder_keeps_to_one_scale(tiny_data: Path, tmp_path: Path) -> None:
    toy = item(lambda place: squares(place, []))
    reproduce([toy], request(tiny_data, tmp_path))
    with pytest.raises(UserError, match="another scale"):
        reproduce([toy], Request(scale="cpu", out=tmp_path, data=tiny_data))


def test_a_failing_item_hides_no_other(tiny_data: Path, tmp_path: Path) -> None:
    def fails(place: Workplace) -> Findings:
        raise ZeroDivisionError(place.item)

    def wants_more(place: Workplace) -> Findings:
        raise UserError("no text", where=place.item, fix="give --texts")

    items = [
        item(fails, name="soma-broken"),
        item(wants_more, name="soma-wanting"),
        item(lambda place: squares(place, [])),
    ]
    with pytest.raises(ItemsFailedError) as raised:
        reproduce(items, request(tiny_data, tmp_path))
    message = str(raised.value)
    assert "2 of 3 items failed" in message
    assert "soma-broken: ZeroDivisionError" in message
    assert "give --texts" in message
    assert "ZeroDivisionError" in (tmp_path / "soma-broken" / "failure.txt").read_text()
    assert [outcome["item"] for outcome in raised.value.outcomes] == ["soma-toy"]
    assert [standing(one, out=tmp_path, text=None).state for one in items] == ["partial", "partial", "done"]


def test_the_only_item_says_itself_what_it_wants(tiny_data: Path, tmp_path: Path) -> None:
    def wants_more(place: Workplace) -> Findings:
        raise UserError("the disk is slow", where=str(place.out), fix="choose another")

    with pytest.raises(UserError) as raised:
        reproduce([item(wants_more)], request(tiny_data, tmp_path))
    assert (raised.value.where, raised.value.fix) == (f"soma-toy: {tmp_path}", "choose another")


def test_what_only_settings_could_mend_asks_for_more_text(tiny_data: Path, tmp_path: Path) -> None:
    """An item's settings are no person's to change."""

    def wants_text(place: Workplace) -> Findings:
        raise UserError(f"{place.item} has 3 windows", where="clusters.num_clusters", fix="ask for fewer clusters")

    with pytest.raises(UserError) as raised:
        reproduce([item(wants_text)], request(tiny_data, tmp_path))
    assert raised.value.where == "soma-toy: clusters.num_clusters"
    assert "--data" in raised.value.fix
    assert "fewer clusters" not in raised.value.fix


def test_an_item_that_keeps_its_work_in_shared_runs_has_begun(tiny_data: Path, tmp_path: Path) -> None:
    def stopped(place: Workplace) -> Findings:
        (place.out / "runs" / "n4").mkdir(parents=True)
        raise KeyboardInterrupt

    toy = item(stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce([toy], request(tiny_data, tmp_path))
    assert standing(toy, out=tmp_path, text=None).state == "partial"


@pytest.mark.parametrize(
    ("key", "state"), [("version", "outdated"), ("data_fingerprint", "outdated"), ("ours", "done")]
)
def test_an_outcome_of_another_version_or_text_is_outdated(
    key: str, state: str, tiny_data: Path, tmp_path: Path
) -> None:
    toy = item(lambda place: squares(place, []))
    outcome = reproduce([toy], request(tiny_data, tmp_path))[0]
    text = outcome["data_fingerprint"]
    (tmp_path / "soma-toy" / "outcome.json").write_text(json.dumps(outcome | {key: "another"}))
    assert standing(toy, out=tmp_path, text=text).state == state
    assert standing(replace(toy, rule="ours within 2 of 4"), out=tmp_path, text=text).state == "outdated"


def test_missing_texts_are_refused_before_any_work(tiny_data: Path, tmp_path: Path) -> None:
    asked = replace(request(tiny_data, tmp_path / "out"), texts=tmp_path / "none")
    with pytest.raises(UserError, match="no such folder of texts"):
        reproduce([item(lambda place: squares(place, []))], asked)
    assert not (tmp_path / "out").exists()


def test_an_item_says_the_same_line_once(tiny_data: Path, tmp_path: Path) -> None:
    def repeats(place: Workplace) -> Findings:
        for line in ("clusters: kept", "seed run: kept") * 3:
            place.voice.say(line)
        return squares(place, [])

    said: list[str] = []
    reproduce([item(repeats)], request(tiny_data, tmp_path, said=said))
    assert said == ["soma-toy: a toy", "clusters: kept", "seed run: kept"]


def test_a_part_may_come_from_dataclasses_in_lists(tiny_data: Path, tmp_path: Path) -> None:
    place = Workplace("smoke", tmp_path, "soma-toy", tiny_data, Voice(), 1)
    inputs = [1, [TrainingConfig()]]
    assert place.part("one", inputs=inputs, compute=lambda: {"value": 1}) == {"value": 1}
    assert place.part("one", inputs=inputs, compute=lambda: {"value": 2}) == {"value": 1}
    others = [1, [replace(TrainingConfig(), updates=TrainingConfig().updates + 1)]]
    assert place.part("one", inputs=others, compute=lambda: {"value": 2}) == {"value": 2}


def test_items_are_found_by_name_and_by_what_they_cover() -> None:
    toy = item(lambda place: squares(place, []), covers=("soma-table8",))
    for name in ("soma-toy", "toy", "soma-table8", "table8"):
        assert find_item(name, among=[toy]) is toy
    with pytest.raises(UserError, match="did you mean 'soma-table8'"):
        find_item("soma-table9", among=[toy])
