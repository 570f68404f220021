"""How is a loss curve drawn, against whatever it cost?  Lines with one look in all figures and legends.

A point knows its loss and its costs by name; the axis takes the unit in which the longest curve has a readable number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from thinwire.report.figures import BLUE, FONT_POINTS, VERMILLION, label, style_axes

COLOURS = (BLUE, VERMILLION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p")
Dash = Literal["solid", "dashed", "dotted", "dash-dot"]
AxisScale = Literal["linear", "log"]
DASHES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1, 1.6)),
    "dash-dot": (0, (5, 1.5, 1, 1.5)),
}
MAX_COLOURED = len(COLOURS)


@runtime_checkable
class Point(Protocol):
    """One loss of a curve."""

    @property
    def loss(self) -> float: ...

    def cost(self, name: str) -> float: ...


@dataclass(frozen=True)
class Line:
    """One entry of the legend and, where it has points, one curve."""

    name: str
    colour: str
    dash: Dash = "solid"
    marker: str = ""
    width: float = 1.5
    points: tuple[Point, ...] = ()
    level: float | None = None
    """A reference line at one loss."""
    group: tuple[tuple[Point, ...], ...] = ()
    """Many thin curves under one name."""

    @property
    def curves(self) -> tuple[tuple[Point, ...], ...]:
        return (self.points, *self.group)


class Scale(NamedTuple):
    name: str
    divisor: float


ONE = (Scale("", 1.0),)
TIMES = (Scale("hours", 3600.0), Scale("minutes", 60.0), Scale("seconds", 1.0))
COUNTS = (
    Scale("10¹²", 1e12),
    Scale("billions", 1e9),
    Scale("millions", 1e6),
    Scale("thousands", 1e3),
    Scale("", 1.0),
)
SIZES = (Scale("TB", 1e12), Scale("GB", 1e9), Scale("MB", 1e6), Scale("kB", 1e3), Scale("bytes", 1.0))


def scale_of(lines: Sequence[Line], cost: str, *, steps: Sequence[Scale]) -> Scale:
    """The unit in which the longest curve has a readable number."""
    values = [point.cost(cost) for line in lines for curve in line.curves for point in curve]
    largest = max(values, default=0)
    return next((step for step in steps if largest >= 2 * step.divisor), steps[-1])


def draw(
    panel: Any,
    lines: Sequence[Line],
    cost: str,
    *,
    scale: Scale,
    axis_name: Callable[[Scale], str],
    axis: AxisScale = "linear",
) -> None:
    """All lines against one cost; on a logarithmic axis without what cost nothing."""
    if axis == "log":
        lines = [_with_cost(line, cost) for line in lines]
    style_axes(panel)
    for line in lines:
        style = {"color": line.colour, "linestyle": DASHES[line.dash], "linewidth": line.width}
        if line.level is not None:
            panel.axhline(line.level, zorder=1.5, **style)
        for curve in line.group:
            panel.plot(*_coordinates(curve, cost, scale), alpha=0.6, **style)
        if line.points:
            every = max(1, len(line.points) // 6)
            panel.plot(
                *_coordinates(line.points, cost, scale), marker=line.marker, markevery=every, markersize=4, **style
            )
    if axis == "log":
        values = [point.cost(cost) / scale.divisor for line in lines for curve in line.curves for point in curve]
        set_log_axis(panel, values)
    else:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(ticks())
    panel.xaxis.set_major_formatter("{x:,g}")
    panel.set_xlabel(axis_name(scale), fontsize=FONT_POINTS)


def _with_cost(line: Line, cost: str) -> Line:
    """Less the points that cost nothing."""
    points, *group = (tuple(point for point in curve if point.cost(cost) > 0) for curve in line.curves)
    return replace(line, points=points, group=tuple(group))


def set_log_axis(panel: Any, values: Sequence[float]) -> None:
    """A logarithmic x axis with plain numbers: powers of ten, and 2 and 5 times them where there are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    spans_decades = bool(values) and max(values) > 300 * min(values)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0,) if spans_decades else (1.0, 2.0, 5.0)))
    panel.xaxis.set_minor_formatter(NullFormatter())


def ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, steps=[1, 2, 5, 10])


def _coordinates(points: Sequence[Point], cost: str, scale: Scale) -> tuple[list[float], list[float]]:
    return [point.cost(cost) / scale.divisor for point in points], [point.loss for point in points]


def loss_ceiling(lines: Sequence[Line]) -> float | None:
    """The highest loss worth drawing: above the baselines and all but the first validations. None: nothing is cut.

    The first loss is near ln 256 = 5.5 and falls to 3 within a few updates; drawn whole, it would take half the panel.
    """
    curves = [curve for line in lines for curve in line.curves if curve]
    first = max((curve[0].loss for curve in curves), default=0.0)
    rest = [point.loss for curve in curves for point in curve[1:]]
    rest += [line.level for line in lines if line.level is not None]
    rest += [curve[0].loss for curve in curves if len(curve) == 1]
    if not rest or first <= max(rest):
        return None
    ceiling = max(rest) + 0.08 * (max(rest) - min(rest)) + 0.01
    return ceiling if first > ceiling else None


def limit_loss(panel: Any, lines: Sequence[Line]) -> None:
    """Cut the panel at ``loss_ceiling``."""
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        losses = [point.loss for line in lines for curve in line.curves for point in curve]
        losses += [line.level for line in lines if line.level is not None]
        panel.set_ylim(min(losses) - 0.06 * (ceiling - min(losses)), ceiling)


def legend_below(figure: Any, lines: Sequence[Line], *, columns: int) -> None:
    """One legend for all panels."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=e.colour, linestyle=DASHES[e.dash], linewidth=e.width, marker=e.marker, markersize=4)
        for e in lines
    ]
    style = {"frameon": False, "fontsize": FONT_POINTS, "ncols": columns, "handlelength": 3.2}
    legend = figure.legend(keys, [label(entry.name) for entry in lines], loc="outside lower center", **style)
    for text in legend.get_texts():
        text.set_parse_math(False)
