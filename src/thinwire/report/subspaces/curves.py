"""How did the loss of context-parallel runs fall, by update, token, second and byte?  And how far did bases turn?"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from thinwire.report.figures import FONT_POINTS, INK, QUIET, new_figure, style_axes
from thinwire.report.lines import (
    COLOURS,
    COUNTS,
    DASHES,
    MAX_COLOURED,
    ONE,
    SIZES,
    TIMES,
    Dash,
    Line,
    Scale,
    draw,
    legend_below,
    limit_loss,
    scale_of,
    ticks,
)
from thinwire.report.lines import loss_ceiling as lines_ceiling
from thinwire.report.subspaces.records import SubspacesRun, Theta, Validation

Cost = Literal["steps", "tokens", "seconds", "wire_bytes", "exchanged_bytes"]
COSTS: tuple[Cost, ...] = ("steps", "tokens", "seconds", "wire_bytes", "exchanged_bytes")
COST_WORDS: dict[str, str] = {
    "steps": "updates",
    "tokens": "tokens",
    "seconds": "time",
    "wire_bytes": "bytes on the wire",
    "exchanged_bytes": "bytes of keys and values",
}
UNITS: dict[str, Sequence[Scale]] = {
    "steps": ONE,
    "tokens": COUNTS,
    "seconds": TIMES,
    "wire_bytes": SIZES,
    "exchanged_bytes": SIZES,
}
RUN_MARKERS = ("o", "s", "D", "<", ">", "p")
PLUGGED, UNPLUGGED = "^", "v"
RUN_DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted")
WIDE_RATIO = 8.0
"""Byte axes on which the runs end so far apart are logarithmic."""
LEAST_POINTS = 5
MAX_TRAINING_POINTS = 100
MAX_COLOURED_LAYERS = MAX_COLOURED


class TrainingPoint(NamedTuple):
    """Mean training loss of a few updates."""

    step: float
    loss: float

    def cost(self, name: str) -> float:
        """``steps`` alone."""
        assert name == "steps"
        return self.step


class Mark(NamedTuple):
    """A change of phase on a run's curve."""

    marker: str
    colour: str
    point: Validation


