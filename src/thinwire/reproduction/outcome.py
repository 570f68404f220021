"""What does an item leave behind?  ``outcome.json`` with the verdict, ``rows.csv`` and ``figure.png``; its state."""

import csv
import io
from pathlib import Path
from typing import Any, Literal, NamedTuple

from thinwire import __version__
from thinwire.base.files import atomic_write, read_json, write_json
from thinwire.report.figures import save_png
from thinwire.reproduction.figure import draw
from thinwire.reproduction.item import Findings, Item, Scale
from thinwire.reproduction.workplace import Workplace

OUTCOME, ROWS, FIGURE = "outcome.json", "rows.csv", "figure.png"
State = Literal["missing", "partial", "done"]


class Standing(NamedTuple):
    """How far an item is in a folder; ``outcome`` is empty until it is done."""

    state: State
    outcome: dict[str, Any]


def keep_findings(place: Workplace, item: Item, findings: Findings) -> dict[str, Any]:
    """Write an item's three files, the verdict last: where it is, the others are whole. Returns the outcome.

    Raises:
        UserError: matplotlib is not installed.
    """
    atomic_write(place.folder / ROWS, csv_bytes(findings.rows))
    if findings.panels:
        save_png(draw(findings.panels), place.folder / FIGURE)
    outcome = {
        "item": item.name,
        "covers": list(item.covers),
        "scale": place.scale,
        "shows": item.shows,
        "paper": item.paper,
        "rule": item.rule,
        "ours": findings.ours,
        "verdict": findings.verdict,
        "notes": findings.notes,
        "has_figure": bool(findings.panels),
        "data_fingerprint": place.data_fingerprint,
        "version": __version__,
    }
    write_json(place.folder / OUTCOME, outcome)
    return outcome


def standing(item: Item, *, out: Path) -> Standing:
    """Of an item in the folder of all items; raises UserError where its outcome is damaged."""
    folder = out / item.name
    if (folder / OUTCOME).is_file():
        return Standing("done", read_json(folder / OUTCOME))
    return Standing("partial" if any(folder.glob("*/*.json")) else "missing", {})


def list_entry(item: Item, *, out: Path, scale: Scale) -> dict[str, Any]:
    """What ``thinwire reproduce --list --json`` says of an item."""
    state, outcome = standing(item, out=out)
    return {
        "item": item.name,
        "scale": scale,
        "state": state,
        "verdict": outcome.get("verdict"),
        "ours": outcome.get("ours"),
        "paper": item.paper,
        "rule": item.rule,
    }


def csv_bytes(rows: list[dict[str, Any]]) -> bytes:
    """Rows as CSV; columns in the order in which they first appear, empty where a row has no such key."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
