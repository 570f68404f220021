"""How do the page's loss curves look?  Panels that reflow on a phone, one legend as a list, several runs."""

from collections.abc import Sequence

from thinwire.base.units import format_count, format_seconds
from thinwire.report.curves import COSTS, comparison_figure, comparison_lines, curves_figure, run_lines
from thinwire.report.facts import early_words, format_loss
from thinwire.report.lines import Line, loss_ceiling
from thinwire.report.markup import attribute, figure, paragraph, table, text
from thinwire.report.records import Run
from thinwire.report.svg import inline_svg

COST_WORDS = {"updates": "updates", "byte_forwards": "byte-forwards", "device_seconds": "device-seconds"}
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
    panels = "".join(
        figure(
            inline_svg(
                curves_figure(run, costs=(cost,), legend="none"),
                name=f"{name}-{cost.replace('_', '-')}",
                description=attribute(f"Validation loss of {run.name} against {COST_WORDS[cost]}: {curve_ends(lines)}"),
            ),
            caption="",
        )
        for cost in COSTS
    )
    words = (
        "The seed run is validated on windows of the whole corpus, each expert on held-out windows of its own cluster, "
        "so the curves of different experts are not comparable with one another. Experts start where the seed run "
        "ended."
    )
    if any(line.level is not None for line in lines):
        words += " Horizontal lines are losses on the test windows."
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        words += f" Losses above {ceiling:.2f}, at the very start, are cut off."
    return legend(lines) + f'<div class="panels">{panels}</div>\n' + paragraph(words, style="quiet")


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


def comparison_section(runs: Sequence[Run], *, level: int = 2) -> str:
    """Several runs beside each other: one panel and one table."""
    lines = comparison_lines(runs)
    rows = [
        (
            run.name,
            run.preset,
            str(run.num_experts),
            format_count(float(run.byte_forwards)),
            format_seconds(run.device_seconds),
            "not scored" if run.headline is None else format_loss(run.headline.loss_nats_per_byte),
        )
        for run in runs
    ]
    columns = ("Run", "Preset", "Experts", "Byte-forwards", "Device time", "Test loss (nats/byte)")
    listed = table(columns, rows, caption="The runs side by side", numeric_from=2)
    words = (
        "Validation loss against the byte-forwards of all models together: the seed run (pale), then the mean of the "
        "experts, each on its own cluster, weighted by cluster size. A star is the ensemble's test loss. Runs are "
        "comparable where they were trained and scored on the same text."
    )
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        words += f" Losses above {ceiling:.2f}, at the very start, are cut off."
    picture = inline_svg(
        comparison_figure(runs, legend="none"),
        name="comparison",
        description=attribute(f"Validation loss against aggregate byte-forwards: {curve_ends(lines)}"),
    )
    drawn = figure(picture, caption=words, style="middle")
    early = [(run.name, early_words(run, run.headline)) for run in runs if run.headline is not None]
    notes = "".join(paragraph(f"{name} was {words}.") for name, words in early if words)
    return f"<section><h{level}>Comparison</h{level}>\n{legend(lines)}{drawn}{listed}{notes}</section>\n"