def run_lines(runs: Sequence[SubspacesRun]) -> tuple[Line, ...]:
    """Validation loss, one colour a run; of a single run its test loss as well; then what the marks mean."""
    lines = [
        Line(
            run.name if len(runs) > 1 else "validation, as trained",
            COLOURS[index % MAX_COLOURED],
            dash=RUN_DASHES[index // MAX_COLOURED % len(RUN_DASHES)],
            marker=RUN_MARKERS[index % len(RUN_MARKERS)],
            points=run.validation,
        )
        for index, run in enumerate(runs)
    ]
    if len(runs) == 1 and runs[0].headline is not None:
        level = runs[0].headline.loss_nats_per_token
        lines.append(Line(f"stock model, {runs[0].headline.name}", INK, dash="dashed", level=level, width=1.3))
    shown = {mark.marker for mark in run_marks(runs)}
    if PLUGGED in shown:
        lines.append(Line("the warm-up has ended", QUIET, marker=PLUGGED, width=0.0))
    if UNPLUGGED in shown:
        lines.append(Line("unplugged", QUIET, marker=UNPLUGGED, width=0.0))
    return tuple(lines)


def run_marks(runs: Sequence[SubspacesRun]) -> tuple[Mark, ...]:
    """Where phases change: the validation that followed at once."""
    found = []
    for index, run in enumerate(runs):
        colour = COLOURS[index % MAX_COLOURED]
        markers = {"plug in": PLUGGED, "context parallel": PLUGGED, "unplug": UNPLUGGED}
        for event in run.events:
            points = [v for v in run.validation if v.step == event.step and v.phase == event.details.get("phase")]
            if event.what in markers and points:
                found.append(Mark(markers[event.what], colour, points[0]))
    return tuple(found)


def loss_figure(
    runs: Sequence[SubspacesRun], *, costs: Sequence[Cost] = COSTS, legend: Literal["below", "none"] = "below"
) -> Any:
    """One panel for each cost, sharing the loss axis."""
    lines, marks = run_lines(runs), run_marks(runs)
    figure = new_figure(3.2 if legend == "none" else 3.9, width_inches=3.5 * len(costs) + 0.3)
    figure.get_layout_engine().set(wspace=0.06)
    panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for panel, cost in zip(panels, costs, strict=True):
        _draw_cost(panel, lines, marks, cost)
    if loss_ceiling(lines) is not None:
        limit_loss(panels[0], lines)
    panels[0].set_ylabel("validation loss (nats/token)", fontsize=FONT_POINTS)
    if legend == "below":
        legend_below(figure, lines, columns=4)
    return figure


def loss_ceiling(lines: Sequence[Line]) -> float | None:
    """As in ``lines.loss_ceiling``; None where a curve has too few points to lose one."""
    lengths = [len(line.points) for line in lines if line.points]
    return lines_ceiling(lines) if lengths and min(lengths) >= LEAST_POINTS else None


def _draw_cost(panel: Any, lines: Sequence[Line], marks: Sequence[Mark], cost: Cost) -> None:
    scale = scale_of(lines, cost, steps=UNITS[cost])
    is_logarithmic = has_log_axis(lines, cost)
    if is_logarithmic:
        lines = [_sent_something(line, cost) for line in lines]
    draw(panel, lines, cost, scale=scale, axis_name=_axis_name(cost))
    for mark in marks:
        place = (mark.point.cost(cost) / scale.divisor, mark.point.loss)
        if place[0] > 0 or not is_logarithmic:
            panel.plot(
                *place, marker=mark.marker, markersize=9, color=mark.colour, markeredgecolor=INK, linestyle="none",
                zorder=5,
            )  # fmt: skip
    if is_logarithmic:
        panel.set_xscale("log")
        panel.autoscale(axis="x")
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.xaxis.minorticks_off()


def has_log_axis(lines: Sequence[Line], cost: Cost) -> bool:
    """Whether the runs sent so different amounts that one of them would be a line at the left edge."""
    ends = [line.points[-1].cost(cost) for line in lines if line.points]
    ends = [end for end in ends if end > 0]
    return cost in ("wire_bytes", "exchanged_bytes") and len(ends) > 1 and max(ends) > WIDE_RATIO * min(ends)


def _sent_something(line: Line, cost: Cost) -> Line:
    points = tuple(point for point in line.points if point.cost(cost) > 0)
    return Line(line.name, line.colour, line.dash, line.marker, line.width, points, line.level)


def _axis_name(cost: Cost) -> Callable[[Scale], str]:
    names = {
        "steps": "updates",
        "tokens": "tokens",
        "seconds": "time",
        "wire_bytes": "sent by all ranks",
        "exchanged_bytes": "keys and values sent",
    }

    def write(scale: Scale) -> str:
        return f"{names[cost]} ({scale.name})" if scale.name else names[cost]

    return write


def training_lines(runs: Sequence[SubspacesRun]) -> tuple[Line, ...]:
    """Training loss, the mean of some updates a point; a phase is never mixed with the next."""
    return tuple(
        Line(
            run.name if len(runs) > 1 else "training",
            COLOURS[index % MAX_COLOURED],
            dash=RUN_DASHES[index // MAX_COLOURED % len(RUN_DASHES)],
            width=1.2,
            points=_training_points(run),
        )
        for index, run in enumerate(runs)
    )


def _training_points(run: SubspacesRun) -> tuple[TrainingPoint, ...]:
    whole = [step for step in run.steps if step.loss_nats_per_token is not None]
    size = max(1, len(whole) // MAX_TRAINING_POINTS)
    points, first = [], 0
    while first < len(whole):
        last = first
        while last < len(whole) and last - first < size and whole[last].phase == whole[first].phase:
            last += 1
        losses = [step.loss_nats_per_token or 0.0 for step in whole[first:last]]
        points.append(TrainingPoint((whole[first].step + whole[last - 1].step) / 2, sum(losses) / len(losses)))
        first = last
    return tuple(points)


def training_figure(runs: Sequence[SubspacesRun], *, legend: Literal["below", "none"] = "below") -> Any:
    """Training loss against updates."""
    lines = training_lines(runs)
    figure = new_figure(3.2 if legend == "none" else 3.9, width_inches=3.8)
    panel = figure.add_subplot()
    draw(panel, lines, "steps", scale=ONE[0], axis_name=lambda _: "updates")
    if loss_ceiling(lines) is not None:
        limit_loss(panel, lines)
    panel.set_ylabel("training loss (nats/token)", fontsize=FONT_POINTS)
    if legend == "below":
        legend_below(figure, lines, columns=2)
    return figure


ThetaKind = Literal["mean_abs_theta", "angle_degrees", "orthonormality_defect"]
THETA_NAMES: dict[ThetaKind, str] = {
    "mean_abs_theta": "mean |theta|",
    "angle_degrees": "angle to the basis (degrees)",
    "orthonormality_defect": "largest entry of U'U - I",
}


def theta_figure(run: SubspacesRun, *, kinds: Sequence[ThetaKind] = tuple(THETA_NAMES)) -> Any:
    """theta, the angle to the basis, how far U is from orthonormal; keys solid, values dashed, one colour a layer."""
    figure = new_figure(3.2, width_inches=3.5 * len(kinds) + 0.3)
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for panel, kind in zip(panels, kinds, strict=True):
        style_axes(panel)
        for side, layer, values in _layer_curves(run.thetas, kind):
            coloured = num_layers(run) <= MAX_COLOURED_LAYERS
            panel.plot(
                [theta.step for theta in run.thetas],
                [float("nan") if value is None else value for value in values],
                color=COLOURS[layer] if coloured else COLOURS[0 if side == "key" else 1],
                linestyle=DASHES["solid" if side == "key" else "dashed"],
                linewidth=1.4 if coloured else 0.8,
                marker="o" if len(run.thetas) == 1 else "",
            )
        panel.set_ylim(bottom=0)
        panel.xaxis.set_major_locator(ticks())
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.set_xlabel("updates", fontsize=FONT_POINTS)
        panel.set_ylabel(THETA_NAMES[kind], fontsize=FONT_POINTS)
    return figure


def num_layers(run: SubspacesRun) -> int:
    return max((len(theta.mean_abs_theta["key"]) for theta in run.thetas), default=0)


def _layer_curves(thetas: Sequence[Theta], kind: ThetaKind) -> list[tuple[str, int, list[float | None]]]:
    rows = [getattr(theta, kind) for theta in thetas]
    layers = max((len(row["key"]) for row in rows), default=0)
    return [
        (side, layer, [_at(row[side], layer) for row in rows]) for side in ("key", "value") for layer in range(layers)
    ]


def _at(values: tuple[float | None, ...], layer: int) -> float | None:
    return values[layer] if layer < len(values) else None


def theta_lines(run: SubspacesRun) -> tuple[Line, ...]:
    """The legend of ``theta_figure``."""
    if num_layers(run) > MAX_COLOURED_LAYERS:
        return (Line("keys, each layer", COLOURS[0]), Line("values, each layer", COLOURS[1], dash="dashed"))
    layers = [Line(f"layer {layer}", COLOURS[layer]) for layer in range(num_layers(run))]
    return (*layers, Line("keys", QUIET), Line("values", QUIET, dash="dashed"))
