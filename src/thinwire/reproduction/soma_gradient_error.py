"""What does an update's device time buy in gradient error?  R against backpropagation (Fig. 5, Table 8, appendix K)."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from thinwire.reproduction.gradient_error_measures import EFFORTS, FACTORS, measure_errors, time_step
from thinwire.reproduction.item import Findings, Item, Panel, Series, Verdict
from thinwire.reproduction.laboratory import LABORATORIES, Stage
from thinwire.reproduction.verdicts import together
from thinwire.reproduction.workplace import Workplace

STAGES: tuple[Stage, ...] = ("initial", "late")
MOST = FACTORS[-1]
FALL_TOLERANCE = 0.03
REFERENCE_TOLERANCE = 0.04


def find_fig5(place: Workplace) -> Findings:
    lab, effort = LABORATORIES[place.scale], EFFORTS[place.scale]
    inputs = [asdict(lab), asdict(effort), list(FACTORS)]
    task = place.voice.progress.task("gradient error", len(lab.sizes) * (len(STAGES) + 1) + 2 * (len(FACTORS) - 1))
    errors, seconds = [], {}
    for num_experts in lab.sizes:
        for stage in STAGES:
            compute = partial(measure_errors, place, num_experts, stage)
            errors.append(place.part(f"errors-n{num_experts}-{stage}", inputs=inputs, compute=compute))
            task.advance()
    base = [(num_experts, 1, 1) for num_experts in lab.sizes]
    for num_experts, n, b in base + [(1, f, 1) for f in FACTORS[1:]] + [(1, 1, f) for f in FACTORS[1:]]:
        compute = partial(time_step, place, num_experts, n, b)
        found = place.part(f"seconds-n{num_experts}-{n}-{b}", inputs=inputs, compute=compute)
        seconds[num_experts, n, b] = found["device_seconds_per_step"]
        task.advance()
    task.close()
    rows = [
        row | {"device_seconds_per_step": seconds[row["num_experts"], row["directions_factor"], row["batch_factor"]]}
        for found in errors
        for row in found["rows"]
    ]
    references = [found["reference"] for found in errors]
    verdicts = [claim_verdict(claims_of(rows, stage=stage)) for stage in STAGES]
    return Findings(
        rows + references,
        _ours(rows, references),
        together([*verdicts, reference_verdict(rows)]),
        _panels(rows),
        _notes(place),
    )


def row_of(rows: Sequence[dict[str, Any]], stage: str, *, num_experts: int, n: int = 1, b: int = 1) -> dict[str, Any]:
    """The one of central differences at N and these multiples of the base setting's n_pert and B."""
    return next(
        row
        for row in rows
        if row["difference"] == "central"
        and (row["stage"], row["num_experts"]) == (stage, num_experts)
        and (row["directions_factor"], row["batch_factor"]) == (n, b)
    )


def claims_of(rows: Sequence[dict[str, Any]], *, stage: str) -> dict[str, Any]:
    """What the figure claims of one stage, in numbers.

    ``fall_*``: by how much of itself 16 times as many directions, or windows, lower R of N = 1; ``order`` and
    ``cheaper`` say whether the largest N lies below both and costs less than either.
    """
    largest = max(row["num_experts"] for row in rows)
    base = row_of(rows, stage, num_experts=1)
    sharded = row_of(rows, stage, num_experts=largest)
    directions, batch = row_of(rows, stage, num_experts=1, n=MOST), row_of(rows, stage, num_experts=1, b=MOST)
    curve = (sharded, directions, batch, base)
    errors = [row["relative_error"] for row in curve]
    by_size = [row_of(rows, stage, num_experts=n)["relative_error"] for n in _sizes(rows)]
    cost = sharded["device_seconds_per_step"]
    return {
        "stage": stage,
        "largest": largest,
        "fall_by_directions": 1 - directions["relative_error"] / base["relative_error"],
        "fall_by_directions_predicted": 1 - directions["predicted"] / base["predicted"],
        "fall_by_batch": 1 - batch["relative_error"] / base["relative_error"],
        "fall_by_batch_predicted": 1 - batch["predicted"] / base["predicted"],
        "sharding": base["relative_error"] / sharded["relative_error"],
        "order": errors == sorted(errors) and by_size == sorted(by_size, reverse=True),
        "cheaper": cost < min(directions["device_seconds_per_step"], batch["device_seconds_per_step"]),
    }


