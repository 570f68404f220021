"""Does sharding lower an estimate's variance as the closed form says?  R_g at fixed weights (Fig. 10, appendix G.1)."""

from dataclasses import asdict, dataclass
from functools import partial
from math import sqrt
from typing import Any

from torch import Tensor

from thinwire.base.seeds import stream_key
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.reproduction.item import Findings, Item, Panel, Scale, Series, Verdict
from thinwire.reproduction.laboratory import LABORATORIES, Stage, ensemble, held_out_windows
from thinwire.reproduction.verdicts import together
from thinwire.reproduction.workplace import Workplace
from thinwire.soma import theory
from thinwire.soma.exact_gradients import GradientMoments
from thinwire.soma.stacked_gradients import StackedExperts, stacked_gradients
from thinwire.soma.variance import (
    DirectionSample,
    Spread,
    Subject,
    averaged_spread,
    central_spread,
    coordinate_groups,
    one_sided_spread,
    sample_directions,
    small_epsilon_spread,
)

DIRECTIONS = 64
"""n_pert of R_g, as in the paper."""
WINDOWS = 2
AVERAGES = (1, 2, 4, 8, 16, 32)
STAGES: tuple[Stage, ...] = ("early", "late")
PREDICTION_TOLERANCE, LAW_TOLERANCE = 0.05, 0.03
PREDICTION_RESOLVED, LAW_RESOLVED = 0.025, 0.01
"""Relative standard errors above these cannot tell the tolerances from nothing."""


