"""Which allocation do saved curves favour at a budget of arithmetic?  Table 10 and Eq. (22), section M.1.

Experts of one width under three allocations: a base, more directions a batch, and as many directions spread over
accumulated batches with directions of their own, as the paper's larger batches are made (appendix E).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from thinwire.experiments.soma import soma_paper_n8
from thinwire.reproduction.item import Findings, Item, Panel, Scale, Series
from thinwire.reproduction.soma_sizes import SEEDS, size_run
from thinwire.reproduction.verdicts import Paired, paired, together
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.budget import Setting, lowest_loss
from thinwire.soma.config import ModelConfig, SomaConfig
from thinwire.soma.interpolated_loss import LossRange, cost_to_reach, loss_at
from thinwire.soma.recorded_curve import CurvePoint, validation_curve

NUM_EXPERTS: dict[Scale, int] = {"smoke": 1, "cpu": 2, "paper": 8}
FACTOR = 8
"""How many times the base's work an update of the larger allocations takes."""
BUDGETS = (0.25, 0.5, 1.0)
"""Parts of the work that all curves of a seed cover."""
ALLOCATIONS = ("base", "directions", "batches")


class Judged(NamedTuple):
    """One seed's curves at one budget."""

    seed: int
    budget: float
    losses: dict[str, LossRange]


def allocation_config(scale: Scale, *, allocation: str, seed: int) -> SomaConfig:
    """One allocation's run; all have as many forwards in all."""
    if scale == "paper":
        config = replace(soma_paper_n8(), seed=seed)
    else:
        config = size_run(scale, num_experts=NUM_EXPERTS[scale], seed=seed)
        embed_width = config.model.embed_width
        job = replace(config.experts, directions=config.experts.directions // 2, decoder="frozen")
        config = replace(config, model=ModelConfig(width=embed_width // 2, embed_width=embed_width), experts=job)
    if allocation == "base":
        return config
    job = config.experts
    larger = replace(
        job,
        updates=job.updates // FACTOR,
        validate_every=max(1, job.validate_every // FACTOR),
        log_every=max(1, job.log_every // FACTOR),
        plateau_updates=max(1, job.plateau_updates // FACTOR),
        directions=job.directions * (FACTOR if allocation == "directions" else 1),
        accumulation=FACTOR if allocation == "batches" else 1,
    )
    return replace(config, experts=larger)


def find(place: Workplace) -> Findings:
    seeds = SEEDS[place.scale]
    curves: dict[tuple[str, int], tuple[CurvePoint, ...]] = {}
    for seed in seeds:
        for allocation in ALLOCATIONS:
            config = allocation_config(place.scale, allocation=allocation, seed=seed)
            curves[allocation, seed] = validation_curve(place.run(f"allocation-{allocation}-s{seed}", config))
    judged = [one for seed in seeds for one in at_budgets({a: curves[a, seed] for a in ALLOCATIONS}, seed=seed)]
    claims = batches_are_lowest([one for one in judged if one.budget == _last_budget(judged, one.seed)])
    settings = {allocation: setting_of(place.scale, allocation=allocation) for allocation in ALLOCATIONS}
    first = [one for one in judged if one.seed == seeds[0]]
    table = "; ".join(f"{one.budget:.2g}: {_range(one.losses['batches'])}" for one in first)
    differences = ", ".join(f"{name} minus batches {claim}" for name, claim in claims.items())
    return Findings(
        rows=[_row(one, settings) for one in judged] + [_crossing(curves, seed=seed) for seed in seeds],
        ours=f"accumulated batches at budgets in operations, seed {seeds[0]}: {table}; at the last, {differences}",
        verdict=together([claim.verdict for claim in claims.values()]),
        panels=[_panel({allocation: curves[allocation, seeds[0]] for allocation in ALLOCATIONS})],
        notes=f"N = {NUM_EXPERTS[place.scale]} of one width, {len(seeds)} seeds, equal arithmetic (Eq. 21), one "
        f"learning rate. Larger allocations make a {FACTOR}th of the updates. Expert validation losses, linear and log "
        "interpolation.",
    )


def setting_of(scale: Scale, *, allocation: str) -> Setting:
    config = allocation_config(scale, allocation=allocation, seed=1)
    job = config.experts
    return Setting(config.clusters.num_clusters, job.directions, job.batch, job.accumulation, job.difference)


def at_budgets(curves: Mapping[str, Sequence[CurvePoint]], *, seed: int) -> list[Judged]:
    """The losses at parts of the work that all curves cover, none beyond its ends."""
    most = min(curve[-1].operations for curve in curves.values())
    found = []
    for part in BUDGETS:
        losses = {name: loss_at(curve, cost=part * most, unit="operations") for name, curve in curves.items()}
        known = {name: loss for name, loss in losses.items() if loss is not None}
        if len(known) == len(curves):
            found.append(Judged(seed, part * most, known))
    return found


def _last_budget(judged: Sequence[Judged], seed: int) -> float:
    return max(one.budget for one in judged if one.seed == seed)


def batches_are_lowest(judged: Sequence[Judged]) -> dict[str, Paired]:
    """By other allocation: its loss minus that of accumulated batches, one difference a seed."""
    return {
        name: paired([one.losses[name].middle - one.losses["batches"].middle for one in judged])
        for name in ALLOCATIONS
        if name != "batches"
    }


def _row(one: Judged, settings: Mapping[str, Setting]) -> dict[str, Any]:
    by_setting = {settings[name]: loss.middle for name, loss in one.losses.items()}
    chosen = lowest_loss(by_setting, loss=by_setting.get)
    row: dict[str, Any] = {"seed": one.seed, "budget_operations": one.budget}
    for name, loss in one.losses.items():
        row |= {f"{name}_low": loss.low, f"{name}_high": loss.high}
    return row | {
        "chosen_directions": chosen.directions,
        "chosen_batch": chosen.batch * chosen.accumulation,
        "chosen_is_accumulated": chosen.accumulation > 1,
    }


def _crossing(curves: Mapping[tuple[str, int], Sequence[CurvePoint]], *, seed: int) -> dict[str, Any]:
    """Operations at which each allocation reaches the highest of their last losses."""
    target = max(curves[name, seed][-1].loss_nats_per_byte for name in ALLOCATIONS)
    row: dict[str, Any] = {"seed": seed, "target_loss": target}
    for name in ALLOCATIONS:
        reached = cost_to_reach(curves[name, seed], loss=target, unit="operations")
        row |= {f"{name}_operations_low": reached and reached.low, f"{name}_operations_high": reached and reached.high}
    return row


def _range(loss: LossRange) -> str:
    return f"{loss.low:.4f}-{loss.high:.4f}"


def _panel(curves: Mapping[str, Sequence[CurvePoint]]) -> Panel:
    series = [
        Series(name, [point.operations for point in curve], [point.loss_nats_per_byte for point in curve])
        for name, curve in curves.items()
    ]
    return Panel("saved curves", "arithmetic operations", "validation loss (nats/byte)", series, x_scale="log")


ITEMS = (
    Item(
        name="soma-table10",
        covers=(),
        shows="losses interpolated from saved curves at equal arithmetic, and the allocation they favour",
        paper="the 0.272M curves favour (N, n_pert, B) = (8, 64, 1024) at 2e18, 4e18 and 8e18 operations: "
        "1.8046-1.8057, 1.7947-1.8000, 1.7848-1.7887",
        rule="accumulated batches below both other allocations at the last budget that all cover, in every seed of "
        "three or more",
        minutes={"smoke": 0.3, "cpu": 12, "paper": 60_000},
        find=find,
    ),
)
