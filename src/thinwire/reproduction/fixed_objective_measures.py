"""What is measured on one fixed objective?  Errors by grouping, n_pert and B, and accumulated estimates (appendix G.2).

Four experts of the largest ensemble, dense probes, float64; every grouping of the losses is read off the same forwards.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from torch import Tensor

from thinwire.base.seeds import numpy_generator
from thinwire.reproduction.item import Scale
from thinwire.reproduction.laboratory import LABORATORIES, ensemble
from thinwire.reproduction.workplace import Workplace
from thinwire.soma import theory
from thinwire.soma.config import Difference
from thinwire.soma.fixed_objective import (
    FixedObjective,
    Forwards,
    averaged_estimates,
    dense_forwards,
    pool_gradients,
    squared_errors,
)

EXPERTS = 4
GROUPINGS = {"summed": [[0, 1, 2, 3]], "two groups": [[0, 1], [2, 3]], "independent": [[0], [1], [2], [3]]}
AVERAGES = (1, 2, 4, 8, 16, 32, 64)
DIFFERENCES: tuple[Difference, ...] = ("central", "one_sided")
ACCUMULATIONS = (1, 2, 4, 8)
ACCUMULATED_DIRECTIONS, ACCUMULATED_BATCH = 8, 4


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        sets: left, sets of 64 directions.
        coordinates: right, perturbed coordinates of an expert.
        pool: right, windows.
        product: right, n_pert B.
        batches: right, the B that are tried.
        draws: right, batches and probes drawn for each B.
        accumulated: estimates that accumulation is tested on.
        epsilon: perturbation radius.
    """

    sets: int
    coordinates: int
    pool: int
    product: int
    batches: tuple[int, ...]
    draws: int
    accumulated: int
    epsilon: float = 1e-4


EFFORTS: dict[Scale, Effort] = {
    "smoke": Effort(sets=24, coordinates=32, pool=16, product=64, batches=(1, 2, 4, 8, 16), draws=8, accumulated=32),
    "cpu": Effort(
        sets=256, coordinates=128, pool=32, product=256, batches=(1, 2, 4, 8, 16, 32, 64), draws=32, accumulated=256
    ),
    "paper": Effort(
        sets=256, coordinates=128, pool=32, product=256, batches=(1, 2, 4, 8, 16, 32, 64), draws=32, accumulated=256
    ),
}
SETS_A_PART = 64


def fixed_objective(place: Workplace, *, coordinates: int | None) -> FixedObjective:
    """The first four experts of the largest ensemble; all of their coordinates, or so many drawn at random."""
    lab, effort = LABORATORIES[place.scale], EFFORTS[place.scale]
    largest = lab.sizes[-1]
    experts, shape = ensemble(place, num_experts=largest, stage="late").double(), lab.shape(largest)
    generator = numpy_generator(lab.seed, "laboratory-coordinates")
    every = np.arange(shape.num_parameters)
    chosen = [
        every if coordinates is None else np.sort(generator.choice(every, coordinates, replace=False))
        for _ in range(EXPERTS)
    ]
    return FixedObjective([experts.expert(index) for index in range(EXPERTS)], shape, chosen, effort.epsilon)


def errors_of_sets(place: Workplace, windows: Tensor, first: int) -> dict[str, Any]:
    """Left: per set, the mean error of its disjoint averages, by grouping, difference and n_pert."""
    effort, objective = EFFORTS[place.scale], fixed_objective(place, coordinates=None)
    gradient = pool_gradients(objective, windows=windows).mean
    errors: dict[str, list[float]] = {key_of(*at): [] for at in places()}
    for index in range(first, min(first + SETS_A_PART, effort.sets)):
        generator = numpy_generator(LABORATORIES[place.scale].seed, f"laboratory-set-{index}")
        forwards = dense_forwards(objective, windows=windows, directions=AVERAGES[-1], generator=generator)
        for grouping, difference, average in places():
            estimates = _estimates(forwards, grouping, difference, average, effort.epsilon)
            errors[key_of(grouping, difference, average)].append(
                float(squared_errors(estimates, gradient=gradient).mean())
            )
    return {"errors": errors}


