"""Which recorded checkpoint is best within two budgets, and what does it cost to use?  Figures 14 and 15.

Both read the runs of one total size (``soma_sizes``). The loss is the experts' validation loss, each on its own
cluster, weighted by the clusters: it is recorded all along a run. Figure 15's right part has test losses at the ends.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thinwire.base.files import read_json
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.reproduction.item import Findings, Item, Panel, Series
from thinwire.reproduction.soma_sizes import EXPERTS, SEEDS, size_run, size_run_name
from thinwire.reproduction.verdicts import Paired, paired, together
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.interpolated_loss import loss_at
from thinwire.soma.recorded_curve import CurvePoint, shape_of_run, validation_curve

CELLS = 24
"""Of the map, along each budget."""
ACTIVE = 4
PAPER_SAVING, SAVING_TOLERANCE = 51.3, 0.05


class Checkpoint(NamedTuple):
    """A recorded point of a run of N experts; costs in device-seconds.

    Attributes:
        total: of all experts.
        each: the average expert's, ``total / N``: the elapsed time with one device an expert.
    """

    num_experts: int
    total: float
    each: float
    loss: float


Curves = dict[tuple[int, int], tuple[CurvePoint, ...]]
"""By N and seed."""


def curves_of(place: Workplace) -> tuple[Curves, dict[tuple[int, int], Path]]:
    runs = {
        (count, seed): place.run(size_run_name(count, seed=seed), size_run(place.scale, num_experts=count, seed=seed))
        for count in EXPERTS
        for seed in SEEDS[place.scale]
    }
    return {key: validation_curve(run) for key, run in runs.items()}, runs


def find_fig14(place: Workplace) -> Findings:
    curves, _ = curves_of(place)
    seeds = SEEDS[place.scale]
    claims = [tight_budget_claim(curves, seed=seed) for seed in seeds]
    judged = paired([claim["monolith_loss"] - claim["sharded_loss"] for claim in claims])
    first = {count: curve for (count, seed), curve in curves.items() if seed == seeds[0]}
    checkpoints = [
        Checkpoint(count, point.device_seconds, point.device_seconds / count, point.loss_nats_per_byte)
        for count, curve in first.items()
        for point in curve
    ]
    chosen = budget_map(checkpoints)
    counts = {count: sum(cell["num_experts"] == count for cell in chosen) for count in EXPERTS}
    shares = ", ".join(f"N={count} {cells / len(chosen):.0%}" for count, cells in counts.items())
    return Findings(
        rows=[*claims, *chosen, *(checkpoint._asdict() for checkpoint in checkpoints)],
        ours=f"N=1 minus N={EXPERTS[-1]} at N={EXPERTS[-1]}'s whole device time an expert: {judged} nats/byte; "
        f"chosen cells of the map: {shares}",
        verdict=judged.verdict,
        panels=[_map_panel(chosen)],
        notes=f"{len(seeds)} seeds; the map is seed {seeds[0]}'s. At equal device time an expert, not in all. Expert "
        "validation losses, not an ensemble's. The paper also has N=256, and N=1 is never chosen there.",
    )


def tight_budget_claim(curves: Curves, *, seed: int) -> dict[str, Any]:
    """Losses where every expert may take as long as the most sharded run's took, however many there are."""
    most = EXPERTS[-1]
    sharded = curves[most, seed][-1]
    each = sharded.device_seconds / most
    reached = [point for point in curves[1, seed] if point.device_seconds <= each]
    monolith = min((point.loss_nats_per_byte for point in reached), default=curves[1, seed][0].loss_nats_per_byte)
    return {
        "seed": seed,
        "device_seconds_each": each,
        "monolith_loss": monolith,
        "sharded_loss": sharded.loss_nats_per_byte,
    }


