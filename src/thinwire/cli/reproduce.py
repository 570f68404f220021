"""``thinwire reproduce [ITEM ...]``: figures and tables of the paper, found again, ours beside the paper's."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.base.units import format_seconds
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
    """Print one JSON list."""


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
    from thinwire.reproduction.reproduce import Request, reproduce

    terminal = Terminal()
    with terminal.progress() as progress:
        request = Request(
            scale=arguments.scale,
            out=out,
            data=arguments.data,
            texts=arguments.texts,
            threads=arguments.threads,
            command=shlex.join([program(), "reproduce", *argv]),
            voice=Voice(progress, terminal.say),
        )
        outcomes = reproduce(chosen, request)
    if arguments.json:
        print_json(outcomes)
        return
    for outcome in outcomes:
        _print(outcome, folder=out / outcome["item"])


def _print(outcome: dict[str, Any], *, folder: Path) -> None:
    rows = [(key, outcome[key]) for key in ("item", "verdict", "ours", "paper", "rule", "notes") if outcome[key]]
    print_table([*rows, ("files", str(folder))])
    sys.stdout.write("\n")


def _list(items: list[Item], *, out: Path, arguments: Arguments) -> None:
    from thinwire.reproduction.outcome import list_entry

    entries = [list_entry(item, out=out, scale=arguments.scale) for item in items]
    if arguments.json:
        print_json(entries)
        return
    lines = [
        [_names(item), entry["state"], _cost(item, arguments.scale), entry["verdict"] or "-"]
        for item, entry in zip(items, entries, strict=True)
    ]
    print_columns([f"scale {arguments.scale}", "state", "on two cores", "verdict"], lines)
    waiting = [entry["item"] for entry in entries if entry["state"] != "done"]
    if waiting:
        where = ["--out", str(arguments.out)] if arguments.out else []
        names = waiting if len(waiting) < len(items) else arguments.items
        command = shlex.join([program(), "reproduce", *names, "--scale", arguments.scale, *where])
        sys.stdout.write("\n")
        print_table([("to make what is missing", command)])


def _names(item: Item) -> str:
    covers = [name.removeprefix("soma-") for name in item.covers]
    return item.name + (f" ({', '.join(covers)})" if covers else "")


def _cost(item: Item, scale: Scale) -> str:
    return f"about {format_seconds(60 * item.minutes[scale])}" if scale != "paper" else "for GPUs"