def places() -> list[tuple[str, Difference, int]]:
    return [
        (grouping, difference, average)
        for grouping in GROUPINGS
        for difference in DIFFERENCES
        for average in AVERAGES
        if average >= theory.FEWEST_DIRECTIONS[difference]
    ]


def key_of(grouping: str, difference: str, average: int) -> str:
    return f"{grouping}/{difference}/{average}"


def _estimates(forwards: Forwards, grouping: str, difference: Difference, average: int, epsilon: float) -> np.ndarray:
    return averaged_estimates(
        forwards, groups=GROUPINGS[grouping], average=average, epsilon=epsilon, difference=difference
    )


def errors_of_batches(place: Workplace, pool: Tensor, batch: int) -> dict[str, Any]:
    """Right: errors of n_pert = product / B directions on batches drawn from the pool, by grouping and difference."""
    effort = EFFORTS[place.scale]
    objective, directions = fixed_objective(place, coordinates=effort.coordinates), effort.product // batch
    exact = pool_gradients(objective, windows=pool)
    generator = numpy_generator(LABORATORIES[place.scale].seed, f"laboratory-batch-{batch}")
    errors: dict[str, list[float]] = {f"{g}/{d}": [] for g in GROUPINGS for d in DIFFERENCES}
    for _ in range(effort.draws):
        drawn = pool[generator.integers(0, len(pool), batch)]
        forwards = dense_forwards(objective, windows=drawn, directions=directions, generator=generator)
        for grouping in GROUPINGS:
            for difference in DIFFERENCES:
                if directions >= theory.FEWEST_DIRECTIONS[difference]:
                    estimates = _estimates(forwards, grouping, difference, directions, effort.epsilon)
                    errors[f"{grouping}/{difference}"].append(float(squared_errors(estimates, gradient=exact.mean)[0]))
    return {"batch": batch, "directions": directions, "nu": exact.nu, "errors": errors}


def accumulated_errors(place: Workplace, pool: Tensor) -> dict[str, Any]:
    """Eq. (19): estimates averaged over A batches against what single directions and exact batch means predict.

    One half of the estimates is averaged; the other gives the spread of single directions on a given batch.
    """
    effort, n = EFFORTS[place.scale], ACCUMULATED_DIRECTIONS
    objective = fixed_objective(place, coordinates=effort.coordinates)
    exact = pool_gradients(objective, windows=pool)
    generator = numpy_generator(LABORATORIES[place.scale].seed, "laboratory-accumulation")
    means, within = [], []
    for _ in range(effort.accumulated):
        drawn = pool[generator.integers(0, len(pool), ACCUMULATED_BATCH)]
        forwards = dense_forwards(objective, windows=drawn, directions=n, generator=generator)
        single = _estimates(forwards, "independent", "central", 1, effort.epsilon)
        mean = single.mean(axis=1)
        means.append(mean)
        within.append(float(((single - mean[:, None]) ** 2).sum()) / (n - 1) / exact.squared_norm)
    half = effort.accumulated // 2
    spread = np.array(within[half:])
    rows = []
    for count in ACCUMULATIONS:
        averages = np.array(means[:half]).reshape(-1, count, *means[0].shape).mean(axis=1)
        errors = squared_errors(averages.transpose(1, 0, 2), gradient=exact.mean)
        between = exact.nu / ACCUMULATED_BATCH
        predicted = theory.accumulated_covariance(
            float(spread.mean()), between=between, directions=n, accumulation=count
        )
        predicted_error = float(spread.std(ddof=1)) / sqrt(len(spread)) / (count * n)
        rows.append(
            {
                "panel": "accumulation",
                "accumulation": count,
                "n_pert": n,
                "batch": ACCUMULATED_BATCH,
                "averages": len(errors),
                "relative_error": float(errors.mean()),
                "standard_error": sqrt(float(errors.var(ddof=1)) / len(errors) + predicted_error**2),
                "predicted": predicted,
            }
        )
    return {"rows": rows}
