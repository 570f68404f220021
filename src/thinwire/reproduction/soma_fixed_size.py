"""One large expert or several small ones, at one total size?  Figure 1 and Tables 4 to 7, with BPTT beside them.

Arms of all these items are shared: the folder ``fixed-size`` holds them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any, NamedTuple

from thinwire.reproduction.arms import (
    Arm,
    Stage,
    end_of,
    evenly,
    prepared_run,
    train_arm,
    update_operations,
    warm_start,
)
from thinwire.reproduction.eggroll_arm import eggroll_curve
from thinwire.reproduction.item import Findings, Item, Panel, Scale, Series
from thinwire.reproduction.settings import SIZES, base_config
from thinwire.reproduction.verdicts import paired, together, value_at
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.config import TrainingConfig
from thinwire.soma.model import Expert
from thinwire.soma.run import SomaRun

SHARED = "fixed-size"
BUDGET_OPERATIONS: dict[Scale, float] = {"smoke": 2e9, "cpu": 3e12, "paper": 1.2e19}
"""Of an arm (Eq. 21). The paper's 150 GPU-hours of N = 2 are 65,000 updates of 1.8e14 operations."""
SEARCH_OPERATIONS: dict[Scale, float] = {"smoke": 1e9, "cpu": 1e12, "paper": 2.4e16}
NUM_STAGES = 4
Curve = list[Stage]
PARTS_OF_BUDGET = (0.5, 0.75, 1.0)


def fixed_run(place: Workplace, num_experts: int) -> SomaRun:
    name = f"size-base-n{num_experts}"
    return prepared_run(place, name, base_config(place.scale, num_experts=num_experts, size="fixed_total"))


class Contestant(NamedTuple):
    """N experts and their rule; ``name`` tells rules apart."""

    num_experts: int
    name: str
    training: TrainingConfig


def trained(place: Workplace, contestant: Contestant, *, budget: float) -> list[Curve]:
    """An arm for every seed, in stages up to the budget of operations."""
    shared, run = replace(place, item=SHARED), fixed_run(place, contestant.num_experts)
    stages = stages_of(run, contestant, budget=budget)
    return [
        train_arm(shared, run, arm, start=warm_start(run), stages=stages) for arm in arms_of(place.scale, contestant)
    ]


def ends_of(place: Workplace, contestant: Contestant, *, budget: float) -> list[list[Expert]]:
    """The experts at the end of the same arms, one list a seed."""
    shared, run = replace(place, item=SHARED), fixed_run(place, contestant.num_experts)
    last = stages_of(run, contestant, budget=budget)[-1]
    return [
        end_of(shared, run, arm, start=warm_start(run), updates=last).experts
        for arm in arms_of(place.scale, contestant)
    ]


def arms_of(scale: Scale, contestant: Contestant) -> list[Arm]:
    num_experts, name, training = contestant
    return [Arm(f"n{num_experts}-{name}-s{seed}", training, seed) for seed in SIZES[scale].seeds]


