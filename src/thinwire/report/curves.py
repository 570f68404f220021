"""How did the loss fall?  Curves against updates, byte-forwards and device-seconds, of one run or several."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from thinwire.report.facts import MeanPoint, aggregate_curve, baseline_name
from thinwire.report.figures import BLUE, FONT_POINTS, INK, QUIET, new_figure
from thinwire.report.lines import (
    COLOURS,
    COUNTS,
    MARKERS,
    MAX_COLOURED,
    ONE,
    TIMES,
    AxisScale,
    Dash,
    Line,
    Scale,
    draw,
    legend_below,
    limit_loss,
    scale_of,
)
from thinwire.report.records import Run

Cost = Literal["updates", "byte_forwards", "device_seconds"]
COSTS: tuple[Cost, ...] = ("updates", "byte_forwards", "device_seconds")
UNITS: dict[str, Sequence[Scale]] = {"updates": ONE, "byte_forwards": COUNTS, "device_seconds": TIMES}


def run_lines(run: Run) -> tuple[Line, ...]:
    """The seed run, every expert from where the seed run ended, and the levels of the headline score."""
    lines = [Line("seed run", INK, points=_seed_points(run), marker="o")] if run.seed_run.validation else []
    curves = [(job.expert, _expert_points(run, index)) for index, job in enumerate(run.experts) if job.validation]
    if len(curves) <= MAX_COLOURED and all(expert < MAX_COLOURED for expert, _ in curves):
        lines += [
            Line(
                "model" if run.method == "eggroll" else f"expert {expert}",
                COLOURS[expert],
                points=points,
                marker=MARKERS[expert],
            )
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
    lines = [Line(f"{score.system}, {score.name}", INK, dash="dashed", level=score.loss_nats_per_byte, width=1.3)]
    dashes: dict[str, Dash] = {"byte_unigram": "dotted", "byte_bigram": "dash-dot"}
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


def curves_figure(
    run: Run,
    *,
    costs: Sequence[Cost] = COSTS,
    axis: AxisScale = "linear",
    legend: Literal["below", "none"] = "below",
) -> Any:
    """One panel for each cost, sharing the loss axis; on logarithmic axes many experts have their mean alone."""
    lines = run_lines(run)
    if axis == "log":
        lines = tuple(line for line in lines if not line.group)
    figure, panels = _panels(len(costs), legend=legend)
    for panel, cost in zip(panels, costs, strict=True):
        scale = scale_of(lines, cost, steps=UNITS[cost])
        draw(panel, lines, cost, scale=scale, axis_name=_axis_name(cost, "per model"), axis=axis)
    limit_loss(panels[0], lines)
    panels[0].set_ylabel("validation loss (nats/byte)", fontsize=FONT_POINTS)
    if legend == "below":
        legend_below(figure, lines, columns=6)
    return figure


def _panels(count: int, *, legend: Literal["below", "none"]) -> tuple[Any, Any]:
    """An empty figure and its panels side by side, with one loss axis."""
    figure = new_figure(3.2 if legend == "none" else 3.9, width_inches=3.5 * count + 0.3)
    figure.get_layout_engine().set(wspace=0.06)
    return figure, figure.subplots(1, count, sharey=True, squeeze=False)[0]


def comparison_lines(runs: Sequence[Run]) -> tuple[Line, ...]:
    """The seed run, pale, and the mean of the experts, one colour a run; after eight runs with another dash."""
    dashes: tuple[Dash, ...] = ("solid", "dashed", "dotted")
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
        lines.append(Line("test loss", QUIET, marker="*", width=0.0))
    return tuple(lines)


def comparison_figure(
    runs: Sequence[Run],
    *,
    costs: Sequence[Cost] = COSTS,
    axis: AxisScale = "linear",
    legend: Literal["below", "none"] = "below",
) -> Any:
    """Validation loss of all runs against each aggregate cost, and each test loss as a star where training ended."""
    lines = comparison_lines(runs)
    figure, panels = _panels(len(costs), legend=legend)
    tests = [(line, run, run.headline) for line, run in zip(lines, runs, strict=False)]
    for panel, cost in zip(panels, costs, strict=True):
        scale = scale_of(lines, cost, steps=UNITS[cost])
        whose = "seed run and expert" if cost == "updates" else "all models together"
        draw(panel, lines, cost, scale=scale, axis_name=_axis_name(cost, whose), axis=axis)
        for line, run, score in tests:
            if score is not None and total_cost(run, cost) > 0:
                place = (total_cost(run, cost) / scale.divisor, score.loss_nats_per_byte)
                style = {"color": line.colour, "markeredgecolor": INK, "linestyle": "none", "zorder": 5}
                panel.plot(*place, marker="*", markersize=13, **style)
    levels = (Line("", INK, level=score.loss_nats_per_byte) for _, _, score in tests if score is not None)
    limit_loss(panels[0], (*lines, *levels))
    panels[0].set_ylabel("loss (nats/byte)", fontsize=FONT_POINTS)
    if legend == "below":
        legend_below(figure, lines, columns=2)
    return figure


def total_cost(run: Run, cost: Cost) -> float:
    """At the end of the logs: updates of the seed run and the furthest expert; else of all models together."""
    if cost == "updates":
        return float(run.seed_run.last_update + max((job.last_update for job in run.experts), default=0))
    return float(run.byte_forwards if cost == "byte_forwards" else run.device_seconds)


def _axis_name(cost: Cost, whose: str) -> Callable[[Scale], str]:
    names = {"updates": "updates", "byte_forwards": "byte-forwards", "device_seconds": "device time"}

    def write(scale: Scale) -> str:
        unit = f"{scale.name}, " if scale.name else ""
        return f"{names[cost]} ({unit}{whose})"

    return write
