"""On one fixed objective, what do independent losses and the split of n_pert and B do to the error?  (Fig. 11, G.2)"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from math import inf, log2, sqrt
from typing import Any

import numpy as np

from thinwire.reproduction.fixed_objective_measures import (
    AVERAGES,
    EFFORTS,
    EXPERTS,
    GROUPINGS,
    SETS_A_PART,
    Effort,
    accumulated_errors,
    errors_of_batches,
    errors_of_sets,
    key_of,
    places,
)
from thinwire.reproduction.item import Findings, Item, Panel, Series, Verdict
from thinwire.reproduction.laboratory import LABORATORIES, held_out_windows
from thinwire.reproduction.verdicts import together
from thinwire.reproduction.workplace import Workplace
from thinwire.soma import theory
from thinwire.soma.config import Difference

FIXED_WINDOWS = 2
RATIO, RATIO_TOLERANCE, RATIO_RESOLVED = 4.0, 0.15, 0.05
FEWEST_DRAWS = 16
STANDARD_ERRORS = 3.0


def find_fig11(place: Workplace) -> Findings:
    effort, lab = EFFORTS[place.scale], LABORATORIES[place.scale]
    windows = held_out_windows(place, sets={"fixed": FIXED_WINDOWS, "pool": effort.pool})
    inputs = [asdict(lab), asdict(effort), FIXED_WINDOWS]
    firsts = range(0, effort.sets, SETS_A_PART)
    task = place.voice.progress.task("one fixed objective", len(firsts) + len(effort.batches) + 1)

    def part(name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        found = place.part(name, inputs=inputs, compute=compute)
        task.advance()
        return found

    sets = [part(f"sets-{first}", partial(errors_of_sets, place, windows["fixed"], first)) for first in firsts]
    batches = [
        part(f"batch-{batch}", partial(errors_of_batches, place, windows["pool"], batch)) for batch in effort.batches
    ]
    accumulated = part("accumulated", partial(accumulated_errors, place, windows["pool"]))["rows"]
    task.close()
    errors = {key: np.array([value for one in sets for value in one["errors"][key]]) for key in sets[0]["errors"]}
    num_coordinates = EXPERTS * lab.shape(lab.sizes[-1]).num_parameters
    left = left_rows(errors, num_coordinates=num_coordinates)
    right = right_rows(batches, num_coordinates=EXPERTS * effort.coordinates)
    most = AVERAGES[-1]
    ratio = ratio_of(errors[key_of("summed", "central", most)], errors[key_of("independent", "central", most)])
    verdicts = [ratio_verdict(ratio), *optimum_verdicts(right, draws=effort.draws), accumulation_verdict(accumulated)]
    return Findings(
        [{"panel": "ratio", **ratio}, *left, *right, *accumulated],
        _ours(ratio, right, accumulated, nu=batches[0]["nu"]),
        together(verdicts),
        _panels(left, right, accumulated, effort),
        _notes(place),
    )


def left_rows(errors: dict[str, np.ndarray], *, num_coordinates: int) -> list[dict[str, Any]]:
    """Error against n_pert on fixed windows, measured over sets of perturbations and predicted (Eqs. 12, 13)."""
    rows = []
    for grouping, difference, average in places():
        values = errors[key_of(grouping, difference, average)]
        terms = theory.dense_terms(num_coordinates // len(GROUPINGS[grouping]), nu=0.0)
        predicted = theory.relative_variance(terms, directions=average, batch=inf, difference=difference)
        rows.append(
            {
                "panel": "fixed batch",
                "losses": grouping,
                "difference": difference,
                "n_pert": average,
                **_mean_and_error(values),
                "predicted": predicted,
            }
        )
    return rows


def right_rows(batches: Sequence[dict[str, Any]], *, num_coordinates: int) -> list[dict[str, Any]]:
    """Error against B at one product n_pert B, measured over draws and predicted from the pool's nu (Eq. 17)."""
    rows = []
    for found in batches:
        for key, values in found["errors"].items():
            if not values:
                continue
            grouping, difference = key.split("/")
            terms = theory.dense_terms(num_coordinates // len(GROUPINGS[grouping]), nu=found["nu"])
            setting = {"directions": found["directions"], "batch": found["batch"]}
            predicted = theory.relative_variance(terms, difference=difference, **setting)
            product = found["directions"] * found["batch"]
            rows.append(
                {
                    "panel": "batch and perturbations",
                    "losses": grouping,
                    "difference": difference,
                    "n_pert": found["directions"],
                    "batch": found["batch"],
                    **_mean_and_error(np.array(values)),
                    "predicted": predicted,
                    "predicted_best_batch": theory.optimum(terms, product=product).batch,
                    "nu": found["nu"],
                }
            )
    return rows


def _mean_and_error(values: np.ndarray) -> dict[str, float]:
    error = float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else 0.0
    return {"relative_error": float(values.mean()), "standard_error": error}


def ratio_of(summed: np.ndarray, independent: np.ndarray) -> dict[str, float]:
    """Mean summed over mean independent error, with the standard error of paired sets (leave one out)."""
    count = len(summed)
    without = (summed.sum() - summed) / (independent.sum() - independent)
    error = sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    return {"summed_over_independent": float(summed.mean() / independent.mean()), "standard_error": error}


def ratio_verdict(ratio: dict[str, float]) -> Verdict:
    if ratio["standard_error"] > RATIO_RESOLVED:
        return "scale too small to tell"
    return "agrees" if abs(ratio["summed_over_independent"] - RATIO) <= RATIO_TOLERANCE else "differs"


def best_batches(rows: Sequence[dict[str, Any]], grouping: str) -> tuple[int, int, float]:
    """The B of least measured error on the grid, the one predicted, and B* itself (Eq. 18); central differences."""
    of = [row for row in rows if row["losses"] == grouping and row["difference"] == "central"]
    measured = min(of, key=lambda row: row["relative_error"])["batch"]
    predicted = min(of, key=lambda row: row["predicted"])["batch"]
    return measured, predicted, of[0]["predicted_best_batch"]


def optimum_verdicts(rows: Sequence[dict[str, Any]], *, draws: int) -> list[Verdict]:
    """One a grouping; the grid is of powers of two."""
    if draws < FEWEST_DRAWS:
        return ["scale too small to tell"]
    verdicts: list[Verdict] = []
    for grouping in GROUPINGS:
        measured, predicted, _ = best_batches(rows, grouping)
        verdicts.append("agrees" if abs(log2(measured / predicted)) <= 1 else "differs")
    return verdicts


def accumulation_verdict(rows: Sequence[dict[str, Any]]) -> Verdict:
    if min(row["averages"] for row in rows) < FEWEST_DRAWS:
        return "scale too small to tell"
    apart = [abs(row["relative_error"] - row["predicted"]) / row["standard_error"] for row in rows]
    return "agrees" if max(apart) <= STANDARD_ERRORS else "differs"


def _ours(
    ratio: dict[str, float], right: Sequence[dict[str, Any]], accumulated: Sequence[dict[str, Any]], *, nu: float
) -> str:
    best = []
    for grouping in GROUPINGS:
        measured, _, continuous = best_batches(right, grouping)
        best.append(f"{grouping} B={measured} (predicted {continuous:.2f})")
    apart = [abs(row["relative_error"] - row["predicted"]) / row["standard_error"] for row in accumulated]
    return (
        f"summed over independent error {ratio['summed_over_independent']:.3f} +- {ratio['standard_error']:.3f} at "
        f"n_pert={AVERAGES[-1]}; best B at nu={nu:.2f}: {', '.join(best)}; accumulation within {max(apart):.1f} "
        "standard errors of Eq. (19)"
    )


def _panels(
    left: Sequence[dict[str, Any]],
    right: Sequence[dict[str, Any]],
    accumulated: Sequence[dict[str, Any]],
    effort: Effort,
) -> list[Panel]:
    y = "relative gradient error"
    counts = [row["accumulation"] for row in accumulated]
    errors = [row["standard_error"] for row in accumulated]
    measured = [row["relative_error"] for row in accumulated]
    return [
        Panel("fixed batch, all coordinates", "n_pert", y, _series(left, x="n_pert"), "log", "log"),
        Panel(
            f"n_pert B = {effort.product}, {effort.coordinates} coordinates an expert",
            "B, windows of a batch",
            y,
            _series(right, x="batch"),
            "log",
            "log",
        ),
        Panel(
            "accumulation, independent losses",
            "A, batches averaged",
            y,
            [
                Series("independent", counts, measured, error=errors, kind="points"),
                Series("independent", counts, [row["predicted"] for row in accumulated], kind="dashed"),
            ],
            "log",
            "log",
        ),
    ]


def _series(rows: Sequence[dict[str, Any]], *, x: str) -> list[Series]:
    """Central differences of every grouping, and one-sided ones where losses are independent."""
    shown: list[tuple[str, Difference, str]] = [(grouping, "central", grouping) for grouping in GROUPINGS]
    shown.append(("independent", "one_sided", "independent, one-sided"))
    series = []
    for grouping, difference, name in shown:
        of = [row for row in rows if (row["losses"], row["difference"]) == (grouping, difference)]
        at = [row[x] for row in of]
        errors = [row["standard_error"] for row in of]
        series.append(Series(name, at, [row["relative_error"] for row in of], error=errors, kind="points"))
        series.append(Series(name, at, [row["predicted"] for row in of], kind="dashed"))
    return series


def _notes(place: Workplace) -> str:
    lab, effort = LABORATORIES[place.scale], EFFORTS[place.scale]
    largest = lab.sizes[-1]
    return (
        f"four experts of the N={largest} ensemble after {lab.late} updates of backpropagation, "
        f"{lab.shape(largest).num_parameters:,} coordinates each, float64, eps = {effort.epsilon:g}, windows of "
        f"{lab.window_bytes} bytes; left: all coordinates, {effort.sets} sets of {AVERAGES[-1]} directions (the paper "
        f"takes 32); right: {effort.draws} draws (16) from a pool of {effort.pool} windows; held equal: the forwards "
        "of every grouping (they are the same), n_pert B on the right. A one-sided direction takes half the forwards"
    )


ITEMS = (
    Item(
        name="soma-fig11",
        covers=(),
        shows="Independent against summed losses, and the best split of n_pert and B, on one fixed objective",
        paper="4.02 times lower error with independent losses at n_pert=64 (4.00 predicted); lowest at B=2, 2, 4 where "
        "2.04, 2.89, 4.09 are predicted, nu = 8.32",
        rule="agrees where the ratio is 4.00 +- 0.15, the best B of every grouping is the predicted one or its "
        "neighbour among powers of two, and accumulated estimates lie within 3 standard errors of Eq. (19); a ratio's "
        "standard error above 0.05 or fewer than 16 draws or averages are too small a scale",
        minutes={"smoke": 0.1, "cpu": 3, "paper": 600},
        find=find_fig11,
    ),
)
