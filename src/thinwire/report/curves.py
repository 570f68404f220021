"""How did the loss fall?  Curves against updates, byte-forwards and device-seconds, of one run or several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from thinwire.report.facts import MeanPoint, aggregate_curve, baseline_name
from thinwire.report.figures import (
    BLUE,
    FONT_POINTS,
    INK,
    QUIET,
    VERMILLION,
    WIDTH_INCHES,
    label,
    new_figure,
    style_axes,
)
from thinwire.report.records import Run

Cost = Literal["updates", "byte_forwards", "device_seconds"]
COSTS: tuple[Cost, ...] = ("updates", "byte_forwards", "device_seconds")
COLOURS = (BLUE, VERMILLION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p")
DASHES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1, 1.6)),
    "dash-dot": (0, (5, 1.5, 1, 1.5)),
}
MAX_COLOURED = len(COLOURS)


@dataclass(frozen=True)
class Line:
    """One entry of the legend and, where it has points, one curve."""

    name: str
    colour: str
    dash: Literal["solid", "dashed", "dotted", "dash-dot"] = "solid"
    marker: str = ""
    width: float = 1.5
    points: tuple[MeanPoint, ...] = ()
    level: float | None = None
    """A reference line at one loss."""
    group: tuple[tuple[MeanPoint, ...], ...] = ()
    """Many thin curves under one name."""


class Scale(NamedTuple):
    name: str
    divisor: float


def run_lines(run: Run) -> tuple[Line, ...]:
    """The seed run, every expert from where the seed run ended, and the levels of the headline score."""
    lines = [Line("seed run", INK, points=_seed_points(run), marker="o")] if run.seed_run.validation else []
    curves = [(job.expert, _expert_points(run, index)) for index, job in enumerate(run.experts) if job.validation]
    if len(curves) <= MAX_COLOURED and all(expert < MAX_COLOURED for expert, _ in curves):
        lines += [
            Line(f"expert {expert}", COLOURS[expert], points=points, marker=MARKERS[expert])
            for expert, points in curves
        ]
    else:
        lines.append(Line(f"each of {len(curves)} experts", "#56B4E9", width=0.6, group=tuple(p for _, p in curves)))
        mean = _mean_points(run)
        lines += [Line("mean of the experts", BLUE, points=mean, width=2.2)] if mean else []
    return tuple(lines + _levels(run))


def _levels(run: Run) -> list[Line]:
    score = run.headline
    if score is None:
        return []
    lines = [Line(f"ensemble, {score.name}", INK, dash="dashed", level=score.loss_nats_per_byte, width=1.3)]
    dashes: dict[str, Literal["dotted", "dash-dot"]] = {"byte_unigram": "dotted", "byte_bigram": "dash-dot"}
    for key, dash in dashes.items():
        if key in score.baselines:
            lines.append(Line(baseline_name(key), INK, dash=dash, level=score.baselines[key], width=1.6))
    return lines


def _seed_points(run: Run) -> tuple[MeanPoint, ...]:
    return tuple(MeanPoint(*record_cost(v), v.loss_nats_per_byte) for v in run.seed_run.validation)


def record_cost(record: Any) -> tuple[int, int, float]:
    return record.update, record.byte_forwards, record.device_seconds


def _expert_points(run: Run, index: int) -> tuple[MeanPoint, ...]:
    """Shifted by the seed run's totals: an expert starts with the seed run's weights."""
    start = run.seed_run
    return tuple(
        MeanPoint(
            start.last_update + v.update,
            start.byte_forwards + v.byte_forwards,
            start.device_seconds + v.device_seconds,
            v.loss_nats_per_byte,
        )
        for v in run.experts[index].validation
    )


def _mean_points(run: Run) -> tuple[MeanPoint, ...]:
    """The mean of all experts at the cost of one model."""
    start, count = run.seed_run, max(len(run.experts), 1)
    points = []
    for point in aggregate_curve(run)[len(start.validation) :]:
        byte_forwards = start.byte_forwards + (point.byte_forwards - start.byte_forwards) // count
        seconds = start.device_seconds + (point.device_seconds - start.device_seconds) / count
        points.append(MeanPoint(point.update, byte_forwards, seconds, point.loss_nats_per_byte))
    return tuple(points)


def curves_figure(run: Run, *, costs: Sequence[Cost] = COSTS, legend: Literal["below", "none"] = "below") -> Any:
    """One panel for each cost, sharing the loss axis."""
    lines = run_lines(run)
    figure = new_figure(3.2 if legend == "none" else 3.9, width_inches=3.5 * len(costs) + 0.3)
    figure.get_layout_engine().set(wspace=0.06)
    panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for panel, cost in zip(panels, costs, strict=True):
        _draw(panel, lines, cost, axis_name=_axis_name(cost, "per model"))
    _limit_loss(panels[0], lines)
    panels[0].set_ylabel("validation loss (nats/byte)", fontsize=FONT_POINTS)
    if legend == "below":
        _legend(figure, lines, columns=6)
    return figure


def comparison_lines(runs: Sequence[Run]) -> tuple[Line, ...]:
    """The seed run, pale, and the mean of the experts, one colour a run; after eight runs with another dash."""
    dashes: tuple[Literal["solid", "dashed", "dotted"], ...] = ("solid", "dashed", "dotted")
    lines = [
        Line(
            run.name,
            COLOURS[index % MAX_COLOURED],
            dash=dashes[index // MAX_COLOURED % len(dashes)],
            marker=MARKERS[index % MAX_COLOURED],
            points=aggregate_curve(run)[len(run.seed_run.validation) :],
            group=(_seed_points(run),),
        )
        for index, run in enumerate(runs)
    ]
    if any(run.headline is not None for run in runs):
        lines.append(Line("ensemble's test loss", QUIET, marker="*", width=0.0))
    return tuple(lines)


def comparison_figure(runs: Sequence[Run], *, legend: Literal["below", "none"] = "below") -> Any:
    """Validation loss against aggregate byte-forwards, and each run's test loss as a star where its training ended."""
    lines = comparison_lines(runs)
    figure = new_figure(3.2 if legend == "none" else 3.8, width_inches=WIDTH_INCHES + 0.2)
    panel = figure.add_subplot()
    _draw(panel, lines, "byte_forwards", axis_name=_axis_name("byte_forwards", "all models together"))
    divisor = _scale(lines, "byte_forwards").divisor
    tests = []
    for line, run in zip(lines, runs, strict=False):
        if run.headline is not None:
            tests.append(run.headline.loss_nats_per_byte)
            place = (run.byte_forwards / divisor, tests[-1])
            panel.plot(
                *place, marker="*", markersize=13, color=line.colour, markeredgecolor=INK, linestyle="none", zorder=5
            )
    _limit_loss(panel, (*lines, *(Line("", INK, level=loss) for loss in tests)))
    panel.set_ylabel("loss (nats/byte)", fontsize=FONT_POINTS)
    if legend == "below":
        _legend(figure, lines, columns=2)
    return figure


