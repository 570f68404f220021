"""Do experts that err on different bytes gain more from averaging?  Every pair of experts (appendix N.3, Fig. 17).

For a pair: the *reduction*, by how much the averaged prediction's loss lies below the mean of the two losses, against
the *correlation* of the two experts' errors, each byte's loss less the mean over all experts at that byte. Only sums
over bytes are kept, [N, N] of them, so memory does not grow with the number of windows.
"""

from collections.abc import Iterable
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.stats import t as student_t

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress
from thinwire.soma.every_expert import HeldOut, Readings, open_subject, read_by_all
from thinwire.soma.pair_averages import add_pair_averages

MOST_BINS, FEWEST_PAIRS_PER_BIN = 25, 4
"""The paper's figure has about 25 points of 1,300 pairs; small ensembles get fewer points rather than noisier ones."""
FEWEST_FOR_INTERVAL = 4
LISTED_UP_TO = 32
"""Ensembles of more experts keep the bins alone: 32 experts have 496 pairs."""


class PairSums(NamedTuple):
    """Sums over scored bytes.

    Attributes:
        num_bytes: how many.
        losses: of each expert, nats.
        residuals: sum of r_i, r the loss less the mean over experts at that byte.
        products: sum of r_i r_j.
        averages: [i, j], i < j: sum of log((p_i + p_j) / 2).
    """

    num_bytes: int
    losses: Float64[np.ndarray, " N"]
    residuals: Float64[np.ndarray, " N"]
    products: Float64[np.ndarray, "N N"]
    averages: Float64[np.ndarray, "N N"]


class Pairs(NamedTuple):
    """Every pair once, first < second.

    Attributes:
        correlation: of the two experts' residual losses over bytes.
        reduction: nats per byte.
    """

    first: np.ndarray
    second: np.ndarray
    correlation: Float64[np.ndarray, " pairs"]
    reduction: Float64[np.ndarray, " pairs"]