def budget_map(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """The lowest loss in every cell of both budgets, on logarithmic scales; cells that nothing fits are left out."""
    totals, eaches = (sorted(getattr(one, name) for one in checkpoints) for name in ("total", "each"))
    cells = []
    for total in np.geomspace(totals[0], totals[-1] * (1 + 1e-9), CELLS):
        for each in np.geomspace(eaches[0], eaches[-1] * (1 + 1e-9), CELLS):
            fitting = [one for one in checkpoints if one.total <= total and one.each <= each]
            if fitting:
                best = min(fitting, key=lambda one: one.loss)
                limits = {"total_budget": float(total), "budget_each": float(each)}
                cells.append(limits | {"num_experts": best.num_experts, "loss": best.loss})
    return cells


def _map_panel(cells: Sequence[dict[str, Any]]) -> Panel:
    series = []
    for count in EXPERTS:
        own = [cell for cell in cells if cell["num_experts"] == count]
        if own:
            x, y = [cell["total_budget"] for cell in own], [cell["budget_each"] for cell in own]
            series.append(Series(f"N = {count}", x, y, kind="points"))
    title, x_label = "N of the lowest loss within both budgets", "device-seconds, all experts"
    return Panel(title, x_label, "device-seconds, average expert", series, x_scale="log", y_scale="log")


def inference_operations(shape: ExpertShape, *, num_experts: int) -> int:
    """min(4, N) F_N: arithmetic of one byte through the routed experts (appendix N)."""
    return min(ACTIVE, num_experts) * shape.operations_per_byte


def papers_saving() -> float:
    """How many times less arithmetic a byte takes in the paper's N = 256 (width 32) than in its N = 2 (width 361)."""
    two = inference_operations(ExpertShape(width=361), num_experts=2)
    return two / inference_operations(ExpertShape(width=32), num_experts=256)


def find_fig15(place: Workplace) -> Findings:
    curves, runs = curves_of(place)
    rows = []
    for (count, seed), run in runs.items():
        shape = shape_of_run(size_run(place.scale, num_experts=count, seed=seed))
        test = read_json(run / "results" / "test.json")
        budget = common_budget(curves, seed=seed)
        loss = loss_at(curves[count, seed], cost=budget, unit="device_seconds")
        rows.append(
            {
                "num_experts": count,
                "seed": seed,
                "operations_per_byte": inference_operations(shape, num_experts=count),
                "budget_device_seconds": budget,
                "loss_at_budget": None if loss is None else loss.middle,
                "trained_device_seconds": curves[count, seed][-1].device_seconds,
                "test_loss": test["loss_nats_per_byte"],
                "test_ci95": test["ci95"],
            }
        )
    saving = papers_saving()
    claims = two_is_lowest(rows)
    cheaper = abs(saving / PAPER_SAVING - 1) <= SAVING_TOLERANCE
    words = "; ".join(f"N={count} minus N=2: {claim}" for count, claim in claims.items())
    return Findings(
        rows=[{key: value for key, value in row.items() if key != "test_ci95"} for row in rows],
        ours=f"at equal device time {words} nats/byte; the paper's saving of N=256 over N=2 computed: {saving:.1f}x",
        verdict=together(["agrees" if cheaper else "differs", *(claim.verdict for claim in claims.values())]),
        panels=_inference_panels(rows, seed=SEEDS[place.scale][0]),
        notes="Left: expert validation losses at one device time, the most that all N of a seed cover. Right: test "
        "losses where the runs ended, with 95% document-bootstrap intervals; training costs differ there.",
    )


def common_budget(curves: Curves, *, seed: int) -> float:
    """The most device-seconds that every N of a seed has recorded."""
    return min(curves[count, seed][-1].device_seconds for count in EXPERTS)


def two_is_lowest(rows: Sequence[dict[str, Any]]) -> dict[int, Paired]:
    """By other N: its loss minus that of N = 2 at equal device time, seed by seed."""
    losses = {(row["num_experts"], row["seed"]): row["loss_at_budget"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    found = {}
    for count in EXPERTS:
        pairs = [(losses[count, seed], losses[2, seed]) for seed in seeds]
        differences = [other - two for other, two in pairs if other is not None and two is not None]
        if count != 2 and differences:
            found[count] = paired(differences)
    return found


def _inference_panels(rows: Sequence[dict[str, Any]], *, seed: int) -> list[Panel]:
    x_label, panels = "operations a byte, routed experts", []
    for title, key in (("at equal training device time", "loss_at_budget"), ("where the runs ended", "test_loss")):
        series = []
        for count in EXPERTS:
            (row,) = [row for row in rows if row["num_experts"] == count and row["seed"] == seed]
            if row[key] is None:
                continue
            low, high = row["test_ci95"]
            error = [(high - low) / 2] if key == "test_loss" else None
            series.append(Series(f"N = {count}", [row["operations_per_byte"]], [row[key]], error, kind="points"))
        y_label = "test loss (nats/byte)" if key == "test_loss" else "validation loss (nats/byte)"
        panels.append(Panel(title, x_label, y_label, series, x_scale="log"))
    return panels


ITEMS = (
    Item(
        name="soma-fig14",
        covers=(),
        shows="the best recorded checkpoint within a total budget and a budget for each expert",
        paper="more shards can lower loss under a tight budget an expert; N=1 is never selected among N=1, 2, 8, 256",
        rule="at the device time an expert that the most sharded run took, its loss is below the monolith's in every "
        "seed of three or more",
        minutes={"smoke": 0.3, "cpu": 27, "paper": 30_000},
        find=find_fig14,
    ),
    Item(
        name="soma-fig15",
        covers=(),
        shows="loss against the arithmetic of inference, at one training budget and where the runs ended",
        paper="N=2 has the lowest loss at 100 GPU-hours; N=256 takes 51.3 times less expert compute a token than N=2",
        rule="N=2 below N=1 and N=8 at equal device time in every seed of three or more; the paper's 51.3 follows "
        "from its widths within 5%",
        minutes={"smoke": 0.3, "cpu": 27, "paper": 30_000},
        find=find_fig15,
    ),
)
