"""``thinwire report RUN... --out DIR``"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from thinwire.cli.terminal import print_json, print_table
from thinwire.config.parse import parse
from thinwire.report.page import write_report


@dataclass(frozen=True)
class Arguments:
    """One self-contained HTML page about runs, with its tables as CSV and its figures as PNG."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path
    """The folder to write into."""
    json: bool = False
    """Print one JSON object: the files written."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire report")
    files = write_report(arguments.runs, out=arguments.out)
    if arguments.json:
        csvs, pngs = ([str(path) for path in paths] for paths in (files.csvs, files.pngs))
        print_json({"html": str(files.html), "csvs": csvs, "pngs": pngs})
        return
    print_table(
        [("page", str(files.html)), ("tables", f"{len(files.csvs)} CSV"), ("figures", f"{len(files.pngs)} PNG")]
    )
