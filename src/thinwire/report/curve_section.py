"""How do the page's loss curves look?  Panels that reflow on a phone, one legend as a list."""

from collections.abc import Callable, Sequence
from typing import Any

from thinwire.config.fingerprint import flatten
from thinwire.report.curves import COSTS, Cost, curves_figure, run_lines
from thinwire.report.facts import format_loss
from thinwire.report.lines import AxisScale, Line, loss_ceiling
from thinwire.report.markup import attribute, figure, paragraph, text
from thinwire.report.records import Run
from thinwire.report.svg import inline_svg

COST_WORDS = {"updates": "updates", "byte_forwards": "byte-forwards", "device_seconds": "device-seconds"}
VALIDATED_ON = {
    "semantic": "held-out windows of its own cluster, so the curves of different experts are not comparable with one "
    "another",
    "random": "held-out windows of its own random shard",
    "iid": "the same held-out windows",
}
STARTED_FROM = {
    "warm": "Experts start where the seed run ended.",
    "cold": "Experts start from random bodies with the seed run's E; their curves stand behind its costs.",
    "frozen_random_head": "Experts start from random bodies and a random E; their curves stand behind the seed run's.",
}
DASH_ARRAYS = {"solid": "none", "dashed": "5 2", "dotted": "2 2", "dash-dot": "5 2 1 2"}
MARKER_SHAPES = {
    "o": "M11 6a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
    "s": "M11 3h6v6h-6z",
    "^": "M14 2l4 7h-8z",
    "v": "M14 10l4 -7h-8z",
    "D": "M14 2l4 4l-4 4l-4 -4z",
    "<": "M10 6l7 -4v8z",
    ">": "M18 6l-7 -4v8z",
    "*": "M14 0l1.5 4.2h4.4l-3.5 2.7l1.3 4.3l-3.7 -2.6l-3.7 2.6l1.3 -4.3l-3.5 -2.7h4.4z",
    "p": "M14 2l4 3l-1.5 5h-5l-1.5 -5z",
}


def curves_section(run: Run, *, name: str) -> str:
    """Three panels with one legend; ``name`` is the prefix of their ids."""
    lines = run_lines(run)
    if not any(line.points or line.group for line in lines):
        return paragraph("No validation loss has been logged yet.", style="quiet")
    panels = panel_rows(
        lambda cost, axis: curves_figure(run, costs=(cost,), axis=axis, legend="none"),
        name=name,
        described=lambda cost: f"Validation loss of {run.name} against {COST_WORDS[cost]}: {curve_ends(lines)}",
    )
    words = validated_words(run)
    if any(line.level is not None for line in lines):
        words += " Horizontal lines are losses on the test windows."
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        words += f" Losses above {ceiling:.2f}, at the very start, are cut off."
    return legend(lines) + panels + paragraph(words, style="quiet")


def validated_words(run: Run) -> str:
    """On what the curves' losses are, and where the experts' begin."""
    if run.method == "eggroll":
        return "The model is validated on windows of the validation split, scored as the test's are."
    flat = flatten(run.config)
    own = VALIDATED_ON.get(str(flat.get("clusters.partition", "semantic")), "held-out windows of its own")
    start = STARTED_FROM.get(str(flat.get("start", "warm")), "")
    return f"The seed run is validated on windows of the whole corpus, each expert on {own}. {start}".strip()


def panel_rows(draw: Callable[[Cost, AxisScale], Any], *, name: str, described: Callable[[Cost], str]) -> str:
    """A panel for each cost; behind a fold the same with logarithmic axes (many experts as their mean).

    Args:
        draw: a figure of one panel.
        name: the prefix of the figures' ids.
        described: what a person who cannot see a panel should know.
    """

    def row(axis: AxisScale) -> str:
        suffix = "-log" if axis == "log" else ""
        panels = "".join(
            figure(
                inline_svg(
                    draw(cost, axis),
                    name=f"{name}-{cost.replace('_', '-')}{suffix}",
                    description=attribute(described(cost)),
                ),
                caption="",
            )
            for cost in COSTS
        )
        return f'<div class="panels">{panels}</div>\n'

    return f"{row('linear')}<details><summary>The same on logarithmic axes</summary>{row('log')}</details>\n"


def curve_ends(lines: Sequence[Line]) -> str:
    """First and last loss of every curve, in words."""
    parts = []
    for line in lines:
        if line.points:
            first, last = line.points[0].loss, line.points[-1].loss
            parts.append(f"{line.name} from {format_loss(first)} to {format_loss(last)}")
    return "; ".join(parts) or "no curve yet"


def legend(lines: Sequence[Line]) -> str:
    """The legend as a list beside the panels: it never covers data, and it wraps on a phone."""
    items = []
    for line in lines:
        shape = f'<path d="{MARKER_SHAPES[line.marker]}" fill="{line.colour}"/>' if line.marker else ""
        stroke = (
            f'stroke="{line.colour}" stroke-width="{min(line.width, 2)}" stroke-dasharray="{DASH_ARRAYS[line.dash]}"'
        )
        items.append(
            f'<li><svg width="28" height="12" aria-hidden="true"><path d="M0 6h28" fill="none" {stroke}/>{shape}</svg>'
            f"{text(line.name)}</li>\n"
        )
    return f'<ul class="legend">{"".join(items)}</ul>\n'