def _axis_name(cost: Cost, whose: str) -> Callable[[Scale], str]:
    names = {"updates": "updates", "byte_forwards": "byte-forwards", "device_seconds": "device time"}

    def write(scale: Scale) -> str:
        unit = f"{scale.name}, " if scale.name else ""
        return f"{names[cost]} ({unit}{whose})"

    return write


def _draw(panel: Any, lines: Sequence[Line], cost: Cost, *, axis_name: Callable[[Scale], str]) -> None:
    style_axes(panel)
    scale = _scale(lines, cost)
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
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(_ticks())
    panel.xaxis.set_major_formatter("{x:,g}")
    panel.set_xlabel(axis_name(scale), fontsize=FONT_POINTS)


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, steps=[1, 2, 5, 10])


def _value(point: MeanPoint, cost: Cost) -> float:
    values = {"updates": point.update, "byte_forwards": point.byte_forwards, "device_seconds": point.device_seconds}
    return float(values[cost])


def _coordinates(points: Sequence[MeanPoint], cost: Cost, scale: Scale) -> tuple[list[float], list[float]]:
    return [_value(point, cost) / scale.divisor for point in points], [point.loss_nats_per_byte for point in points]


def _scale(lines: Sequence[Line], cost: Cost) -> Scale:
    """The unit in which the longest curve has a readable number."""
    values = [_value(point, cost) for line in lines for curve in (line.points, *line.group) for point in curve]
    largest = max(values, default=0)
    if cost == "updates":
        return Scale("", 1.0)
    if cost == "device_seconds":
        steps = [Scale("hours", 3600.0), Scale("minutes", 60.0), Scale("seconds", 1.0)]
    else:
        steps = [
            Scale("10¹²", 1e12),
            Scale("billions", 1e9),
            Scale("millions", 1e6),
            Scale("thousands", 1e3),
            Scale("", 1.0),
        ]
    return next((step for step in steps if largest >= 2 * step.divisor), steps[-1])


def loss_ceiling(lines: Sequence[Line]) -> float | None:
    """The highest loss worth drawing: above the baselines and all but the first validations. None: nothing is cut.

    The first loss is near ln 256 = 5.5 and falls to 3 within a few updates; drawn whole, it would take half the panel.
    """
    curves = [curve for line in lines for curve in (line.points, *line.group) if curve]
    first = max((curve[0].loss_nats_per_byte for curve in curves), default=0.0)
    rest = [point.loss_nats_per_byte for curve in curves for point in curve[1:]]
    rest += [line.level for line in lines if line.level is not None]
    rest += [curve[0].loss_nats_per_byte for curve in curves if len(curve) == 1]
    if not rest or first <= max(rest):
        return None
    ceiling = max(rest) + 0.08 * (max(rest) - min(rest)) + 0.01
    return ceiling if first > ceiling else None


def _limit_loss(panel: Any, lines: Sequence[Line]) -> None:
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        losses = [p.loss_nats_per_byte for line in lines for curve in (line.points, *line.group) for p in curve]
        losses += [line.level for line in lines if line.level is not None]
        panel.set_ylim(min(losses) - 0.06 * (ceiling - min(losses)), ceiling)


def _legend(figure: Any, lines: Sequence[Line], *, columns: int) -> None:
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=e.colour, linestyle=DASHES[e.dash], linewidth=e.width, marker=e.marker, markersize=4)
        for e in lines
    ]
    style = {"frameon": False, "fontsize": FONT_POINTS, "ncols": columns, "handlelength": 3.2}
    legend = figure.legend(keys, [label(entry.name) for entry in lines], loc="outside lower center", **style)
    for text in legend.get_texts():
        text.set_parse_math(False)
