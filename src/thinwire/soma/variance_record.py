"""What do an ensemble's measurements come to?  Sums over experts, divided in the end, beside the closed forms."""

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from thinwire.soma import theory
from thinwire.soma.config import Difference, TrainingConfig
from thinwire.soma.curvature import NoiseCurvature
from thinwire.soma.theory import Block
from thinwire.soma.variance import EstimateError, Reference, Spread

DIFFERENCES: tuple[Difference, ...] = ("central", "one_sided")


class ExpertFindings(NamedTuple):
    """One expert's measurements, absolute; sums over experts are divided in the end, as in Eqs. (5) and (20).

    Attributes:
        expert, update, epsilon: whose they are.
        reference: exact gradients.
        population: the reference by density, without its own sampling noise.
        curvature: what noise meets, and the gradient.
        batches: the exact gradients of the estimates' batches by density.
        spreads: of every such batch: central, one-sided, and central as eps -> 0 along the same probes.
        errors: of every estimate.
    """

    expert: int
    update: int
    epsilon: float
    reference: Reference
    population: Block
    curvature: NoiseCurvature
    batches: list[Block]
    spreads: list[tuple[Spread, Spread, Spread]]
    errors: dict[Difference, list[EstimateError]]


def variance_record(
    findings: Sequence[ExpertFindings], *, setting: TrainingConfig, num_parameters: int
) -> dict[str, Any]:
    """Plain values: ``nu`` and ``a`` of Eq. (17), ``probe_terms`` of the probes that were used (decision 0015).

    ``measured`` holds for central and one-sided differences R_g, R and the cosine beside the closed forms;
    ``allocations`` the run's own n_pert and B and, at as many forwards, those of least variance and of least cost by
    ``noise_costs`` (None where a curvature is not positive; decision 0016).
    """
    population = theory.recorded_terms([one.population for one in findings])
    batches = theory.recorded_terms([block for one in findings for block in one.batches])
    square = sum(one.reference.squared_gradient for one in findings)
    error = sum(one.reference.squared_error for one in findings)
    curvature = NoiseCurvature(*(float(np.mean(part)) for part in zip(*(o.curvature for o in findings), strict=True)))
    return {
        "experts": [one.expert for one in findings],
        "updates": [one.update for one in findings],
        "epsilon": [one.epsilon for one in findings],
        "num_parameters": num_parameters,
        "directions": setting.directions,
        "batch": setting.batch,
        "accumulation": setting.accumulation,
        "difference": setting.difference,
        "window_bytes": setting.window_bytes,
        "nu": sum(one.reference.nu * one.reference.squared_gradient for one in findings) / square,
        "a": num_parameters - 1,
        "probe_terms": population._asdict(),
        "curvature": curvature._asdict(),
        "noise_costs": curvature.costs and curvature.costs._asdict(),
        "reference": {
            "windows": [one.reference.both.num_windows for one in findings],
            "cosine_distance": [one.reference.cosine_distance for one in findings],
            "relative_error": error / square,
            "gradient_norm": [sqrt(one.reference.squared_gradient) for one in findings],
            "loss_nats_per_byte": [one.reference.both.loss_nats_per_byte for one in findings],
        },
        "measured": {
            difference: _of_difference(findings, difference, setting=setting, population=population, batches=batches)
            for difference in DIFFERENCES
            if setting.directions > 1 or difference == "central"
        },
        "allocations": _allocations(population, setting=setting, costs=curvature.costs),
    }


