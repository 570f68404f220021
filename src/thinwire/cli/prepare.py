"""``thinwire prepare SOURCE... --out DATA``"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from thinwire.base.units import format_bytes, format_seconds
from thinwire.cli.terminal import Terminal, print_json, print_table
from thinwire.config.parse import parse
from thinwire.data.overlap import REASONS
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
    for warning in empty_splits(summary.manifest):
        terminal.say(warning)
    if arguments.json:
        print_json(summary.manifest)
        return
    print_table(
        [
            *table_rows(summary.manifest),
            ("data folder", f"{summary.folder} ({summary.state} in {format_seconds(summary.seconds)})"),
        ]
    )


def table_rows(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The size of every split, and what the screen left out of it (appendix L)."""
    rows = []
    tokens = manifest.get("tokenizer", {}).get("splits", {})
    for name, split in manifest["splits"].items():
        size = f"{split['num_documents']:,} documents, {format_bytes(split['num_bytes'])}"
        rows.append((name, size + (f", {tokens[name]['num_tokens']:,} tokens" if tokens else "")))
        if name in manifest["screen"]["excluded"]:
            rows.append((f"left out of {name}", left_out(manifest["screen"]["excluded"][name])))
    return rows


def left_out(counts: dict[str, int]) -> str:
    reasons = ", ".join(f"{count:,} {REASONS[reason]}" for reason, count in counts.items() if count)
    return f"{sum(counts.values()):,} documents" + (f": {reasons}" if reasons else "")


def empty_splits(manifest: dict[str, Any]) -> list[str]:
    """A warning for every split that was wanted and holds nothing."""
    warnings = []
    for name, counts in manifest["screen"]["excluded"].items():
        fraction = manifest["options"][f"{name}_fraction"]
        if fraction == 0 or manifest["splits"][name]["num_documents"]:
            continue
        reason = f"there are too few for --{name}-fraction {fraction:g}; give more text or a larger fraction"
        if any(counts.values()):
            reason = f"the screen left out {left_out(counts)}; give text that repeats itself less, or a larger fraction"
        warnings.append(f"warning: {name}: 0 documents: {reason}")
    return warnings
