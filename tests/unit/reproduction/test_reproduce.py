"""Do items resume, get kept, fail alone and leave whole files?  A toy item of two parts on the tests' text."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import RunFailedError, UserError
from thinwire.base.progress import Voice
from thinwire.reproduction.item import Findings, Item, Panel, Series, Verdict
from thinwire.reproduction.outcome import list_entry, standing
from thinwire.reproduction.registry import find_item
from thinwire.reproduction.reproduce import Request, reproduce
from thinwire.reproduction.workplace import Workplace

CONTRACT = {"item", "scale", "state", "verdict", "ours", "paper", "rule"}


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
    return Request(scale="smoke", out=out, data=data, threads=1, voice=Voice(say=(said or []).append))


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
    assert (entry["state"], entry["verdict"]) == ("done", "agrees")


def test_the_verdict_follows_the_numbers(tiny_data: Path, tmp_path: Path) -> None:
    toy = item(lambda place: squares(place, [], bases=(1, 3)))
    assert reproduce([toy], request(tiny_data, tmp_path))[0]["verdict"] == "differs"


def test_an_interrupted_item_goes_on_with_the_part_it_was_at(tiny_data: Path, tmp_path: Path) -> None:
    log: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce([item(lambda place: squares(place, log, stop_at=2))], request(tiny_data, tmp_path))
    toy = item(lambda place: squares(place, log))
    assert standing(toy, out=tmp_path).state == "partial"
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
    with pytest.raises(RunFailedError) as raised:
        reproduce(items, request(tiny_data, tmp_path))
    message = str(raised.value)
    assert "2 of 3 items failed" in message
    assert "soma-broken: ZeroDivisionError" in message
    assert "give --texts" in message
    assert "ZeroDivisionError" in (tmp_path / "soma-broken" / "failure.txt").read_text()
    assert standing(items[2], out=tmp_path).state == "done"


def test_the_only_item_says_itself_what_it_wants(tiny_data: Path, tmp_path: Path) -> None:
    def wants_more(place: Workplace) -> Findings:
        return Findings([], str(place.finished_run("n4", made_by="soma-fig4")), "agrees", [])

    with pytest.raises(UserError, match="thinwire reproduce soma-fig4 --scale smoke"):
        reproduce([item(wants_more)], request(tiny_data, tmp_path))


def test_items_are_found_by_name_and_by_what_they_cover() -> None:
    toy = item(lambda place: squares(place, []), covers=("soma-table8",))
    for name in ("soma-toy", "toy", "soma-table8", "table8"):
        assert find_item(name, among=[toy]) is toy
    with pytest.raises(UserError, match="did you mean 'soma-table8'"):
        find_item("soma-table9", among=[toy])
