"""Where does a person see what a run did?  One self-contained HTML page, with CSV tables and PNG figures beside it.

The page asks nothing of the network: style and figures are inline, and its content policy forbids everything else.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from thinwire import __version__
from thinwire.base.errors import UserError
from thinwire.base.files import atomic_write
from thinwire.report.collect import collect_runs
from thinwire.report.curve_section import comparison_section
from thinwire.report.curves import comparison_figure, curves_figure
from thinwire.report.figures import clusters_figure, matrix_figure, new_figure, save_png, scores_figure
from thinwire.report.markup import attribute, text
from thinwire.report.records import PRESET_NOT_NAMED, Run
from thinwire.report.sections import run_sections
from thinwire.report.tables import write_tables

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""``unsafe-inline`` is for style alone: matplotlib's SVG carries style attributes. ``data:`` is for the heat map."""


@dataclass(frozen=True)
class ReportFiles:
    html: Path
    csvs: tuple[Path, ...]
    pngs: tuple[Path, ...]


def write_report(runs: Sequence[Path], *, out: Path) -> ReportFiles:
    """Write ``out/report.html``, ``out/tables/*.csv`` and ``out/figures/*.png``.

    Args:
        runs: one or several SOMA run folders, finished or in progress.
        out: a folder; it is made, and files of an earlier report in it are replaced.

    Raises:
        UserError: a folder is no run, matplotlib is not installed, or ``out`` cannot be written.
    """
    new_figure(1.0)  # a missing matplotlib is found before anything is written
    collected = collect_runs(runs)
    page = render_page(collected)
    try:
        out.mkdir(parents=True, exist_ok=True)
        csvs = write_tables(collected, folder=out / "tables")
        pngs = _write_figures(collected, out / "figures")
        atomic_write(out / "report.html", page.encode())
    except OSError as error:
        fix = "give a folder that can be written, on a disk with free space"
        raise UserError(f"the report cannot be written: {error}", where=str(out), fix=fix) from error
    return ReportFiles(html=out / "report.html", csvs=csvs, pngs=pngs)


def render_page(runs: Sequence[Run]) -> str:
    """The whole page as text."""
    if len(runs) == 1:
        title = f"Thinwire: {_name_and_preset(runs[0])}"
        body = run_sections(runs[0], name="run-0", level=2)
    else:
        title = f"Thinwire: {len(runs)} runs"
        body = comparison_section(runs) + "".join(
            f"<article><h2>Run {text(run.name)}</h2>\n{run_sections(run, name=f'run-{index}', level=3)}</article>\n"
            for index, run in enumerate(runs)
        )
    style = files("thinwire.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(attribute(title))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{text(title)}</h1>\n"
        '<p class="quiet">A language model of independently trained experts, trained with forward passes only. '
        f"Losses are in nats per byte; lower is better. Written by thinwire {text(__version__)}.</p></header>\n"
        f"<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _name_and_preset(run: Run) -> str:
    return run.name if run.preset in (run.name, PRESET_NOT_NAMED) else f"{run.name} ({run.preset})"


def _write_figures(runs: Sequence[Run], folder: Path) -> tuple[Path, ...]:
    """Every figure that has data; with several runs, each name begins with its run's."""
    figures = {}
    if len(runs) > 1:
        figures["comparison"] = comparison_figure(runs)
    for index, run in enumerate(runs):
        start = "" if len(runs) == 1 else f"{index}-{file_name(run.name)}-"
        if any(job.validation for job in (run.seed_run, *run.experts)):
            figures[f"{start}curves"] = curves_figure(run)
        if run.clusters is not None:
            figures[f"{start}clusters"] = clusters_figure(run.clusters)
        if run.matrix is not None:
            figures[f"{start}matrix"] = matrix_figure(run.matrix)
        for number, score in enumerate(run.scores):
            figures[f"{start}scores{'' if number == 0 else f'-{number}'}"] = scores_figure(score)
    paths = []
    for name, drawn in figures.items():
        save_png(drawn, folder / f"{name}.png")
        paths.append(folder / f"{name}.png")
    return tuple(paths)


def file_name(name: str) -> str:
    """Only letters, digits, dots, hyphens and underscores, whatever the run is called."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60]
