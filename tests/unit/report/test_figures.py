"""Do the figures show what they claim, legibly, and without touching matplotlib's global state?"""

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import UserError
from thinwire.report.collect import collect_runs
from thinwire.report.curve_section import legend
from thinwire.report.curves import comparison_figure, curves_figure, run_lines
from thinwire.report.figures import clusters_figure, label, matrix_figure, new_figure, save_png, scores_figure
from thinwire.report.records import Clusters, LossMatrix
from thinwire.report.svg import inline_svg

MakeRun = Callable[..., Path]


def square(size: int) -> LossMatrix:
    losses = tuple(tuple(2.0 + 0.01 * abs(e - c) for c in range(size)) for e in range(size))
    return LossMatrix(losses=losses, windows_per_cluster=())


def written(figure: Any) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_matrix_is_annotated_only_where_there_is_room() -> None:
    assert len(written(matrix_figure(square(4)))) == 16
    assert written(matrix_figure(square(4)))[1] == "2.010"
    assert written(matrix_figure(square(64))) == []


@pytest.mark.parametrize("size", [4, 64])
def test_matrix_marks_own_and_best(size: int) -> None:
    losses = [list(row) for row in square(size).losses]
    losses[0][size - 1] = 1.0
    figure = matrix_figure(LossMatrix(losses=tuple(map(tuple, losses)), windows_per_cluster=()))
    axes = figure.axes[0]
    assert len(axes.patches) == size
    (dots,) = axes.lines
    assert list(dots.get_xdata()) == list(range(size))
    assert [round(y + 0.3 * (size == 4)) for y in dots.get_ydata()] == [*range(size - 1), 0]


def test_curves_share_the_loss_axis_and_shift_the_experts(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run(num_experts=2)])
    panels = curves_figure(run).axes
    assert [panel.get_xlabel() for panel in panels] == [
        "updates (per model)",
        "byte-forwards (billions, per model)",
        "device time (hours, per model)",
    ]
    assert len({panel.get_ylim() for panel in panels}) == 1
    seed, first, *_ = panels[0].lines
    assert (seed.get_xdata()[0], seed.get_xdata()[-1]) == (0, 1000)
    assert (first.get_xdata()[0], first.get_xdata()[-1]) == (1000, 3000)
    levels = sorted(float(line.get_ydata()[0]) for line in panels[0].lines if len(line.get_xdata()) == 2)
    assert levels == pytest.approx([2.204, 2.447, 3.127], abs=1e-9)


@pytest.mark.parametrize("num_experts", [2, 8, 12])
def test_legend_lies_below_the_panels(make_run: MakeRun, num_experts: int) -> None:
    (run,) = collect_runs([make_run(num_experts=num_experts)])
    figure = curves_figure(run)
    figure.draw_without_rendering()
    top = figure.legends[0].get_window_extent().y1
    assert all(panel.get_tightbbox().y0 >= top - 1 for panel in figure.axes)


def test_reference_lines_are_dark_enough_to_be_seen_in_the_legend(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run(num_experts=2)])
    levels = [line for line in run_lines(run) if line.level is not None]
    assert [line.name for line in levels] == ["ensemble, test", "byte unigram", "byte bigram"]
    for line in levels:
        assert max(int(line.colour[start : start + 2], 16) for start in (1, 3, 5)) <= 0x40
        (dashes,) = re.findall(r'stroke-width="([\d.]+)" stroke-dasharray="(\d+) (\d+)', legend([line]))
        width, drawn, gap = map(float, dashes)
        assert width * drawn / (drawn + gap) >= 0.75


def test_comparison_ends_at_the_test_loss(make_run: MakeRun) -> None:
    runs = collect_runs([make_run("a"), make_run("b", level=0.5)])
    (panel,) = comparison_figure(runs, costs=("byte_forwards",)).axes
    stars = [line for line in panel.lines if line.get_marker() == "*" and len(line.get_xdata()) == 1]
    assert [float(star.get_ydata()[0]) for star in stars] == pytest.approx([2.204, 2.704], abs=1e-9)
    assert panel.get_ylim()[1] > 2.704


def test_scores_show_every_system_with_its_value(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run()])
    figure = scores_figure(run.scores[0])
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names == ["ensemble", "seed run", "4 single experts", "xz", "byte bigram", "byte unigram"]
    assert written(figure)[0] == "2.204 [2.193, 2.216]"


def test_text_is_never_a_formula_and_unknown_glyphs_are_left_out(tmp_path: Path) -> None:
    clusters = Clusters(sizes=(3, 5), top_terms=(("$\\frac{", "日本語", "a\nb"), ()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_png(clusters_figure(clusters), tmp_path / "clusters.png")
        svg = inline_svg(clusters_figure(clusters), name="c", description='"<x>"')
    assert svg.startswith('<svg role="img" aria-label="&quot;&lt;x&gt;&quot;"')
    assert label("日本 x") == " x"
    assert len(label("x" * 100, limit=40)) == 40


def test_svg_of_two_figures_shares_no_id_and_is_reproducible() -> None:
    first = inline_svg(matrix_figure(square(3)), name="one", description="")
    again = inline_svg(matrix_figure(square(3)), name="one", description="")
    second = inline_svg(matrix_figure(square(3)), name="two", description="")
    assert first == again
    assert first.replace("one-", "two-") == second
    for forbidden in ("http", "<style", "<!--", "<?xml", "<metadata", "xmlns"):
        assert forbidden not in first


def test_pyplot_is_never_imported(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run(num_experts=2)])
    before = "matplotlib.pyplot" in sys.modules
    curves_figure(run).draw_without_rendering()
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_absent_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="matplotlib") as caught:
        new_figure(1.0)
    assert "thinwire[plots]" in caught.value.fix
