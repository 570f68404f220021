"""How is a measured speed kept?  Rows with commit and machine, for people and for programs.

``--record`` appends to ``bench/results/<machine>.csv``: one line a measure, in the order measured.
"""

import argparse
import csv
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("date", "commit", "bench", "case", "implementation", "measure", "value")
NAMING_KEYS = ("case", "implementation")


def machine_name() -> str:
    """A file name: the processor's model and the number of cores this process may use."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        model = named.group(1) if named else model
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"{slug}-{len(os.sched_getaffinity(0))}-cores"


def commit() -> str:
    """The commit measured, with ``+`` where the tree differs from it; ``unknown`` outside a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "..", ":!results")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def record(rows: Sequence[Mapping[str, Any]], *, bench: str, machine: str | None = None) -> Path:
    """Append every number of every row to the machine's file; returns its path."""
    path = RESULTS / f"{machine or machine_name()}.csv"
    path.parent.mkdir(exist_ok=True)
    is_new = not path.exists()
    stamp = (datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"), commit(), bench)
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        for row in rows:
            names = [row.get(key, "") for key in NAMING_KEYS]
            for measure, value in row.items():
                if measure not in NAMING_KEYS:
                    writer.writerow([*stamp, *names, measure, f"{value:.6g}" if isinstance(value, float) else value])
    return path


def parser_of(program: str, description: str, *, repeats: int = 3) -> argparse.ArgumentParser:
    """With what every benchmark takes; ``repeats`` is the default."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON list, one object a case")
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results/<machine>.csv")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"timed rounds a case (default {repeats})")
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Ends the program with status 2 where there is nothing to repeat."""
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


def publish(
    rows: Iterable[Mapping[str, Any]],
    *,
    arguments: argparse.Namespace,
    bench: str,
    as_text: Callable[[Mapping[str, Any]], str],
) -> None:
    """Print rows as they are measured, or as JSON at the end; record them where that was asked for."""
    measured = []
    for row in rows:
        measured.append(row)
        if not arguments.json:
            print(as_text(row), flush=True)
    if arguments.record:
        record(measured, bench=bench)
    if arguments.json:
        print(json.dumps(measured, indent=2))