def stages_of(run: SomaRun, contestant: Contestant, *, budget: float) -> list[int]:
    last = int(budget // update_operations(run.shape, contestant.training, num_experts=contestant.num_experts))
    return evenly(max(NUM_STAGES, last), num_stages=NUM_STAGES)


def usual(place: Workplace, *, directions: int = 1) -> TrainingConfig:
    """Zero-order training with the head by Eq. (7); ``directions`` times as many as usual."""
    job = SIZES[place.scale].job
    return replace(job, decoder="trained", directions=directions * job.directions)


def backward(place: Workplace) -> TrainingConfig:
    return replace(usual(place), estimator="bptt", tied_gradient="full", batch=4 * SIZES[place.scale].job.batch)


def seconds(curve: Curve) -> list[float]:
    return [stage.device_seconds for stage in curve]


def byte_forwards(curve: Curve) -> list[float]:
    return [float(stage.byte_forwards) for stage in curve]


def losses(curve: Curve) -> list[float]:
    return [stage.loss for stage in curve]


def at_equal(
    arms: dict[str, list[Curve]], cost: Callable[[Curve], list[float]]
) -> tuple[float, dict[str, list[float]]]:
    """The largest cost that every arm reaches, and each arm's losses there, a seed each."""
    common = min(cost(curve)[-1] for curves in arms.values() for curve in curves)
    found = {
        name: [value for curve in curves if (value := value_at(cost(curve), losses(curve), cost=common)) is not None]
        for name, curves in arms.items()
    }
    return common, found


def contestants(place: Workplace) -> dict[str, Contestant]:
    """Of Figure 1, but for EGGROLL."""
    return {
        "N = 2": Contestant(2, "spsa", usual(place)),
        "monolith": Contestant(1, "spsa", usual(place)),
        "monolith, 4 n_pert": Contestant(1, "spsa-x4", usual(place, directions=4)),
    }


def find_figure_1(place: Workplace) -> Findings:
    budget = BUDGET_OPERATIONS[place.scale]
    experts = {name: trained(place, one, budget=budget) for name, one in contestants(place).items()}
    shared, base = replace(place, item=SHARED), fixed_run(place, 2)
    eggroll = [
        eggroll_curve(shared, base, seed=seed, budget=budget, num_stages=NUM_STAGES)
        for seed in SIZES[place.scale].seeds
    ]
    arms = experts | {"EGGROLL": eggroll}
    common, by_time = at_equal(arms, seconds)
    forwards, by_forwards = at_equal(arms, byte_forwards)
    claims = {
        f"{name} - N = 2, equal {what}": paired([b - a for a, b in zip(found["N = 2"], found[name], strict=True)])
        for what, found in (("device time", by_time), ("byte-forwards", by_forwards))
        for name in arms
        if name != "N = 2"
    }
    rows = _rows(arms) + [
        {"claim": name, "mean_difference": c.mean, "low": c.low, "high": c.high, "verdict": c.verdict}
        for name, c in claims.items()
    ]
    judged = [claim.verdict for name, claim in claims.items() if name.endswith("device time")]
    return Findings(
        rows,
        f"at {common:.3g} device-seconds: " + ", ".join(f"{name} {mean(v):.4f}" for name, v in by_time.items()),
        together(judged),
        [
            _panel("SPSA at equal total size", experts, seconds, "device-seconds, all experts"),
            _panel("with EGGROLL", arms, seconds, "device-seconds, all experts"),
        ],
        f"{_sizes(place)} At {forwards:.3g} byte-forwards: "
        + ", ".join(f"{name} {mean(v):.4f}" for name, v in by_forwards.items())
        + ". A byte-forward costs a monolith more arithmetic. Seed runs are left out, as in the paper.",
    )


def find_table_5(place: Workplace) -> Findings:
    budget = BUDGET_OPERATIONS[place.scale]
    pairs = {
        n: (
            trained(place, Contestant(n, "spsa", usual(place)), budget=budget),
            trained(place, Contestant(n, "bptt", backward(place)), budget=budget / 4),
        )
        for n in (1, 2, 8)
    }
    arms = {f"N = {n}, {name}": pair[i] for n, pair in pairs.items() for i, name in enumerate(("SOMA", "BPTT"))}
    rows, claims, words = _rows(arms), [], []
    for n, pair in pairs.items():
        both = dict(zip(("SOMA", "BPTT"), pair, strict=True))
        for unit, cost in (("device_seconds", seconds), ("byte_forwards", byte_forwards)):
            common, _ = at_equal(both, cost)
            for part in PARTS_OF_BUDGET:
                claim = paired(_gaps(both, cost, at=part * common))
                claims.append(claim.verdict)
                measured = {"soma_minus_bptt": claim.mean, "low": claim.low, "high": claim.high}
                rows.append({"arm": f"N = {n}", unit: part * common, **measured, "verdict": claim.verdict})
            words.append(f"N = {n}: SOMA - BPTT {claim} at {common:.3g} {unit.replace('_', '-')}")
    return Findings(
        rows,
        "; ".join(words),
        together(claims),
        [_panel("SOMA and BPTT", arms, seconds, "device-seconds, all experts")],
        f"{_sizes(place)} Equal: device time, then byte-forwards, of which an update by backpropagation counts three "
        "times its batch's; losses interpolated between stages. Backpropagation learns E fully.",
    )


def _gaps(both: dict[str, list[Curve]], cost: Callable[[Curve], list[float]], *, at: float) -> list[float]:
    """SOMA's loss less BPTT's at a cost, a seed each."""
    found = {name: [value_at(cost(curve), losses(curve), cost=at) for curve in curves] for name, curves in both.items()}
    return [a - b for a, b in zip(found["SOMA"], found["BPTT"], strict=True) if a is not None and b is not None]


def find_table_6(place: Workplace) -> Findings:
    budget, base = SEARCH_OPERATIONS[place.scale], usual(place)
    rates, radii = [base.learning_rate * f for f in (0.5, 1, 2)], [base.epsilon * f for f in (0.5, 2)]
    settings = [(rate, base.epsilon) for rate in rates] + [(rates[0], radius) for radius in radii]
    best: dict[int, list[float]] = {}
    rows: list[dict[str, Any]] = []
    for n in (1, 2):
        ends = []
        for rate, radius in settings:
            training = replace(base, learning_rate=rate, epsilon=radius)
            curves = trained(place, Contestant(n, f"search-{rate:g}-{radius:g}", training), budget=budget)
            ends.append([curve[-1].loss for curve in curves])
            rows.append(
                {"num_experts": n, "learning_rate": rate, "epsilon": radius, "mean_loss": mean(ends[-1])}
                | {"standard_deviation": stdev(ends[-1]), "device_seconds": mean(c[-1].device_seconds for c in curves)}
            )
        best[n] = [min(values) for values in zip(*ends, strict=True)]
    claim = paired([one - two for one, two in zip(best[1], best[2], strict=True)])
    return Findings(
        rows,
        f"monolith - N = 2, each seed's best of {len(settings)}: {claim} nats/byte",
        claim.verdict,
        [],
        f"{_sizes(place)} Equal: arithmetic operations ({budget:.2g} an arm). Settings are chosen and judged on the "
        "same test windows, so both losses are a little too low; epsilon is searched at the lowest rate.",
    )


def _rows(arms: dict[str, list[Curve]]) -> list[dict[str, Any]]:
    return [
        {"arm": name, "seed_index": index, **stage._asdict()}
        for name, curves in arms.items()
        for index, curve in enumerate(curves)
        for stage in curve
    ]


def _panel(title: str, arms: dict[str, list[Curve]], cost: Callable[[Curve], Sequence[float]], label: str) -> Panel:
    series = []
    for name, curves in arms.items():
        points = list(zip(*curves, strict=True))
        series.append(
            Series(
                name,
                [mean(at) for at in zip(*map(cost, curves), strict=True)],
                [mean(s.loss for s in p) for p in points],
            )
        )
    return Panel(title, label, "test loss, nats/byte", series)


def _sizes(place: Workplace) -> str:
    sizes = SIZES[place.scale]
    widths = ", ".join(f"N = {n} of width {d}" for n, d in sizes.total_widths.items())
    job = sizes.job
    return (
        f"{widths}; n_pert = {job.directions}, B = {job.batch}, T = {job.window_bytes}, every expert its own head; "
        f"{len(sizes.seeds)} seeds of batches and probes from one start."
    )


ITEMS = (
    Item(
        name="soma-fig1",
        covers=("soma-table4",),
        shows="test loss against aggregate device time at equal total size",
        paper="near 150 GPU-hours: N = 2 1.76, monolith 2.00 / 2.11 / 2.00 (n_pert 64 / 256 / 1024), EGGROLL 2.21",
        rule="N = 2 below every monolith and EGGROLL at equal device time, in every seed",
        minutes={"smoke": 0.6, "cpu": 6, "paper": 100_000},
        find=find_figure_1,
    ),
    Item(
        name="soma-table5",
        covers=(),
        shows="BPTT against zero-order training at common budgets",
        paper="BPTT lower at every budget: at 100 GPU-hours N = 1 2.03 / 1.01, N = 2 1.83 / 1.05, N = 8 2.02 / 1.18",
        rule="BPTT below zero-order at every budget of device time and of byte-forwards, in every seed",
        minutes={"smoke": 0.6, "cpu": 8, "paper": 100_000},
        find=find_table_5,
    ),
    Item(
        name="soma-table6",
        covers=("soma-table7",),
        shows="learning rate and epsilon searched for both architectures",
        paper="N = 2 lower in all three seeds, by 0.0396 nats/byte; both choose the lowest learning rate",
        rule="N = 2 at its best setting below the monolith at its best, in every seed",
        minutes={"smoke": 0.5, "cpu": 6, "paper": 3000},
        find=find_table_6,
    ),
)
