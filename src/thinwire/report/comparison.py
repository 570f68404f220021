"""How do several runs compare, in nats per byte?  Curves against every budget, test losses and what they cost."""

from collections.abc import Sequence

from thinwire.base.units import format_count, format_seconds
from thinwire.report.comparable import same_windows
from thinwire.report.curve_section import COST_WORDS, curve_ends, legend, panel_rows
from thinwire.report.curves import comparison_figure, comparison_lines, total_cost
from thinwire.report.facts import early_words, format_loss
from thinwire.report.lines import loss_ceiling
from thinwire.report.markup import paragraph, table
from thinwire.report.records import Run


def comparison_section(runs: Sequence[Run], *, level: int = 2) -> str:
    """Several runs beside each other; ``comparable.require_comparable`` has let them pass."""
    lines = comparison_lines(runs)
    panels = panel_rows(
        lambda cost, axis: comparison_figure(runs, costs=(cost,), axis=axis, legend="none"),
        name="comparison",
        described=lambda cost: f"Validation loss of all runs against {COST_WORDS[cost]}: {curve_ends(lines)}",
    )
    words = (
        "Validation loss against what it cost: updates of the seed run and one expert, then byte-forwards and device "
        "time of all models together, each the budget that a comparison may hold equal. The seed run is pale, then "
        "comes the mean of the experts, each on its own cluster, weighted by cluster size; of EGGROLL, its one model. "
        "A star is the test loss where the logs end."
    )
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        words += f" Losses above {ceiling:.2f}, at the very start, are cut off."
    early = [(run.name, early_words(run, run.headline)) for run in runs if run.headline is not None]
    notes = "".join(paragraph(f"{name} was {said}.") for name, said in early if said)
    if not same_windows(runs):
        notes += paragraph(
            "The test windows are of the same documents and are not known to be the same windows (they are drawn with "
            "each run's seed), so differences between runs hold their sampling error too.",
            style="quiet",
        )
    drawn = f"{legend(lines)}{panels}{paragraph(words, style='quiet')}"
    return f"<section><h{level}>Comparison</h{level}>\n{drawn}{_losses(runs)}{notes}</section>\n"


def _losses(runs: Sequence[Run]) -> str:
    """Lowest test loss first; runs without one last."""

    def loss(run: Run) -> float:
        return float("inf") if run.headline is None else run.headline.loss_nats_per_byte

    rows = [
        (
            run.name,
            run.preset,
            str(run.num_experts),
            f"{total_cost(run, 'updates'):,.0f}",
            format_count(float(run.byte_forwards)),
            format_seconds(run.device_seconds),
            *_scored(run),
        )
        for run in sorted(runs, key=loss)
    ]
    columns = (
        "Run",
        "Preset",
        "Experts",
        "Updates",
        "Byte-forwards",
        "Device time",
        "Scored on",
        "Loss",
        "95% interval",
    )
    return table(columns, rows, caption="The runs side by side (losses in nats per byte)", numeric_from=2)


def _scored(run: Run) -> tuple[str, str, str]:
    score = run.headline
    if score is None:
        return "", "not scored", ""
    interval = "" if score.ci95 is None else f"{format_loss(score.ci95.low)} to {format_loss(score.ci95.high)}"
    return score.name, format_loss(score.loss_nats_per_byte), interval