def measure_complementarity(
    root: Path, *, held_out: HeldOut | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Binned curve, slope and its interval as plain values; writes nothing.

    Raises:
        UserError: as ``open_subject``, or fewer than two experts.
    """
    held_out = held_out or HeldOut()
    subject = open_subject(root, held_out=held_out)
    count = subject.ensemble.num_experts
    if count < 2:
        fix = "measure a run with several experts (clusters.num_clusters)"
        raise UserError("one expert makes no pair", where=str(root), fix=fix)
    readings = read_by_all(
        subject.ensemble, subject.windows.windows, order="number", held_out=held_out, progress=progress
    )
    sums = sum_over_bytes(readings, num_experts=count, threads=held_out.threads)
    return {
        "kind": "measure-complementarity",
        "split": held_out.split,
        "windows": len(subject.windows.windows),
        "scored_targets": sums.num_bytes,
        "num_experts": count,
        "expert_updates": subject.expert_updates,
        "expert_losses": (sums.losses / sums.num_bytes).tolist(),
        **findings(sums),
    }


def sum_over_bytes(readings: Iterable[Readings], *, num_experts: int, threads: int = 1) -> PairSums:
    """Experts of ``readings`` by number; the parts are added in their order."""
    num_bytes, losses, residuals = 0, np.zeros(num_experts), np.zeros(num_experts)
    products, averages = np.zeros((num_experts, num_experts)), np.zeros((num_experts, num_experts))
    for part in readings:
        scores = np.ascontiguousarray(part.scores.transpose(1, 0, 2)).reshape(num_experts, -1)
        residual = scores.mean(axis=0) - scores
        num_bytes += scores.shape[1]
        losses -= scores.sum(axis=1)
        residuals += residual.sum(axis=1)
        products += residual @ residual.T
        add_pair_averages(averages, scores, threads=threads)
    return PairSums(num_bytes, losses, residuals, products, averages)


def pairs_of(sums: PairSums, *, without: int | None = None) -> Pairs:
    """Correlation and reduction of every pair; ``without`` an expert, as if there had never been one.

    The mean over the remaining experts at each byte need not be known: taking it off again is a centring of rows and
    columns of the covariance.
    """
    kept = np.delete(np.arange(len(sums.losses)), [] if without is None else [without])
    mean = sums.residuals / sums.num_bytes
    covariance = (sums.products / sums.num_bytes - np.outer(mean, mean))[np.ix_(kept, kept)]
    centred = covariance - covariance.mean(axis=0) - covariance.mean(axis=1)[:, None] + covariance.mean()
    deviation = np.sqrt(np.maximum(np.diag(centred), 0.0))
    first, second = np.triu_indices(len(kept), k=1)
    scale = deviation[first] * deviation[second]
    # Experts that are one and the same differ from the mean alike, or not at all: nothing to correlate.
    correlation = np.divide(centred[first, second], scale, out=np.ones(len(scale)), where=scale > 0)
    i, j = kept[first], kept[second]
    average = -sums.averages[i, j] / sums.num_bytes
    return Pairs(i, j, correlation, (sums.losses[i] + sums.losses[j]) / (2 * sums.num_bytes) - average)


def slope_of(pairs: Pairs) -> float | None:
    """Least squares of reduction on correlation, nats per byte for a correlation of one; None where it has none."""
    correlation = pairs.correlation - pairs.correlation.mean()
    square = float(correlation @ correlation)
    return float(correlation @ pairs.reduction) / square if square > 1e-18 else None


def jackknife(sums: PairSums) -> tuple[float, float] | None:
    """95% interval of the slope, leaving out one expert at a time with all its pairs; None for fewer than four.

    choice: pairs share experts, so they are no independent observations (the paper gives no interval). An expert is
    one; its deletion also changes the mean that errors are measured from. Student's t with N - 1 degrees of freedom.
    """
    count, whole = len(sums.losses), slope_of(pairs_of(sums))
    if count < FEWEST_FOR_INTERVAL or whole is None:
        return None
    slopes = [slope_of(pairs_of(sums, without=expert)) for expert in range(count)]
    known = np.array([slope for slope in slopes if slope is not None])
    if len(known) < count:
        return None
    error = sqrt((count - 1) / count * float(((known - known.mean()) ** 2).sum()))
    reach = float(student_t.ppf(0.975, count - 1)) * error
    return whole - reach, whole + reach


def findings(sums: PairSums) -> dict[str, Any]:
    pairs, between = pairs_of(sums), jackknife(sums)
    listed = {"first": pairs.first, "second": pairs.second}
    listed |= {"correlation": pairs.correlation, "reduction": pairs.reduction}
    return {
        "num_pairs": len(pairs.first),
        "mean_reduction": float(pairs.reduction.mean()),
        "mean_correlation": float(pairs.correlation.mean()),
        "slope": slope_of(pairs),
        "slope_ci95": None if between is None else list(between),
        "bins": binned(pairs),
        "pairs": {name: values.tolist() for name, values in listed.items()}
        if len(sums.losses) <= LISTED_UP_TO
        else None,
    }


def binned(pairs: Pairs) -> list[dict[str, Any]]:
    """Pairs by rising correlation in groups of nearly equal size: their means, and the standard error of reduction."""
    count = len(pairs.correlation)
    order = np.argsort(pairs.correlation, kind="stable")
    found = []
    for group in np.array_split(order, min(MOST_BINS, max(count // FEWEST_PAIRS_PER_BIN, 1))):
        reduction = pairs.reduction[group]
        found.append(
            {
                "pairs": len(group),
                "correlation": float(pairs.correlation[group].mean()),
                "reduction": float(reduction.mean()),
                "standard_error": float(reduction.std(ddof=1) / sqrt(len(group))) if len(group) > 1 else 0.0,
            }
        )
    return found