def _of_difference(
    findings: Sequence[ExpertFindings],
    difference: Difference,
    *,
    setting: TrainingConfig,
    population: theory.NoiseTerms,
    batches: theory.NoiseTerms,
) -> dict[str, Any]:
    """R_g (Eq. 20), R (Eq. 5, Table 8) and the cosine, beside the closed forms."""
    n, column = setting.directions, DIFFERENCES.index(difference)
    norm = sum(group.squared_gradient for one in findings for block in one.batches for group in block)
    spreads = [spreads for one in findings for spreads in one.spreads]
    own, small = [one[column] for one in spreads], [one[2] for one in spreads]
    predicted = theory.centred_variance(batches, directions=n, difference=difference)
    r_g: dict[str, Any] = {
        "measured": _number(sum(one.variance for one in own) / norm),
        "standard_error": _number(sqrt(sum(one.standard_error**2 for one in own)) / norm),
        "predicted": predicted,
    }
    if difference == "central":
        r_g["small_epsilon_same_probes"] = _number(sum(one.variance for one in small) / norm)
    parts = {"directions": n, "batch": setting.batch, "accumulation": setting.accumulation}
    variance = theory.relative_variance(population, difference=difference, **parts)
    return {
        "r_g": r_g,
        "relative_error": _relative_error(findings, difference)
        | {"predicted": theory.relative_error(population, difference=difference, **parts)},
        "cosine": {
            "measured": float(np.mean(_cosines(findings, difference))),
            "predicted": theory.expected_cosine(population, variance=variance),
        },
        "relative_variance": variance,
    }


def _relative_error(findings: Sequence[ExpertFindings], difference: Difference) -> dict[str, float | None]:
    """R: squared errors summed over experts, over the summed squared reference norms (Eq. 5)."""

    def against(squared: Callable[[EstimateError], float], mean: Callable[[Reference], np.ndarray]) -> float:
        errors = sum(float(np.mean([squared(e) for e in one.errors[difference]])) for one in findings)
        return errors / sum(float((mean(one.reference) ** 2).sum()) for one in findings)

    excess = [
        float(np.mean([e.squared for e in one.errors[difference]])) - one.reference.squared_error for one in findings
    ]
    square = sum(one.reference.squared_gradient for one in findings)
    spread = (
        sum(
            float(np.var([e.squared for e in one.errors[difference]], ddof=1)) / len(one.errors[difference])
            for one in findings
        )
        if all(len(one.errors[difference]) > 1 for one in findings)
        else float("nan")
    )
    return {
        "measured": against(lambda e: e.squared, lambda reference: reference.both.mean),
        "against_first_half": against(lambda e: e.squared_first, lambda reference: reference.first.mean),
        "against_second_half": against(lambda e: e.squared_second, lambda reference: reference.second.mean),
        "without_reference_noise": sum(excess) / square,
        "standard_error": _number(sqrt(spread) / square),
    }


def _cosines(findings: Sequence[ExpertFindings], difference: Difference) -> list[float]:
    """Of every estimate to the true gradient, whose norm is taken without the reference's noise."""
    return [
        error.product / sqrt(error.squared_norm * one.reference.squared_gradient)
        for one in findings
        for error in one.errors[difference]
        if error.squared_norm > 0
    ]


def _number(value: float) -> float | None:
    """None for what one direction cannot tell: JSON has no such number."""
    return value if np.isfinite(value) else None


def _allocations(
    terms: theory.NoiseTerms, *, setting: TrainingConfig, costs: theory.NoiseCosts | None
) -> dict[str, Any]:
    """The run's own n_pert and B and those of least noise at as many forwards an update (Eq. 18, decision 0016)."""
    own = setting.directions * setting.batch
    forwards = theory.FORWARDS_PER_DIRECTION[setting.difference] * setting.accumulation * own
    found: dict[str, Any] = {
        "window_forwards": forwards,
        "own": {
            "difference": setting.difference,
            "directions": setting.directions,
            "batch": setting.batch,
            "variance": theory.relative_variance(
                terms,
                directions=setting.directions,
                batch=setting.batch,
                difference=setting.difference,
                accumulation=setting.accumulation,
            ),
        },
        "best": {},
        "cheapest": {},
    }
    for difference in DIFFERENCES:
        needed = theory.FEWEST_DIRECTIONS[difference] * theory.FORWARDS_PER_DIRECTION[difference]
        if forwards < needed:
            continue
        least = partial(theory.best_allocation, terms, window_forwards=forwards, difference=difference)
        found["best"][difference] = least()._asdict()
        if costs:
            found["cheapest"][difference] = least(batch_weight=costs.batch)._asdict()
    return found
