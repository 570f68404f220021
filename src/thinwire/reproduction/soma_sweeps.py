"""What do more experts, more directions and larger batches buy?  Figures 7, 8 and 13: sweeps from one recipe.

Larger batches are accumulated: every one of them has directions of its own, as in the paper.
"""

from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import Any, NamedTuple

from thinwire.reproduction.arms import Arm, Stage, evenly, prepared_run, train_arm, warm_start
from thinwire.reproduction.item import Findings, Item, Panel, Scale, Series
from thinwire.reproduction.settings import SIZES, base_config
from thinwire.reproduction.verdicts import cost_to_fall_to, paired, together
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.config import TrainingConfig

EXPERTS: dict[Scale, tuple[int, ...]] = {"smoke": (1, 2), "cpu": (1, 2, 8), "paper": (1, 2, 8, 32, 256)}
SWEPT_AT: dict[Scale, int] = {"smoke": 2, "cpu": 2, "paper": 8}
"""N of the sweeps over directions and batches."""
FACTORS: dict[Scale, tuple[int, ...]] = {"smoke": (1, 4), "cpu": (1, 4, 16), "paper": (1, 4, 16)}
"""Of n_pert, from a quarter of the usual number of directions; and of B by accumulation."""
UPDATES: dict[Scale, int] = {"smoke": 6, "cpu": 60, "paper": 4_000_000}
NUM_STAGES = 3


class Point(NamedTuple):
    """One setting of a sweep; ``value`` is what is swept."""

    sweep: str
    value: int
    num_experts: int
    training: TrainingConfig


def points_of(scale: Scale) -> list[Point]:
    """All settings; the usual one stands in every sweep."""
    job, at = SIZES[scale].job, SWEPT_AT[scale]
    fewest = max(1, job.directions // 4)
    return [
        *(Point("N", n, n, job) for n in EXPERTS[scale]),
        *(Point("n_pert", fewest * f, at, replace(job, directions=fewest * f)) for f in FACTORS[scale]),
        *(Point("B", job.batch * f, at, replace(job, accumulation=f)) for f in FACTORS[scale]),
    ]


def find(place: Workplace) -> Findings:
    sizes = SIZES[place.scale]
    curves = {point: _curves(place, point) for point in points_of(place.scale)}
    rows: list[dict[str, Any]] = [
        {"sweep": point.sweep, "value": point.value, "num_experts": point.num_experts, "seed_index": i}
        | stage._asdict()
        for point, found in curves.items()
        for i, curve in enumerate(found)
        for stage in curve
    ]
    words, verdicts, panels = [], [], []
    for sweep in ("N", "n_pert", "B"):
        points = [point for point in curves if point.sweep == sweep]
        claims = [
            paired([a[-1].loss - b[-1].loss for a, b in zip(curves[less], curves[more], strict=True)])
            for less, more in pairwise(points)
        ]
        if sweep == "N":
            verdicts += [claim.verdict for claim in claims]
        ends = ", ".join(f"{p.value}: {mean(c[-1].loss for c in curves[p]):.4f}" for p in points)
        words.append(f"{sweep} {ends} ({together(claim.verdict for claim in claims)})")
        rows += _crossings(sweep, {point.value: curves[point] for point in points})
        panels += [_panel(sweep, {point.value: curves[point] for point in points}, cost) for cost in _COSTS]
    return Findings(
        rows,
        "; ".join(words),
        together(verdicts),
        panels,
        f"Width {sizes.width}, T = {sizes.job.window_bytes}, {UPDATES[place.scale]:,} updates of every expert from "
        f"each N's own seed run, {len(sizes.seeds)} seeds of batches and probes. Equal: updates, hence elapsed time at "
        "one device an expert; aggregate work grows along every sweep. Crossings of a common loss stand in the rows.",
    )


def _curves(place: Workplace, point: Point) -> list[list[Stage]]:
    config = base_config(place.scale, num_experts=point.num_experts)
    run = prepared_run(place, f"base-n{point.num_experts}", config)
    stages = evenly(UPDATES[place.scale], num_stages=NUM_STAGES)
    training = point.training
    name = f"n{point.num_experts}-p{training.directions}-a{training.accumulation}"
    return [
        train_arm(place, run, Arm(f"{name}-s{seed}", training, seed), start=warm_start(run), stages=stages)
        for seed in SIZES[place.scale].seeds
    ]


def _crossings(sweep: str, curves: dict[int, list[list[Stage]]]) -> list[dict[str, Any]]:
    """Device-seconds of all experts at which each setting first reaches the worst setting's last loss (Fig. 13)."""
    target = max(mean(curve[-1].loss for curve in found) for found in curves.values())
    rows = []
    for value, found in curves.items():
        costs = [
            cost_to_fall_to(target, costs=[s.device_seconds for s in curve], losses=[s.loss for s in curve])
            for curve in found
        ]
        rows += [
            {"crossing_of": sweep, "value": value, "seed_index": i, "target_loss": target, "device_seconds": cost}
            for i, cost in enumerate(costs)
        ]
    return rows


_COSTS = {"updates": "updates of every expert", "device_seconds": "device-seconds, all experts"}


def _panel(sweep: str, curves: dict[int, list[list[Stage]]], cost: str) -> Panel:
    series = []
    for value, found in curves.items():
        at = list(zip(*found, strict=True))
        costs = [mean(getattr(stage, cost) for stage in stages) for stages in at]
        series.append(Series(f"{sweep} = {value}", costs, [mean(stage.loss for stage in stages) for stages in at]))
    return Panel(f"sweep over {sweep}", _COSTS[cost], "test loss, nats/byte", series)


ITEMS = (
    Item(
        name="soma-fig7",
        covers=("soma-fig8", "soma-fig13"),
        shows="sweeps over N, n_pert and B against updates and aggregate device time",
        paper="at 184 h and fixed width, N = 1 1.84, N = 8 1.77, N = 256 1.72; N = 8 improves with n_pert (1.69 at "
        "1,024) and B; B = 1,024 reaches 1.90 with 1.55 times fewer GPU-hours than n_pert = 1,024",
        rule="every larger N below the one before at equal updates, in every seed",
        minutes={"smoke": 0.4, "cpu": 12, "paper": 500_000},
        find=find,
    ),
)
