"""How does ours stand beside the paper's?  ``docs/reproduction.md``, from the outcomes that are kept in ``results``.

``python docs/build.py`` writes it. ``take`` copies what a reproduction found, without the runs it was found by.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from thinwire.base.errors import UserError
from thinwire.base.files import read_json
from thinwire.reproduction.item import Scale, Verdict

FILES = ("outcome.json", "rows.csv", "figure.png")
HEAD = """# Reproduction

Ours beside the paper's, item by item. A verdict is computed from the numbers by the rule that stands beside it.
Written by `make docs` from the outcomes in `results/reproduction`; `thinwire reproduce ITEM --scale SCALE` makes one.
"""


def take(out: Path, *, into: Path) -> list[str]:
    """Copy every finished item's outcome, rows and figure from a reproduction's folder; returns their names.

    Raises:
        UserError: ``out`` has no finished item.
    """
    taken = []
    for outcome in sorted(out.glob("*/outcome.json")):
        name = outcome.parent.name
        (into / name).mkdir(parents=True, exist_ok=True)
        for file in FILES:
            source = outcome.with_name(file)
            if source.is_file():
                shutil.copyfile(source, into / name / file)
            else:
                (into / name / file).unlink(missing_ok=True)
        taken.append(name)
    if not taken:
        fix = "give the --out of a 'thinwire reproduce' that has finished an item"
        raise UserError("there is no finished item", where=str(out), fix=fix)
    return taken


def page(results: Path, *, link: str, order: Sequence[str] = ()) -> str:
    """Markdown: a table of verdicts, then every item with its figure.

    Args:
        results: folder with SCALE/ITEM/outcome.json.
        link: how the page refers to that folder, e.g. ``"../results/reproduction"``.
        order: names of items, those of the paper's order first; the others follow by name.
    """
    lines = [HEAD]
    for scale in get_args(Scale):
        outcomes = _outcomes(results / scale, order=order)
        if not outcomes:
            continue
        lines += [f"## Scale {scale}", "", _summary(outcomes), ""]
        lines += ["| item | verdict | ours | paper |", "|---|---|---|---|"]
        lines += [
            f"| [{o['item']}](#{o['item']}) | {o['verdict']} | {_cell(o['ours'])} | {_cell(o['paper'])} |"
            for o in outcomes
        ]
        lines.append("")
        for outcome in outcomes:
            lines += _section(outcome, folder=f"{link}/{scale}/{outcome['item']}")
    return "\n".join(lines).rstrip() + "\n"


def _outcomes(folder: Path, *, order: Sequence[str]) -> list[dict[str, Any]]:
    found = [read_json(path) for path in folder.glob("*/outcome.json")]
    places = {name: place for place, name in enumerate(order)}
    return sorted(found, key=lambda outcome: (places.get(outcome["item"], len(places)), outcome["item"]))


def _summary(outcomes: Sequence[dict[str, Any]]) -> str:
    verdicts = [outcome["verdict"] for outcome in outcomes]
    return ", ".join(f"{verdicts.count(v)} {v}" for v in get_args(Verdict) if v in verdicts) + "."


def _section(outcome: dict[str, Any], *, folder: str) -> list[str]:
    covers = f" (also {', '.join(outcome['covers'])})" if outcome["covers"] else ""
    lines = [f"### {outcome['item']}", "", f"{outcome['shows']}{covers}.", ""]
    lines += [f"- paper: {outcome['paper']}", f"- ours: {outcome['ours']}", f"- rule: {outcome['rule']}"]
    lines += [f"- verdict: **{outcome['verdict']}**", f"- numbers: [rows.csv]({folder}/rows.csv)"]
    if outcome["notes"]:
        lines.append(f"- notes: {outcome['notes']}")
    lines.append("")
    if outcome["has_figure"]:
        lines += [f"![{outcome['item']}]({folder}/figure.png)", ""]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
