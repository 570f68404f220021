"""How noisy is a zero-order estimate?  The paper's closed forms, on plain numbers (Eqs. 3, 4, 11-13, 15-20).

All hold as eps -> 0. A probe coordinate is 0 or +-1, symmetric, independent of the others, and not 0 with probability
q. For one direction, X = z z^T g:

    E X = q g,    tr Cov X = sum_k q_k (1 + s - 2 q_k) g_k^2,    s = sum_k q_k        (appendix G.1)

because E z^4 = E z^2 = q: coordinate i has E X_i^2 = q_i g_i^2 + q_i sum_{k != i} q_k g_k^2. With q = 1 this is
(d - 1) |g|^2, Proposition 1. Decision 0015 has what the paper leaves out: one-sided differences, and batch noise under
sparse probes.
"""

from collections.abc import Sequence
from math import isqrt, sqrt
from typing import NamedTuple

from thinwire.soma.config import Difference

Number = int | float
FORWARDS_PER_DIRECTION: dict[Difference, int] = {"central": 2, "one_sided": 1}
FEWEST_DIRECTIONS: dict[Difference, int] = {"central": 1, "one_sided": 2}


class CoordinateGroup(NamedTuple):
    """Coordinates of one density.

    Attributes:
        num_coordinates: how many.
        density: q, the probability that a probe is not 0 there.
        squared_gradient: their part of |g|^2.
        gradient_variance: their part of sigma^2, the variance of one sequence's gradient (appendix F.1).
    """

    num_coordinates: int
    density: float
    squared_gradient: float
    gradient_variance: float = 0.0


Block = Sequence[CoordinateGroup]
"""The coordinates that one loss perturbs together: an expert's, or those of all experts of a summed loss."""


class NoiseTerms(NamedTuple):
    """What the relative variance of an estimate is made of, in units of the squared norm of its mean, |q g|^2.

    Attributes:
        a: perturbation term, v = a / n_pert + ... (Eq. 17).
        nu: batch term, ... + nu / B + ...
        a_nu: both at once, ... + a_nu / (n_pert B); a times nu for dense probes.
        baseline: what one-sided differences add, baseline / (n_pert (n_pert - 1)).
        baseline_nu: the same of the batch noise, over B.
        mean_square: |q g|^2 / |g|^2; 1 for dense probes.
        bias: |q g - g|^2 / |g|^2; 0 for dense probes.
        alignment: cosine of q g and g; 1 for dense probes.
    """

    a: float
    nu: float
    a_nu: float
    baseline: float
    baseline_nu: float
    mean_square: float = 1.0
    bias: float = 0.0
    alignment: float = 1.0


class NoiseCosts(NamedTuple):
    """What a unit of squared length costs a step, of what it costs where it is perturbation noise (decision 0016).

    Attributes:
        batch: kappa, for batch noise: the curvature along it over that along probes.
        signal: c, for the estimate's mean, likewise.
    """

    batch: float = 1.0
    signal: float = 0.0


class Allocation(NamedTuple):
    """n_pert and B of one update, and its relative variance."""

    directions: Number
    batch: Number
    variance: float


def dense_variance(num_parameters: Number, *, directions: Number) -> float:
    """E|g_hat - g|^2 / |g|^2 = (d - 1) / n_pert of dense probes on a fixed batch (Eqs. 3, 11, 12)."""
    return (num_parameters - 1) / directions


def independent_over_summed(num_parameters: Number, *, num_experts: Number) -> float:
    """Ratio of the variances of N independent losses and of their sum, (M/N - 1) / (M - 1) -> 1/N (Eqs. 4, 13).

    Args:
        num_parameters: M, the perturbed coordinates of all experts.
    """
    return (num_parameters / num_experts - 1) / (num_parameters - 1)


