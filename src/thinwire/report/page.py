"""Where does a person see what a run did?  One self-contained HTML page, with CSV tables and PNG figures beside it.

The page asks nothing of the network: style and figures are inline, and its content policy forbids everything else.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from thinwire import __version__
from thinwire.base.errors import UserError
from thinwire.base.files import atomic_write
from thinwire.report.collect import collect_runs
from thinwire.report.comparable import require_comparable
from thinwire.report.comparison import comparison_section
from thinwire.report.curves import comparison_figure, curves_figure
from thinwire.report.figures import clusters_figure, matrix_figure, new_figure, save_png, scores_figure
from thinwire.report.markup import attribute, paragraph, text
from thinwire.report.measurement_section import measurement_drawings
from thinwire.report.records import PRESET_NOT_NAMED, Run
from thinwire.report.sections import run_sections
from thinwire.report.subspaces.comparison import comparison_section as subspaces_comparison
from thinwire.report.subspaces.figures import named_figures
from thinwire.report.subspaces.records import SubspacesRun
from thinwire.report.subspaces.sections import run_sections as subspaces_sections
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
        runs: one or several run folders of either method, finished or in progress.
        out: a folder; it is made, and files of an earlier report in it are replaced.

    Raises:
        UserError: a folder is no run, two runs do not compare, matplotlib is not installed, or ``out`` cannot be
            written.
    """
    new_figure(1.0)  # a missing matplotlib is found before anything is written
    collected = collect_runs(runs)
    require_comparable([run for run in collected if isinstance(run, Run)])
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


def render_page(runs: Sequence[Run | SubspacesRun]) -> str:
    """The whole page as text."""
    title = f"Thinwire: {_name_and_preset(runs[0]) if len(runs) == 1 else f'{len(runs)} runs'}"
    methods = _methods(runs)
    if len(methods) == 1:
        body = _method_body(methods[0], runs, level=2)
    else:
        body = "".join(
            f"<article><h2>{text(method.title)}</h2>\n{paragraph(method.intro, style='quiet')}"
            f"{_method_body(method, runs, level=3)}</article>\n"
            for method in methods
        )
    intro = methods[0].intro if len(methods) == 1 else "Two methods, a part each; their losses have different units."
    style = files("thinwire.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(attribute(title))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{text(title)}</h1>\n"
        f'<p class="quiet">{text(intro)} Lower is better. Written by thinwire {text(__version__)}.</p></header>\n'
        f"<main>\n{body}</main>\n</body>\n</html>\n"
    )


class _Method(NamedTuple):
    """The runs of one method, and what the page says about it."""

    kind: type[Run] | type[SubspacesRun]
    title: str
    intro: str


METHODS = (
    _Method(
        Run,
        "Experts trained with forward passes (SOMA)",
        "A language model of independently trained experts, trained with forward passes only. Losses are in nats per "
        "byte.",
    ),
    _Method(
        SubspacesRun,
        "A Llama over thin wires (subspaces)",
        "A Llama whose sequences lie on several ranks, which exchange keys and values. Losses are in nats per token.",
    ),
)


def _methods(runs: Sequence[Run | SubspacesRun]) -> list[_Method]:
    return [method for method in METHODS if any(isinstance(run, method.kind) for run in runs)]


def _method_body(method: _Method, runs: Sequence[Run | SubspacesRun], *, level: int) -> str:
    """One run's sections, or the runs of one method beside each other and then one after the other."""
    here = [(f"run-{index}", run) for index, run in enumerate(runs) if isinstance(run, method.kind)]
    if len(here) == 1:
        name, run = here[0]
        named = paragraph(f"Run {_name_and_preset(run)}.") if len(runs) > 1 else ""
        return named + _sections(run, name, level)
    return _comparison([run for _, run in here], level) + "".join(
        f"<article><h{level}>Run {text(run.name)}</h{level}>\n{_sections(run, name, level + 1)}</article>\n"
        for name, run in here
    )


def _sections(run: Run | SubspacesRun, name: str, level: int) -> str:
    write = run_sections if isinstance(run, Run) else subspaces_sections
    return write(run, name=name, level=level)  # type: ignore[arg-type]


def _comparison(runs: Sequence[Run | SubspacesRun], level: int) -> str:
    soma = [run for run in runs if isinstance(run, Run)]
    if soma:
        return comparison_section(soma, level=level)
    return subspaces_comparison([run for run in runs if isinstance(run, SubspacesRun)], level=level)


def _name_and_preset(run: Run | SubspacesRun) -> str:
    return run.name if run.preset in (run.name, PRESET_NOT_NAMED) else f"{run.name} ({run.preset})"


def _write_figures(runs: Sequence[Run | SubspacesRun], folder: Path) -> tuple[Path, ...]:
    """Every figure that has data; with several runs, each name begins with its run's."""
    prefixes = ["" if len(runs) == 1 else f"{index}-{file_name(run.name)}-" for index, run in enumerate(runs)]
    soma = [(run, prefix) for run, prefix in zip(runs, prefixes, strict=True) if isinstance(run, Run)]
    llamas = [(run, prefix) for run, prefix in zip(runs, prefixes, strict=True) if isinstance(run, SubspacesRun)]
    drawn = list(_soma_figures(soma))
    drawn += named_figures(
        [run for run, _ in llamas],
        prefixes=[prefix for _, prefix in llamas],
        comparison="comparison" if not soma else "subspaces-comparison",
    )
    paths = []
    for name, draw in drawn:
        save_png(draw(), folder / f"{name}.png")
        paths.append(folder / f"{name}.png")
    return tuple(paths)


def _soma_figures(runs: Sequence[tuple[Run, str]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, how to draw it)."""
    if len(runs) > 1:
        together = [run for run, _ in runs]
        yield "comparison", partial(comparison_figure, together)
        yield "comparison-log", partial(comparison_figure, together, axis="log")
    for run, start in runs:
        if any(job.validation for job in (run.seed_run, *run.experts)):
            yield f"{start}curves", partial(curves_figure, run)
            yield f"{start}curves-log", partial(curves_figure, run, axis="log")
        if run.clusters is not None:
            yield f"{start}clusters", partial(clusters_figure, run.clusters)
        if run.matrix is not None:
            yield f"{start}matrix", partial(matrix_figure, run.matrix)
        yield from ((f"{start}{name}", draw) for name, draw in measurement_drawings(run.measurements))
        for number, score in enumerate(run.scores):
            yield f"{start}scores{'' if number == 0 else f'-{number}'}", partial(scores_figure, score)


def file_name(name: str) -> str:
    """Only letters, digits, dots, hyphens and underscores, whatever the run is called."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60]
