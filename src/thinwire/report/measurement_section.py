"""What does the page say of a SOMA run's measurements?  A figure, a sentence and a table for each that is there."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from thinwire.base.units import format_count
from thinwire.report.facts import count_of, format_loss
from thinwire.report.markup import attribute, figure, paragraph, table
from thinwire.report.measurement_figures import active_experts_figure, complementarity_figure, variance_figure
from thinwire.report.measurement_records import (
    ActiveExpertsResult,
    ComplementarityResult,
    Measurements,
    ThroughputResult,
    VarianceResult,
)
from thinwire.report.svg import inline_svg

MAX_ROWS = 16


def measurement_sections(found: Measurements, *, name: str) -> list[tuple[str, str]]:
    """(title, content) of what has been measured, in a fixed order; ``name`` is the prefix of the figures' ids."""
    sections = []
    if found.variance is not None:
        sections.append(("Gradient noise", _variance(found.variance, name)))
    if found.active_experts is not None:
        sections.append(("How many experts answer", _active_experts(found.active_experts, name)))
    if found.complementarity is not None:
        sections.append(("Averaging two experts", _complementarity(found.complementarity, name)))
    if found.throughput is not None:
        sections.append(("Speed", paragraph(throughput_sentence(found.throughput))))
    return sections


def measurement_drawings(found: Measurements) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(file name, how to draw it) of every figure."""
    if found.variance is not None:
        yield "variance", partial(variance_figure, found.variance)
    if found.active_experts is not None:
        yield "active-experts", partial(active_experts_figure, found.active_experts)
    if found.complementarity is not None:
        yield "complementarity", partial(complementarity_figure, found.complementarity)


def _variance(result: VarianceResult, name: str) -> str:
    words = variance_sentence(result)
    picture = inline_svg(variance_figure(result), name=f"{name}-variance", description=attribute(words))
    caption = (
        "R_g is the variance of an estimate around its own batch's gradient, R its squared error against a reference "
        "by backpropagation, both over the squared gradient. Predictions are closed forms."
    )
    rows = [
        (
            one.name,
            f"{one.measured:.4g}",
            "" if one.standard_error is None else f"{one.standard_error:.2g}",
            f"{one.predicted:.4g}",
        )
        for one in result.compared
    ]
    columns = ("Quantity", "measured", "standard error", "predicted")
    return paragraph(words) + figure(picture, caption=caption) + table(columns, rows, caption="Measured and predicted")


def variance_sentence(result: VarianceResult) -> str:
    """What noise there is, and what allocation would have less."""
    experts = ", ".join(
        f"{expert} (update {update:,})" for expert, update in zip(result.experts, result.updates, strict=True)
    )
    words = f"Measured on experts {experts}: nu = {result.nu:.3g} and a = {result.a:,.0f}."
    own, *others = result.allocations
    if others:
        better = others[-1]  # one-sided, and of least cost where that was measured
        rule, _, kind = better.name.partition(", ")
        words += (
            f" At as many forwards an update, {better.directions:,} {kind} directions of {better.batch:,} windows have "
            f"the {rule} and a relative variance of {better.variance:,.4g}; the run's own {own.directions:,} of "
            f"{own.batch:,} have {own.variance:,.4g}."
        )
    return words


def _active_experts(result: ActiveExpertsResult, name: str) -> str:
    words = active_experts_sentence(result)
    picture = inline_svg(active_experts_figure(result), name=f"{name}-active-experts", description=attribute(words))
    caption = (
        f"Loss on {count_of(result.windows, f'{result.split} window')}; the band is the 95% interval of the "
        "difference to one expert, paired over documents; the dashed line is the run's own k, the ring the lowest "
        "loss. No weight changes with k."
    )
    shown = result.sweep
    if len(shown) > MAX_ROWS:
        wanted = {round(1.5**power) for power in range(MAX_ROWS)} | {result.best, result.routed_experts, len(shown)}
        shown = tuple(row for row in shown if row.active_experts in wanted)
    rows = [
        (
            str(row.active_experts),
            f"{row.loss_nats_per_byte:.4f}",
            f"{row.ci95.low:.4f} to {row.ci95.high:.4f}",
            "" if row.part_of_gain is None else f"{row.part_of_gain:.0%}",
            format_count(float(row.operations_per_byte)),
        )
        for row in shown
    ]
    columns = ("Active experts", "nats/byte", "95% interval", "of the gain", "operations a byte")
    listed = table(columns, rows, caption="Loss and expert arithmetic for each k")
    return paragraph(words) + figure(picture, caption=caption, style="middle") + listed


def active_experts_sentence(result: ActiveExpertsResult) -> str:
    """How much the run's k takes of what the best k gains over one expert."""
    one, best, own = result.sweep[0], result.sweep[result.best - 1], result.sweep[result.routed_experts - 1]
    if result.best == 1:
        return f"One expert is best, at {format_loss(one.loss_nats_per_byte)} nats/byte; more of them do not help."
    gain = one.loss_nats_per_byte - best.loss_nats_per_byte
    words = f"{result.best} of {len(result.sweep)} experts are best, {gain:.4f} nats/byte below one expert."
    if own.part_of_gain is not None:
        words += f" The run's k = {result.routed_experts} takes {own.part_of_gain:.0%} of that."
    return words


def _complementarity(result: ComplementarityResult, name: str) -> str:
    words = complementarity_sentence(result)
    drawn = complementarity_figure(result)
    picture = inline_svg(drawn, name=f"{name}-complementarity", description=attribute(words))
    caption = (
        "A pair's reduction is how far the loss of the two experts' averaged prediction lies below the mean of their "
        "losses. Errors are losses less the mean of all experts on the same byte. Blue: groups of pairs with standard "
        "errors."
    )
    return paragraph(words) + figure(picture, caption=caption, style="middle")


def complementarity_sentence(result: ComplementarityResult) -> str:
    """The slope with its interval, in words."""
    pairs = count_of(result.num_pairs, "pair")
    words = f"Averaging two experts lowers the loss by {result.mean_reduction:.4f} nats/byte on average over {pairs}."
    if result.slope is None:
        return f"{words} All pairs err equally alike."
    words += f" The slope is {result.slope:+.4f} nats/byte a unit of correlation"
    between = result.slope_ci95
    if between is None:
        return f"{words}; an interval needs four experts."
    words += f" (95%: {between.low:+.4f} to {between.high:+.4f})"
    if between.high < 0:
        return f"{words}: experts that err on different bytes gain more."
    if between.low > 0:
        return f"{words}: experts that err alike gain more."
    return f"{words}: whether different errors help is not decided."


def throughput_sentence(result: ThroughputResult) -> str:
    """Both rates, with the peak and the routing beside them."""
    training = f"{format_count(result.byte_forwards_per_s)} byte-forwards a second, {result.fraction_of_peak:.0%}"
    scoring = f"{format_count(result.tokens_per_s)} scored bytes a second"
    return (
        f"On {result.device} ({result.implementation}): training makes {training} of the peak; routed "
        f"scoring reads {scoring}, with {result.routing_share:.1%} of its time in routing."
    )
