"""What has been measured of a SOMA run?  Reads ``thinwire measure``'s results; what is not there is None."""

from functools import partial
from pathlib import Path
from typing import Any

from thinwire.base.bootstrap import Interval
from thinwire.report.measurement_records import (
    Active,
    ActiveExpertsResult,
    Allocation,
    Compared,
    ComplementarityResult,
    Measurements,
    PairGroup,
    ThroughputResult,
    VarianceResult,
)
from thinwire.report.parts import finite, optional, read_part


def read_measurements(folder: Path, damage: list[str]) -> Measurements:
    """All of a run's; a file that is damaged is left out, with one sentence in ``damage``."""
    read = partial(read_part, folder, damage=damage)
    return Measurements(
        variance=read("results/variance.json", build=_variance),
        active_experts=read("results/active-experts.json", build=_active_experts),
        complementarity=read("results/complementarity.json", build=_complementarity),
        throughput=read("results/throughput.json", build=_throughput),
    )


def _variance(record: Any) -> VarianceResult:
    compared = []
    for difference, found in record["measured"].items():
        kind = str(difference).replace("_", "-")
        r_g, error, cosine = found["r_g"], found["relative_error"], found["cosine"]
        if r_g["measured"] is not None:
            spread = optional(r_g.get("standard_error"), finite)
            compared.append(Compared(f"R_g, {kind}", finite(r_g["measured"]), spread, finite(r_g["predicted"])))
        spread = optional(error.get("standard_error"), finite)
        measured = finite(error["without_reference_noise"])
        compared.append(Compared(f"R, {kind}", measured, spread, finite(error["predicted"])))
        compared.append(Compared(f"cosine, {kind}", finite(cosine["measured"]), None, finite(cosine["predicted"])))
    allocations, own = record["allocations"], record["allocations"]["own"]
    shown = [_allocation("the run's", own["difference"], own)]
    for name, words in (("best", "least variance"), ("cheapest", "least cost")):
        shown += [_allocation(words, difference, found) for difference, found in allocations.get(name, {}).items()]
    return VarianceResult(
        nu=finite(record["nu"]),
        a=finite(record["probe_terms"]["a"]),
        experts=tuple(int(expert) for expert in record["experts"]),
        updates=tuple(int(update) for update in record["updates"]),
        compared=tuple(compared),
        allocations=tuple(shown),
    )


def _allocation(words: str, difference: Any, record: Any) -> Allocation:
    name = f"{words}, {str(difference).replace('_', '-')}"
    return Allocation(name, int(record["directions"]), int(record["batch"]), finite(record["variance"]))


def _active_experts(record: Any) -> ActiveExpertsResult:
    sweep = tuple(
        Active(
            int(row["active_experts"]),
            finite(row["loss"]),
            Interval(*map(finite, row["ci95"])),
            int(row["expert_operations_per_byte"]),
            optional(row["part_of_gain"], finite),
            Interval(*map(finite, row.get("below_one_expert_ci95", (0.0, 0.0)))),
        )
        for row in record["sweep"]
    )
    if [row.active_experts for row in sweep] != list(range(1, len(sweep) + 1)):
        raise ValueError("the sweep does not go from one expert to all")
    best, routed = int(record["best_active_experts"]), int(record["routed_experts"])
    if not (1 <= best <= len(sweep) and 1 <= routed <= len(sweep)):
        raise ValueError("a number of active experts is not in the sweep")
    return ActiveExpertsResult(str(record["split"]), int(record["windows"]), routed, best, sweep)


def _complementarity(record: Any) -> ComplementarityResult:
    groups = tuple(
        PairGroup(
            int(group["pairs"]),
            finite(group["correlation"]),
            finite(group["reduction"]),
            finite(group["standard_error"]),
        )
        for group in record["bins"]
    )
    listed, between = record.get("pairs") or {"correlation": [], "reduction": []}, record["slope_ci95"]
    pairs = zip(map(finite, listed["correlation"]), map(finite, listed["reduction"]), strict=True)
    return ComplementarityResult(
        split=str(record["split"]),
        num_experts=int(record["num_experts"]),
        num_pairs=int(record["num_pairs"]),
        mean_reduction=finite(record["mean_reduction"]),
        slope=optional(record["slope"], finite),
        slope_ci95=None if between is None else Interval(*map(finite, between)),
        groups=groups,
        pairs=tuple(pairs),
    )


def _throughput(record: Any) -> ThroughputResult:
    inference = record["inference"]
    return ThroughputResult(
        device=str(record["device"]),
        implementation=str(record["implementation"]),
        byte_forwards_per_s=finite(record["byte_forwards_per_s"]),
        fraction_of_peak=finite(record["fraction_of_peak"]),
        tokens_per_s=finite(inference["tokens_per_s"]),
        routing_share=finite(inference["routing_share"]),
    )