def largest_step(smoothness: float, *, num_parameters: Number, directions: Number) -> float:
    """Largest eta for which the stationarity bound of Eq. (15) holds: 1 / (L (1 + (d - 1) / n_pert)).

    Ratios of its inverse are Eq. (16).
    """
    return 1 / (smoothness * (1 + dense_variance(num_parameters, directions=directions)))


def dense_terms(num_parameters: Number, *, nu: float) -> NoiseTerms:
    """Dense Rademacher probes: a = d - 1, nu = sigma^2 / |g|^2 (appendix F.1)."""
    a = num_parameters - 1
    return NoiseTerms(a=a, nu=nu, a_nu=a * nu, baseline=a + 2, baseline_nu=(a + 2) * nu)


def recorded_terms(blocks: Sequence[Block]) -> NoiseTerms:
    """The terms of the recorded probes, over blocks with a loss each (appendix G.1; decision 0015).

    Raises:
        ValueError: the gradient is zero.
    """
    if not sum(group.squared_gradient for block in blocks for group in block) > 0:
        raise ValueError("relative variance of a zero gradient")
    a = nu = a_nu = baseline = baseline_nu = norm = mean = along = bias = 0.0
    for block in blocks:
        s = sum(group.num_coordinates * group.density for group in block)
        for group in block:
            q, g2, sigma2 = group.density, group.squared_gradient, group.gradient_variance
            spread, product = q * (1 + s - 2 * q), q * (q + s)
            a, a_nu = a + spread * g2, a_nu + spread * sigma2
            baseline, baseline_nu = baseline + product * g2, baseline_nu + product * sigma2
            nu += q * q * sigma2
            norm, along, mean, bias = norm + g2, along + q * g2, mean + q * q * g2, bias + (1 - q) ** 2 * g2
    return NoiseTerms(
        a=a / mean,
        nu=nu / mean,
        a_nu=a_nu / mean,
        baseline=baseline / mean,
        baseline_nu=baseline_nu / mean,
        mean_square=mean / norm,
        bias=bias / norm,
        alignment=along / sqrt(mean * norm),
    )


