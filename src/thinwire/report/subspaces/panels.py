"""How do the loss curves of one context-parallel run or several look on the page?  Panels that reflow, one legend."""

from collections.abc import Sequence

from thinwire.report.curve_section import curve_ends, legend
from thinwire.report.lines import Line
from thinwire.report.markup import attribute, figure, paragraph
from thinwire.report.subspaces.curves import (
    COST_WORDS,
    COSTS,
    has_log_axis,
    loss_ceiling,
    loss_figure,
    run_lines,
    training_figure,
    training_lines,
)
from thinwire.report.subspaces.records import SubspacesRun
from thinwire.report.svg import inline_svg


def curve_panels(runs: Sequence[SubspacesRun], *, name: str) -> str:
    """A panel for each cost and one of the training loss, with one legend; ``name`` is the prefix of their ids."""
    lines = run_lines(runs)
    if not any(line.points for line in lines):
        return paragraph("No validation loss has been logged yet.", style="quiet")
    whose = ", ".join(run.name for run in runs)
    panels = [
        figure(
            inline_svg(
                loss_figure(runs, costs=(cost,), legend="none"),
                name=f"{name}-{cost.replace('_', '-')}",
                description=attribute(f"Validation loss of {whose} against {COST_WORDS[cost]}: {curve_ends(lines)}"),
            ),
            caption="",
        )
        for cost in COSTS
    ]
    training = training_lines(runs)
    if any(line.points for line in training):
        described = attribute(f"Training loss of {whose} against updates: {curve_ends(training)}")
        drawn = inline_svg(training_figure(runs, legend="none"), name=f"{name}-training", description=described)
        panels.append(figure(drawn, caption=""))
    return legend(lines) + f'<div class="panels">{"".join(panels)}</div>\n' + paragraph(_words(lines), style="quiet")


def _words(lines: Sequence[Line]) -> str:
    words = (
        "Validation goes through the codec, as the model is trained; in the warm-up without. Bytes are what all ranks "
        "sent until the update, validations included: all of them (gradients or weights too), and keys, values, their "
        "gradients and theta alone."
    )
    if any(has_log_axis(lines, cost) for cost in COSTS):
        words += " An axis of bytes is logarithmic where the runs lie far apart; it begins where something was sent."
    if any(line.level is not None for line in lines):
        words += " The dashed line is the stock model's loss on the test windows."
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        words += f" Losses above {ceiling:.2f}, at the very start, are cut off."
    return words