@dataclass(frozen=True)
class Effort:
    """Directions that are sampled, per ensemble; every expert has its share, and never less than the least.

    Attributes:
        central: for R_g. One expert's squared slopes vary like a chi-squared variable, so N experts need 1/N as many.
        least: of one expert.
        averaged: of these, those that are averaged in groups.
        exact: of these, those that are evaluated again in float64.
    """

    central: int
    least: int
    averaged: int
    exact: int

    def share(self, total: int, *, num_experts: int) -> int:
        return max(self.least, total // num_experts)


EFFORTS: dict[Scale, Effort] = {
    "smoke": Effort(central=512, least=64, averaged=256, exact=64),
    "cpu": Effort(central=4096, least=64, averaged=512, exact=64),
    "paper": Effort(central=4096, least=128, averaged=512, exact=128),
}


def find_fig10(place: Workplace) -> Findings:
    lab, effort = LABORATORIES[place.scale], EFFORTS[place.scale]
    windows = held_out_windows(place, sets={"fixed": WINDOWS})["fixed"]
    task = place.voice.progress.task("relative variance", len(lab.sizes) * len(STAGES))
    rows = []
    for num_experts in lab.sizes:
        for stage in STAGES:
            inputs = [asdict(lab), asdict(effort), num_experts, stage, WINDOWS, list(AVERAGES)]
            compute = partial(measure_ensemble, place, num_experts=num_experts, stage=stage, windows=windows)
            rows.append(place.part(f"n{num_experts}-{stage}", inputs=inputs, compute=compute))
            task.advance()
    task.close()
    return Findings(_csv_rows(rows), _ours(rows), verdict_of(rows), _panels(rows), _notes(place))


def measure_ensemble(place: Workplace, *, num_experts: int, stage: Stage, windows: Tensor) -> dict[str, Any]:
    """R_g of every expert and coordinate at one stage on the same windows, through the kernels that train."""
    lab, effort = LABORATORIES[place.scale], EFFORTS[place.scale]
    experts, shape = ensemble(place, num_experts=num_experts, stage=stage), lab.shape(num_experts)
    exact = stacked_gradients(experts.double(), shape=shape, windows=windows.expand(num_experts, -1, -1))
    gradients = exact.theta.numpy()
    central, one_sided, same_probes = [], [], []
    averages = dict.fromkeys(AVERAGES, 0.0)
    in_float32 = in_float64 = 0.0
    for index in range(num_experts):
        subject = Subject(experts.expert(index), shape, lab.epsilon, threads=place.threads)
        address = ProbeAddress(stream_key(lab.seed, "laboratory-probe", index), lab.updates_of(stage))
        sample = sample_directions(
            subject,
            windows=windows,
            address=address,
            directions=effort.share(effort.central, num_experts=num_experts),
            gradient=gradients[index],
        )
        central.append(central_spread(sample, directions=DIRECTIONS))
        one_sided.append(one_sided_spread(sample, directions=DIRECTIONS))
        same_probes.append(small_epsilon_spread(sample, directions=DIRECTIONS))
        fewer = first(sample, effort.share(effort.averaged, num_experts=num_experts))
        for average in AVERAGES:
            averages[average] += averaged_spread(fewer, average=average)
        again = _in_float64(experts, index, subject=subject, windows=windows, address=address, directions=effort.exact)
        in_float64 += central_spread(again, directions=DIRECTIONS).variance
        in_float32 += central_spread(first(sample, effort.exact), directions=DIRECTIONS).variance
    terms = theory.recorded_terms(
        [
            coordinate_groups(GradientMoments(gradient, gradient, WINDOWS, 0.0), shape=shape, is_population=False)
            for gradient in gradients
        ]
    )
    norm = float((gradients**2).sum())
    return {
        "num_experts": num_experts,
        "stage": stage,
        "updates": lab.updates_of(stage),
        "parameters": lab.total_parameters(num_experts),
        "loss_nats_per_byte": float(exact.losses.mean()),
        "gradient_norm": sqrt(norm),
        **_summed("r_g", central, norm),
        "r_g_predicted": theory.centred_variance(terms, directions=DIRECTIONS, difference="central"),
        "r_g_exact_slopes_same_probes": sum(one.variance for one in same_probes) / norm,
        **_summed("r_g_one_sided", one_sided, norm),
        "r_g_one_sided_predicted": theory.centred_variance(terms, directions=DIRECTIONS, difference="one_sided"),
        "float64_over_float32": in_float64 / in_float32,
        "averaged_directions_of_an_expert": effort.share(effort.averaged, num_experts=num_experts),
        "averaged": [averages[average] / norm for average in AVERAGES],
    }


def first(sample: DirectionSample, count: int) -> DirectionSample:
    """The sample's first directions."""
    return sample._replace(losses=sample.losses[:count], active=sample.active[:count], slopes=sample.slopes[:count])


def _in_float64(
    experts: StackedExperts, index: int, *, subject: Subject, windows: Tensor, address: ProbeAddress, directions: int
) -> DirectionSample:
    """The same probes about the same weights, by the reference in float64."""
    exact = subject._replace(expert=experts.double().expert(index), implementation="reference")
    return sample_directions(exact, windows=windows, address=address, directions=directions)


def _summed(name: str, spreads: list[Spread], norm: float) -> dict[str, float]:
    """Summed over experts, over the summed squared gradients, and its standard error (Eq. 20)."""
    error = sqrt(sum(one.standard_error**2 for one in spreads))
    return {name: sum(one.variance for one in spreads) / norm, f"{name}_standard_error": error / norm}


def verdict_of(rows: list[dict[str, Any]]) -> Verdict:
    """By the item's rule."""
    return together(verdict for row in rows for verdict in (_prediction_verdict(row), _law_verdict(row)))


def _prediction_verdict(row: dict[str, Any]) -> Verdict:
    if row["r_g_standard_error"] / row["r_g_predicted"] > PREDICTION_RESOLVED:
        return "scale too small to tell"
    apart = abs(row["r_g"] / row["r_g_predicted"] - 1)
    return "agrees" if apart <= PREDICTION_TOLERANCE else "differs"


def law_deviation(row: dict[str, Any]) -> float:
    """Largest relative distance of n_pert times the variance of n_pert averaged directions from that of single ones."""
    single = row["averaged"][0]
    return max(abs(n * value / single - 1) for n, value in zip(AVERAGES, row["averaged"], strict=True))


def law_standard_error(row: dict[str, Any]) -> float:
    """Of the averaged directions' variance, relative, at the largest n_pert.

    Products of different directions' probes, which average to nothing, are all that varies beside single ones:
    sqrt(2/M) of them within a group of n and between G groups, for every expert.
    """
    n, m = AVERAGES[-1], row["averaged_directions_of_an_expert"]
    groups = m // n
    return sqrt(2 / row["parameters"] * ((n - 1) / m + 1 / (groups * (groups - 1))))


def _law_verdict(row: dict[str, Any]) -> Verdict:
    if law_standard_error(row) > LAW_RESOLVED:
        return "scale too small to tell"
    return "agrees" if law_deviation(row) <= LAW_TOLERANCE else "differs"


def _csv_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One observation a row: R_g of every ensemble and stage, then the averaged directions."""
    plain = [{key: value for key, value in row.items() if key != "averaged"} | {"n_pert": DIRECTIONS} for row in rows]
    groups = [
        {"num_experts": row["num_experts"], "stage": row["stage"], "n_pert": n, "r_g_of_averaged_directions": value}
        for row in rows
        for n, value in zip(AVERAGES, row["averaged"], strict=True)
    ]
    return plain + groups


def _ours(rows: list[dict[str, Any]]) -> str:
    apart = max(rows, key=lambda row: abs(row["r_g"] / row["r_g_predicted"] - 1))
    largest = max(row["num_experts"] for row in rows)
    falls = []
    for stage in STAGES:
        by_size = {row["num_experts"]: row["r_g"] for row in rows if row["stage"] == stage}
        falls.append(f"{by_size[1] / by_size[largest]:.0f}")
    return (
        f"R_g at n_pert={DIRECTIONS} within {abs(apart['r_g'] / apart['r_g_predicted'] - 1):.1%} of the prediction at "
        f"N={', '.join(str(row['num_experts']) for row in rows if row['stage'] == STAGES[0])} and both stages "
        f"(farthest: N={apart['num_experts']}, standard error {apart['r_g_standard_error'] / apart['r_g']:.1%}); "
        f"1/n_pert within {max(map(law_deviation, rows)):.2%}; N={largest} is {' and '.join(falls)} times below N=1; "
        f"float64 on the same probes within {max(abs(row['float64_over_float32'] - 1) for row in rows):.1e}"
    )


def _panels(rows: list[dict[str, Any]]) -> list[Panel]:
    left = []
    for stage in STAGES:
        of = [row for row in rows if row["stage"] == stage]
        sizes, name = [row["num_experts"] for row in of], f"{of[0]['updates']} updates"
        errors = [row["r_g_standard_error"] for row in of]
        left.append(Series(name, sizes, [row["r_g"] for row in of], error=errors, kind="points"))
        left.append(Series(name, sizes, [row["r_g_predicted"] for row in of], kind="dashed"))
    right = []
    for row in (row for row in rows if row["stage"] == STAGES[-1]):
        name = f"N={row['num_experts']}"
        right.append(Series(name, AVERAGES, row["averaged"], kind="points"))
        law = [DIRECTIONS * row["r_g_predicted"] / n for n in AVERAGES]
        right.append(Series(name, AVERAGES, law, kind="dashed"))
    y = "relative centred variance $R_g$"
    return [
        Panel(f"one total size, n_pert = {DIRECTIONS}", "number of experts N", y, left, "log", "log"),
        Panel("late stage", "n_pert, directions averaged", y, right, "log", "log"),
    ]


def _notes(place: Workplace) -> str:
    effort = EFFORTS[place.scale]
    return (
        f"{LABORATORIES[place.scale].described()}; two fixed held-out windows, the recorded sparse probes, "
        f"eps = {LABORATORIES[place.scale].epsilon:g}; {effort.central:,} directions shared among an ensemble's "
        f"experts (at least {effort.least} each) where the paper takes 128 each, for the sampling error of N=1; "
        "held equal: total size, windows, eps and n_pert. One-sided differences and float64 stand in the rows"
    )


FIG10 = Item(
    name="soma-fig10",
    covers=(),
    shows="Relative centred variance of the estimate against N and n_pert at fixed weights, with its prediction",
    paper="N=256 has 136 and 118 times lower variance than N=1 at the two stages, as predicted; 1/n_pert holds",
    rule="agrees where R_g lies within 5 % of the recorded-distribution prediction at every N and both stages and "
    "averaged directions within 3 % of 1/n_pert; standard errors above 2.5 % and 1 % are too small a scale",
    minutes={"smoke": 0.1, "cpu": 5, "paper": 2000},
    find=find_fig10,
)
ITEMS = (FIG10,)
