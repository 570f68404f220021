"""How do measurements of a SOMA run look?  Gradient noise, loss against active experts, pairs of experts."""

from typing import Any

from thinwire.report.figures import BLUE, FONT_POINTS, INK, QUIET, VERMILLION, label, new_figure, style_axes
from thinwire.report.measurement_records import ActiveExpertsResult, ComplementarityResult, VarianceResult

LOG_FROM_EXPERTS = 17


def variance_figure(result: VarianceResult) -> Any:
    """Measured and predicted R_g and R on one scale; the predicted variance of the run's allocation and the best."""
    errors = [one for one in result.compared if not one.name.startswith("cosine")]
    figure = new_figure(0.95 + 0.3 * max(len(errors), len(result.allocations)), width_inches=8.4)
    left, right = figure.subplots(1, 2)
    _rows(left, [one.name for one in errors])
    for place, one in enumerate(errors):
        left.plot(one.predicted, place, "|", color=VERMILLION, markersize=14, markeredgewidth=2)
        reach = None if one.standard_error is None else 1.96 * one.standard_error
        left.errorbar(one.measured, place, xerr=reach, fmt="o", color=BLUE, markersize=5, capsize=3)
    left.set_title("measured (blue, 95%) and predicted (stroke)", fontsize=FONT_POINTS, color=QUIET)
    left.set_xlabel("squared error over squared gradient", fontsize=FONT_POINTS)
    _rows(right, [f"{one.name}: {one.directions:,} × {one.batch:,}" for one in result.allocations])
    for place, allocation in enumerate(result.allocations):
        variance = allocation.variance
        right.plot(variance, place, "o" if place else "D", color=BLUE if place else INK, markersize=6)
        right.annotate(f"{variance:,.4g}", (variance, place), (6, 5), textcoords="offset points", fontsize=FONT_POINTS)
    right.set_title("directions × windows, at equal forwards", fontsize=FONT_POINTS, color=QUIET)
    right.set_xlabel("predicted relative variance", fontsize=FONT_POINTS)
    for axes in (left, right):
        axes.margins(x=0.18)
        axes.set_xlim(left=0)
    return figure


def _rows(axes: Any, names: list[str]) -> None:
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    for text in axes.set_yticks(range(len(names)), [label(name) for name in names]):
        text.label1.set_parse_math(False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)


def active_experts_figure(result: ActiveExpertsResult) -> Any:
    """Loss against k, with the interval of its difference to k = 1; dashed, the run's own k; a ring, the best one."""
    counts = [row.active_experts for row in result.sweep]
    losses = [row.loss_nats_per_byte for row in result.sweep]
    figure = new_figure(2.9)
    axes = figure.add_subplot()
    style_axes(axes)
    low, high = ([losses[0] - getattr(row.below_one_expert, end) for row in result.sweep] for end in ("high", "low"))
    axes.fill_between(counts, low, high, color=BLUE, alpha=0.15, linewidth=0)
    is_short = len(counts) < LOG_FROM_EXPERTS
    axes.plot(counts, losses, color=BLUE, marker="o" if is_short else "", markersize=4)
    axes.plot(result.best, losses[result.best - 1], "o", color="none", markeredgecolor=VERMILLION, markersize=10)
    axes.axvline(result.routed_experts, color=INK, linestyle="--", linewidth=1)
    if is_short:
        axes.set_xticks(counts)
    else:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("active experts k", fontsize=FONT_POINTS)
    axes.set_ylabel(f"loss, {result.split} split (nats/byte)", fontsize=FONT_POINTS)
    return figure


def complementarity_figure(result: ComplementarityResult) -> Any:
    """Every pair, pale, where there are few; groups of pairs with their standard errors."""
    figure = new_figure(2.9)
    axes = figure.add_subplot()
    style_axes(axes)
    if result.pairs:
        axes.plot(*zip(*result.pairs, strict=True), "o", color=QUIET, alpha=0.35, markersize=3, markeredgewidth=0)
    correlations = [group.correlation for group in result.groups]
    reductions = [group.reduction for group in result.groups]
    errors = [group.standard_error for group in result.groups]
    axes.errorbar(correlations, reductions, yerr=errors, fmt="-o", color=BLUE, markersize=5, capsize=2, linewidth=1.2)
    axes.axhline(0, color=QUIET, linewidth=0.8)
    axes.set_xlabel("correlation of the two experts' errors", fontsize=FONT_POINTS)
    axes.set_ylabel("reduction by averaging (nats/byte)", fontsize=FONT_POINTS)
    return figure