def summed(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of one loss that is the sum of these: a single one."""
    return [[group for block in blocks for group in block]]


def relative_variance(
    terms: NoiseTerms,
    *,
    directions: Number,
    batch: Number,
    difference: Difference,
    accumulation: Number = 1,
    batch_weight: float = 1.0,
) -> float:
    """v = tr Cov g_hat / |E g_hat|^2 = a/n + nu/B + a nu/(n B), all directions on one batch (Eq. 17).

    Args:
        batch: B, sequences of a batch; infinite holds the batch fixed.
        accumulation: A batches, each with directions of its own, divide all of it by A (appendix F.1.2).
        batch_weight: kappa, of nu/B alone; at 1 this is the variance, at ``NoiseCosts.batch`` what noise costs a step.
    """
    n = directions
    v = terms.a / n + batch_weight * terms.nu / batch + terms.a_nu / (n * batch)
    if difference == "one_sided":
        v += (terms.baseline + terms.baseline_nu / batch) / (n * (n - 1))
    return v / accumulation


def separate_batches_variance(terms: NoiseTerms, *, directions: Number, batch: Number) -> float:
    """As Eq. (17) where every direction has a batch of its own: (a + (a + 1) nu / B) / n_pert (appendix F.1)."""
    return relative_variance(terms, directions=1, batch=batch, difference="central", accumulation=directions)


def centred_variance(terms: NoiseTerms, *, directions: Number, difference: Difference) -> float:
    """R_g = tr Cov g_hat / |g|^2 at a fixed batch (appendix G.1, Eq. 20); terms of that batch's gradient."""
    return terms.mean_square * relative_variance(
        terms, directions=directions, batch=float("inf"), difference=difference
    )


def relative_error(
    terms: NoiseTerms, *, directions: Number, batch: Number, difference: Difference, accumulation: Number = 1
) -> float:
    """R = E|g_hat - g|^2 / |g|^2 against the true gradient: variance and the bias of sparse probes (Eq. 5)."""
    v = relative_variance(terms, directions=directions, batch=batch, difference=difference, accumulation=accumulation)
    return terms.mean_square * v + terms.bias


def expected_cosine(terms: NoiseTerms, *, variance: float) -> float:
    """Cosine of an estimate of relative variance v to g, about alignment / sqrt(1 + v): |g_hat|^2 hardly varies."""
    return terms.alignment / sqrt(1 + variance)


def accumulated_covariance(within: float, *, between: float, directions: int, accumulation: int) -> float:
    """tr Cov g_hat = E_X tr Cov(Z|X) / (A n_pert) + tr Cov E[Z|X] / A, at any eps (Eq. 19).

    Args:
        within: E_X tr Cov_delta(Z | X), of one direction on a given batch.
        between: tr Cov_X(E_delta[Z | X]), of a batch's mean.
    """
    return within / (accumulation * directions) + between / accumulation


def optimum(terms: NoiseTerms, *, product: Number) -> Allocation:
    """B* = min(K, max(1, sqrt(K nu / a))), n* = K / B*, of central differences with n B = K (Eq. 18)."""
    batch = min(product, max(1.0, sqrt(product * terms.nu / terms.a) if terms.a > 0 else product))
    directions = product / batch
    v = relative_variance(terms, directions=directions, batch=batch, difference="central")
    return Allocation(directions, batch, v)


def noiseless_share(
    terms: NoiseTerms,
    *,
    costs: NoiseCosts,
    directions: Number,
    batch: Number,
    difference: Difference,
    accumulation: Number = 1,
) -> float:
    """How far an update comes of what one without noise would: c / (c + a/n + kappa nu/B + a nu/(n B)).

    Both at their best step size. Of a step ``-eta g_hat`` on a quadratic the loss falls by ``(g.m)^2 / (2 tr H (m m^T +
    S))`` at the best eta, m and S being the estimate's mean and covariance, and costs are curvatures (decision 0016).
    """
    noise = relative_variance(
        terms,
        directions=directions,
        batch=batch,
        difference=difference,
        accumulation=accumulation,
        batch_weight=costs.batch,
    )
    return costs.signal / (costs.signal + noise)


def best_allocation(
    terms: NoiseTerms, *, window_forwards: int, difference: Difference, accumulation: int = 1, batch_weight: float = 1.0
) -> Allocation:
    """The integers n_pert and B of least variance whose forwards fit (Eq. 18, "evaluate the feasible pairs").

    Args:
        window_forwards: forward passes of one window in an update; a direction takes two on each window of its batch
            for central differences, one for one-sided ones.
        accumulation: A, fixed; the forwards are divided among the batches.
        batch_weight: kappa of ``relative_variance``; above 1 it is the least cost of noise that is looked for.

    Raises:
        ValueError: the forwards do not suffice for one direction (two for one-sided differences) on one window.
    """
    product = window_forwards // (FORWARDS_PER_DIRECTION[difference] * accumulation)
    fewest = FEWEST_DIRECTIONS[difference]
    if product < fewest:
        needed = fewest * FORWARDS_PER_DIRECTION[difference] * accumulation
        raise ValueError(f"{window_forwards} forwards of a window are too few; an update needs {needed}")
    sides = range(1, isqrt(product) + 1)  # v falls in both, so only pairs that neither can be raised in matter
    pairs = {(n, product // n) for n in sides} | {(product // b, b) for b in sides}

    def variance(n: int, batch: int, weight: float) -> float:
        setting = {"directions": n, "batch": batch, "accumulation": accumulation, "batch_weight": weight}
        return relative_variance(terms, difference=difference, **setting)

    feasible = [(n, b) for n, b in pairs if n >= fewest]
    n, batch = min(feasible, key=lambda pair: (variance(pair[0], pair[1], batch_weight), pair[1]))
    return Allocation(n, batch, variance(n, batch, 1.0))
