"""``thinwire reproduce [ITEM ...]``: figures and tables of the paper, found again, ours beside the paper's."""

import shlex
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.cli.program import program
from thinwire.cli.terminal import Terminal, print_columns, print_json, print_table
from thinwire.config.parse import parse
from thinwire.reproduction.item import Item, Scale

DEFAULT_OUT = Path("runs/reproduction")


@dataclass(frozen=True)
class Arguments:
    """Find figures and tables of the paper again: a CSV, a figure and a verdict each. A second call resumes."""

    items: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which; by default all."""
    scale: Scale = "smoke"
    """smoke: seconds an item; cpu: minutes on two cores; paper: the published setting, for GPUs."""
    data: Path | None = None
    """A prepared data folder; by default the text that every Python installation carries, prepared once."""
    texts: Path | None = None
    """A folder with further texts that some items score."""
    out: Path | None = None
    """Where everything goes; by default runs/reproduction/SCALE."""
    threads: int = 0
    """For arithmetic; 0 is one a core."""
    list: bool = False
    """Only say how far each item is, and what it costs."""
    json: bool = False
    """Print one JSON list: of what was done, even where other items failed."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire reproduce")
    if arguments.threads < 0:
        raise UserError("a number of threads cannot be negative", where="--threads", fix="give 1 or more, or 0")
    from thinwire.reproduction.registry import all_items, find_item

    every = all_items()
    asked = {item.name: item for item in (find_item(name, among=every) for name in arguments.items)}
    chosen = list(asked.values()) or list(every)
    out = arguments.out or DEFAULT_OUT / arguments.scale
    if arguments.list:
        _list(chosen, out=out, arguments=arguments)
        return
    from thinwire.reproduction.reproduce import ItemsFailedError, Request, reproduce

    terminal, failed = Terminal(), None
    with terminal.progress() as progress:
        request = Request(
            scale=arguments.scale,
            out=out,
            data=arguments.data,
            texts=arguments.texts,
            threads=arguments.threads,
            command=shlex.join([*program(), "reproduce", *argv]),
            voice=Voice(progress, terminal.say),
        )
        try:
            outcomes = reproduce(chosen, request)
        except ItemsFailedError as error:
            outcomes, failed = error.outcomes, error
    if arguments.json:
        print_json(outcomes)
    else:
        for outcome in outcomes:
            _print(outcome, folder=out / outcome["item"])
    if failed:
        raise failed


def _print(outcome: dict[str, Any], *, folder: Path) -> None:
    """Long texts in lines that fit the terminal; the folder whole, so that it can be copied."""
    names = ("item", "verdict", "ours", "paper", "rule", "notes")
    width = max(shutil.get_terminal_size().columns - max(map(len, names)) - 4, 20)
    rows: list[tuple[str, str]] = []
    for name in names:
        lines = textwrap.wrap(outcome[name], width, break_long_words=False, break_on_hyphens=False)
        rows += [(name if place == 0 else "", line) for place, line in enumerate(lines)]
    print_table([*rows, ("files", str(folder))])
    sys.stdout.write("\n")


def _list(items: list[Item], *, out: Path, arguments: Arguments) -> None:
    from thinwire.data.corpus import read_manifest
    from thinwire.reproduction.folder import settled_text
    from thinwire.reproduction.outcome import list_entry

    text = settled_text(out, scale=arguments.scale)
    if arguments.data:
        text = read_manifest(arguments.data)["fingerprint"]
    entries = [list_entry(item, out=out, scale=arguments.scale, text=text) for item in items]
    if arguments.json:
        print_json(entries)
        return
    lines = [
        [_names(item), entry["state"], _cost(item, arguments.scale), entry["verdict"] or "-"]
        for item, entry in zip(items, entries, strict=True)
    ]
    print_columns([f"scale {arguments.scale}", "state", "on two cores", "verdict"], lines)
    rows = [("together", "less than their sum: items share runs")] if len(items) > 1 else []
    if not out.exists():
        rows.append(("nothing is there yet", str(out)))
    waiting = [entry["item"] for entry in entries if entry["state"] != "done"]
    if waiting:
        names = waiting if len(waiting) < len(items) else list(arguments.items)
        rows.append(("to make what is missing", _command(names, arguments)))
        if arguments.scale == "paper" and not arguments.data:
            rows.append(("DATA", "a prepared folder, which the scale paper needs (thinwire prepare)"))
    if rows:
        sys.stdout.write("\n")
        print_table(rows)


def _command(names: list[str], arguments: Arguments) -> str:
    """What makes these items where the list looked for them."""
    options: dict[str, object] = {"--scale": arguments.scale}
    if arguments.data or arguments.scale == "paper":
        options["--data"] = arguments.data or "DATA"
    if arguments.texts:
        options["--texts"] = arguments.texts
    if arguments.out:
        options["--out"] = arguments.out
    if arguments.threads:
        options["--threads"] = arguments.threads
    words = [str(word) for option in options.items() for word in option]
    return shlex.join([*program(), "reproduce", *names, *words])


def _names(item: Item) -> str:
    covers = [name.removeprefix("soma-") for name in item.covers]
    return item.name + (f" ({', '.join(covers)})" if covers else "")


def _cost(item: Item, scale: Scale) -> str:
    """In round numbers, as it is an estimate."""
    if scale == "paper":
        return "for GPUs"
    minutes = item.minutes[scale]
    if minutes < 0.9:
        return f"about {max(round(6 * minutes), 1) * 10} s"
    return f"about {round(minutes)} min" if minutes < 90 else f"about {round(minutes / 60)} h"