def _sizes(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({row["num_experts"] for row in rows})


def claim_verdict(claims: dict[str, Any]) -> Verdict:
    """Of one stage: the fall by directions near its closed form, the order, and the cost of sharding."""
    if claims["largest"] <= MOST:
        return "scale too small to tell"
    near = abs(claims["fall_by_directions"] - claims["fall_by_directions_predicted"]) <= FALL_TOLERANCE
    return "agrees" if near and claims["order"] and claims["cheaper"] else "differs"


def reference_change(rows: Sequence[dict[str, Any]]) -> float:
    """Largest relative change of a value of R where an independent reference takes the other's place (Table 8)."""
    central = [row for row in rows if row["difference"] == "central"]
    return max(abs(row["against_second"] / row["against_first"] - 1) for row in central)


def reference_verdict(rows: Sequence[dict[str, Any]]) -> Verdict:
    """Whether the references were large enough to judge anything by."""
    return "agrees" if reference_change(rows) <= REFERENCE_TOLERANCE else "scale too small to tell"


def _ours(rows: Sequence[dict[str, Any]], references: Sequence[dict[str, Any]]) -> str:
    said = []
    for stage in STAGES:
        claims = claims_of(rows, stage=stage)
        said.append(
            f"{stage}: n_pert x{MOST} lowers R by {claims['fall_by_directions']:.1%} (closed form "
            f"{claims['fall_by_directions_predicted']:.1%}), B x{MOST} by {claims['fall_by_batch']:.1%} "
            f"({claims['fall_by_batch_predicted']:.1%}), N={max(_sizes(rows))} is {claims['sharding']:.0f} times lower"
        )
    distances = [row["cosine_distance"] for row in references]
    return (
        f"{'; '.join(said)}; independent references change values by at most {reference_change(rows):.1%}, cosine "
        f"distances {min(distances):.5f} to {max(distances):.5f}"
    )


def _panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    panels = []
    for stage in STAGES:
        base = row_of(rows, stage, num_experts=1)
        curves = {
            "more experts N": [row_of(rows, stage, num_experts=n) for n in _sizes(rows)],
            "more directions n_pert": [row_of(rows, stage, num_experts=1, n=factor) for factor in FACTORS],
            "larger batch B": [row_of(rows, stage, num_experts=1, b=factor) for factor in FACTORS],
        }
        series = []
        for name, of in curves.items():
            at = [row["device_seconds_per_step"] for row in of]
            errors = [row["standard_error"] for row in of]
            series.append(Series(name, at, [row["relative_error"] for row in of], error=errors, kind="line"))
            series.append(Series(name, at, [row["predicted"] for row in of], kind="dashed"))
        title = f"{stage}, from N=1, n_pert={base['n_pert']}, B={base['batch']}"
        panels.append(Panel(title, "device-seconds per global step", "relative gradient error R", series, "log", "log"))
    return panels


def _notes(place: Workplace) -> str:
    lab, effort = LABORATORIES[place.scale], EFFORTS[place.scale]
    return (
        f"{lab.described()}, here the first weights and the later stage; base n_pert = {effort.directions} and "
        f"B = {effort.batch} (64 and 64 in the paper), {effort.sets} sets of directions, the N = 1 values over all "
        f"subsets of {MOST} blocks; two references of {effort.windows_of(1)} windows "
        f"({effort.windows_of(max(lab.sizes))} at the largest N) and estimates on text apart; held equal: total size; "
        "device-seconds are those of a CPU core, no network is involved. One-sided differences stand in the rows"
    )


ITEMS = (
    Item(
        name="soma-fig5",
        covers=("soma-table8",),
        shows="Gradient error against backpropagation beside device-seconds per step, for N, n_pert and B",
        paper="n_pert x16 lowers R by about 94 % at both stages, B x16 by 0.27 % at first and 47 % later; N=256 is 120 "
        "and 210 times lower than N=1 at less device time than either; independent references (cosine distance up to "
        "0.01045) change values by less than 4 %",
        rule="agrees where at both stages n_pert x16 lowers R within 3 points of the closed form, R falls with N and "
        "the largest N lies below n_pert x16, that below B x16, that below the base, at fewer device-seconds than "
        "either; references that change a value by more than 4 %, or no N above 16, are too small a scale",
        minutes={"smoke": 0.1, "cpu": 4, "paper": 2000},
        find=find_fig5,
    ),
)
