"""What does an item's figure look like?  Its panels side by side, one colour and marker a name, predictions dashed.

Drawn as the report's figures are (``report/figures.py``); matplotlib is an optional extra, imported when one is drawn.
"""

from collections.abc import Sequence
from math import log2
from typing import Any

from thinwire.report.figures import FONT_POINTS, INK, label, new_figure, style_axes
from thinwire.reproduction.item import Panel, Series

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#1b1b1b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PANEL_WIDTH_INCHES, PANEL_HEIGHT_INCHES = 3.7, 2.9
LEGEND_ROW_INCHES = 0.24
PANELS_A_ROW = 3


MARKED_POINTS = 24
"""A line of more points is drawn without markers, a cloud of more with small ones."""


def draw(panels: Sequence[Panel]) -> Any:
    """A matplotlib ``Figure`` of one or more panels, with one legend for all of them.

    Raises:
        UserError: matplotlib is not installed.
    """
    columns = min(len(panels), PANELS_A_ROW)
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    legend_columns = min(len(names), 2 * columns)
    legend_rows = -(-len(names) // legend_columns)
    height = rows * PANEL_HEIGHT_INCHES + (legend_rows + 1) * LEGEND_ROW_INCHES
    figure = new_figure(height, width_inches=columns * PANEL_WIDTH_INCHES)
    for place, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(rows, columns, place + 1), panel, names)
    keys = [_key(place) for place in range(len(names))]
    shown = [label(name, limit=48) for name in names]
    if any(series.kind == "dashed" for panel in panels for series in panel.series):
        keys, shown = [*keys, _dashes()], [*shown, "dashed: predicted"]
    figure.legend(
        keys, shown, loc="outside lower center", ncols=min(len(keys), 2 * columns), frameon=False, fontsize=FONT_POINTS
    )
    return figure


def _draw_panel(axes: Any, panel: Panel, names: list[str]) -> None:
    style_axes(axes)
    for series in panel.series:
        place = names.index(series.name)
        _draw_series(axes, series, colour=PALETTE[place % len(PALETTE)], marker=MARKERS[place % len(MARKERS)])
    if panel.x_scale == "log":
        _scale_x(axes, panel)
    if panel.y_scale == "log":
        axes.set_yscale("log")
    axes.tick_params(which="both", labelsize=FONT_POINTS)
    axes.set_title(panel.title, fontsize=FONT_POINTS + 0.5, color=INK)
    axes.set_xlabel(panel.x_label, fontsize=FONT_POINTS)
    axes.set_ylabel(panel.y_label, fontsize=FONT_POINTS)


def _draw_series(axes: Any, series: Series, *, colour: str, marker: str) -> None:
    if series.kind == "dashed":
        axes.plot(series.x, series.y, color=colour, linestyle="--", linewidth=1.1)
        return
    line = "-" if series.kind == "line" else "none"
    size = 4.5 if len(series.x) <= MARKED_POINTS else 2.5 if series.kind == "points" else 0
    axes.errorbar(
        series.x,
        series.y,
        yerr=series.error,
        color=colour,
        marker=marker,
        markersize=size,
        linestyle=line,
        linewidth=1.3,
        elinewidth=1.0,
        capsize=2.5,
    )


def _scale_x(axes: Any, panel: Panel) -> None:
    """Logarithmic: powers of two as plain numbers where every point is one of a few, as counts are; else decades.

    Less than a decade stays linear: labels of its parts would run into each other.
    """
    values = {float(x) for series in panel.series for x in series.x}
    if not values or not all(value >= 1 and log2(value).is_integer() for value in values):
        if values and min(values) > 0 and max(values) >= 10 * min(values):
            axes.set_xscale("log")
        return
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _key(place: int) -> Any:
    from matplotlib.lines import Line2D

    colour, marker = PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)]
    return Line2D([], [], color=colour, marker=marker, markersize=4.5, linewidth=1.3)


def _dashes() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=INK, linestyle="--", linewidth=1.1)
