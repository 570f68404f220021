"""``thinwire prepare SOURCE... --out DATA``"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from thinwire.base.units import format_bytes, format_seconds
from thinwire.cli.terminal import Terminal, print_json, print_table
from thinwire.config.parse import parse
from thinwire.data.prepare import PrepareOptions, prepare


@dataclass(frozen=True)
class Arguments:
    """Turn text into a data folder: byte shards, splits by document, a screen against overlap, a manifest."""

    sources: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders (.txt .md .jsonl .jsonl.gz .jsonl.zst .parquet), hf:NAME[:SUBSET], or the word python."""
    out: Path
    """The data folder to make."""
    options: Annotated[PrepareOptions, tyro.conf.arg(name="")] = field(default_factory=PrepareOptions)
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire prepare")
    terminal = Terminal()
    with terminal.progress() as progress:
        summary = prepare(arguments.sources, out=arguments.out, options=arguments.options, progress=progress)
    if arguments.json:
        print_json(summary.manifest)
        return
    splits = summary.manifest["splits"]
    rows = [
        (name, f"{split['num_documents']:,} documents, {format_bytes(split['num_bytes'])}")
        for name, split in splits.items()
    ]
    print_table([*rows, ("data folder", f"{summary.folder} ({summary.state} in {format_seconds(summary.seconds)})")])
