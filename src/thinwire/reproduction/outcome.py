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
State = Literal["missing", "partial", "outdated", "done"]
"""missing: never begun; partial: begun; outdated: done by another version, from another text, or by another rule."""


class Standing(NamedTuple):
    """How far an item is in a folder; ``outcome`` is empty until it has been done once."""

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


def standing(item: Item, *, out: Path, text: str | None) -> Standing:
    """Of an item in the folder of all items.

    Its own folder is made when work on it begins, whatever it leaves there and in the shared folders.

    Args:
        text: fingerprint of the text that it should have learned from; None where that is not known.

    Raises:
        UserError: its outcome is damaged.
    """
    folder = out / item.name
    if not (folder / OUTCOME).is_file():
        return Standing("partial" if folder.is_dir() else "missing", {})
    outcome = read_json(folder / OUTCOME)
    wanted = (__version__, text or outcome.get("data_fingerprint"), item.rule)
    is_current = (outcome.get("version"), outcome.get("data_fingerprint"), outcome.get("rule")) == wanted
    return Standing("done" if is_current else "outdated", outcome)


def list_entry(item: Item, *, out: Path, scale: Scale, text: str | None = None) -> dict[str, Any]:
    """What ``thinwire reproduce --list --json`` says of an item; ``text`` as for ``standing``."""
    state, outcome = standing(item, out=out, text=text)
    return {
        "item": item.name,
        "scale": scale,
        "state": state,
        "verdict": outcome.get("verdict"),
        "ours": outcome.get("ours"),
        "paper": item.paper,
        "rule": item.rule,
        "minutes": item.minutes[scale],
    }


def csv_bytes(rows: list[dict[str, Any]]) -> bytes:
    """Rows as CSV; columns in the order in which they first appear, empty where a row has no such key."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
