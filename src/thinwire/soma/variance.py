"""How far are estimates from the gradient, at fixed weights?  Measured through the losses and probes that train.

Central and one-sided differences come from the same forwards, side by side (Eqs. 5 and 20, appendices G and K).
"""

from collections.abc import Sequence
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe, weighted_probe_sum
from thinwire.soma.config import Difference
from thinwire.soma.exact_gradients import GAIN_DENSITY, ORDINARY_DENSITY, GradientMoments, merged, probe_density
from thinwire.soma.model import Expert
from thinwire.soma.spsa import derivatives, differences_of
from thinwire.soma.theory import CoordinateGroup

SIGNS = (1, -1)


class Subject(NamedTuple):
    """What is measured: an expert at fixed weights, and how its losses are evaluated.

    Attributes:
        expert: float32 weights for the kernels that train; float64 ones are evaluated by the reference.
        epsilon: perturbation radius.
        implementation, threads: as ``expert_losses``.
    """

    expert: Expert
    shape: ExpertShape
    epsilon: float
    implementation: str = "auto"
    threads: int = 1


class DirectionSample(NamedTuple):
    """Single directions on one batch.

    Attributes:
        address: of the probes, directions 0..m-1.
        shape: of the expert.
        epsilon: perturbation radius.
        losses: float64 [m, 2], at +eps and -eps, nats per byte.
        active: float64 [m], |z|^2, the coordinates that each probe moved.
        slopes: float64 [m], z . g of an exact gradient; not a number where none was given.
    """

    address: ProbeAddress
    shape: ExpertShape
    epsilon: float
    losses: np.ndarray
    active: np.ndarray
    slopes: np.ndarray

    def coefficients(self, difference: Difference) -> Float64[np.ndarray, " m"]:
        """What each direction is weighted with, as in training; one-sided ones use the losses at +eps alone."""
        columns = torch.from_numpy(self.losses[:, : 2 if difference == "central" else 1].copy())
        differences = differences_of(columns, difference=difference).differences
        return derivatives(differences, epsilon=self.epsilon, difference=difference)

    def weighted_sum(self, weights: np.ndarray) -> Float64[np.ndarray, " M"]:
        return weighted_probe_sum(weights, address=self.address, shape=self.shape)

    def estimate(self, difference: Difference) -> Float64[np.ndarray, " M"]:
        """g_hat of all m directions (Eqs. 2 and 8)."""
        return self.weighted_sum(self.coefficients(difference) / len(self.losses))


class Spread(NamedTuple):
    """tr Cov of an estimate over its probes, absolute, and the standard error of that figure."""

    variance: float
    standard_error: float


def sample_directions(
    subject: Subject,
    *,
    windows: UInt8[Tensor, "B T1"],
    address: ProbeAddress,
    directions: int,
    gradient: Float64[np.ndarray, " M"] | None = None,
) -> DirectionSample:
    """Losses of m directions at both signs on one batch, and what their probes are.

    Args:
        gradient: exact one of the same batch; gives ``slopes``, what the losses' differences would be as eps -> 0.
    """
    losses = expert_losses(
        subject.expert.theta,
        shape=subject.shape,
        decoder=subject.expert.decoder,
        windows=windows,
        address=address,
        directions=range(directions),
        epsilon=subject.epsilon,
        signs=SIGNS,
        implementation=subject.implementation,
        threads=subject.threads,
    )
    active, slopes = np.empty(directions), np.full(directions, nan)
    for direction in range(directions):
        probe = sign_probe(address, shape=subject.shape, direction=direction)
        active[direction] = np.count_nonzero(probe)
        if gradient is not None:
            slopes[direction] = probe @ gradient
    return DirectionSample(address, subject.shape, subject.epsilon, losses.numpy(), active, slopes)


def central_spread(sample: DirectionSample, *, directions: int) -> Spread:
    """tr Cov of central estimates of n_pert directions: that of single ones over n_pert (Eq. 20)."""
    return grouped_spread([sample], groups=[[0]], directions=directions)


def averaged_spread(sample: DirectionSample, *, average: int) -> float:
    """tr Cov of central estimates of n_pert = ``average`` directions, from disjoint groups of them (Eq. 20, right).

    Raises:
        ValueError: the directions do not make two or more whole groups.
    """
    m = len(sample.losses)
    groups, rest = divmod(m, average)
    if groups < 2 or rest:
        raise ValueError(f"{m} directions do not make groups of {average}")
    coefficients = sample.coefficients("central")
    squares = 0.0
    for group in range(groups):
        first = group * average
        weights = coefficients[first : first + average] / average
        mean = weighted_probe_sum(weights, address=sample.address, shape=sample.shape, first_direction=first)
        squares += float(mean @ mean)
    whole = sample.estimate("central")
    return (squares - groups * float(whole @ whole)) / (groups - 1)


def small_epsilon_spread(sample: DirectionSample, *, directions: int) -> Spread:
    """As ``central_spread`` from exact slopes along the same probes: what separates sampling from finite eps."""
    return _single_spread([sample], [sample.slopes], directions=directions)


def one_sided_spread(sample: DirectionSample, *, directions: int) -> Spread:
    """tr Cov of one-sided estimates of n_pert directions, at this eps.

    The estimate is the sample covariance of y = L+/eps and z, whose variance in each coordinate is
    E[y^2 z^2]/n - (n - 2)/(n (n - 1)) E[y z]^2 + E[y^2] E[z^2]/(n (n - 1)), y centred; the moments come from the m
    directions at hand (decision 0015).
    """
    m, n = len(sample.losses), directions
    y = sample.losses[:, 0] / sample.epsilon
    y = y - y.mean()
    each = y**2 * sample.active * (m / (m - 1))
    both = float(each.mean())
    covariance = sample.weighted_sum(y / (m - 1))
    product = float(covariance @ covariance) - both / m
    rest = float(y @ y) / (m - 1) * float(sample.active.mean()) / (n * (n - 1))
    variance = both / n - (n - 2) / (n * (n - 1)) * product + rest
    return Spread(variance, float(each.std(ddof=1)) / sqrt(m) / n)


def grouped_spread(samples: Sequence[DirectionSample], *, groups: Sequence[Sequence[int]], directions: int) -> Spread:
    """tr Cov over all experts' coordinates where each group's experts learn from the sum of their losses (Figure 11).

    Args:
        samples: one an expert: the same forwards serve every grouping.
        groups: a partition of the experts. One each: independent losses; all in one: a summed loss.
    """
    weights: list[np.ndarray] = [np.empty(0)] * len(samples)
    for group in groups:
        together = np.sum([samples[expert].coefficients("central") for expert in group], axis=0)
        for expert in group:
            weights[expert] = together
    return _single_spread(samples, weights, directions=directions)


def _single_spread(samples: Sequence[DirectionSample], weights: Sequence[np.ndarray], *, directions: int) -> Spread:
    m = len(samples[0].losses)
    each, square_of_sum = np.zeros(m), 0.0
    for sample, own in zip(samples, weights, strict=True):
        each += own**2 * sample.active
        total = sample.weighted_sum(own)
        square_of_sum += float(total @ total)
    single = (float(each.sum()) - square_of_sum / m) / (m - 1)
    return Spread(single / directions, float(each.std(ddof=1)) / sqrt(m) / directions)


def coordinate_groups(moments: GradientMoments, *, shape: ExpertShape, is_population: bool) -> list[CoordinateGroup]:
    """The gradient by density, for the closed forms.

    Args:
        is_population: the windows stand for all text, so that |g|^2 is what remains of the mean's square without the
            part that sigma^2 / n adds to it; else they are the batch itself.
    """
    q = probe_density(shape)
    squares, variance = moments.mean**2, np.zeros_like(q)
    if is_population:
        variance = moments.variance
        squares = squares - variance / moments.num_windows
    return [
        CoordinateGroup(int(of.sum()), density, max(float(squares[of].sum()), 0.0), float(variance[of].sum()))
        for density in (ORDINARY_DENSITY, GAIN_DENSITY)
        if (of := q == density).any()
    ]


class Reference(NamedTuple):
    """The gradient that estimates are measured against, from two disjoint sets of windows (Eq. 5, Table 8)."""

    first: GradientMoments
    second: GradientMoments

    @property
    def both(self) -> GradientMoments:
        return merged(self.first, self.second)

    @property
    def cosine_distance(self) -> float:
        """Of one set's gradient from the other's: 1 - cosine (Table 8)."""
        a, b = self.first.mean, self.second.mean
        return 1 - float(a @ b) / sqrt(float(a @ a) * float(b @ b))

    @property
    def squared_error(self) -> float:
        """E|g_ref - g|^2 = sigma^2 / n of both sets together: what R counts besides the estimate's own error."""
        return float(self.both.variance.sum()) / self.both.num_windows

    @property
    def squared_gradient(self) -> float:
        """|g|^2 without bias; may be negative where the windows are too few to see g."""
        return float(self.both.mean @ self.both.mean) - self.squared_error

    @property
    def nu(self) -> float:
        """sigma^2 / |g|^2, the relative variance of one sequence's gradient (appendix F.1)."""
        return float(self.both.variance.sum()) / self.squared_gradient


class EstimateError(NamedTuple):
    """One estimate beside the reference, as squares and products; sums over experts are then divided (Eq. 5).

    Attributes:
        squared: |g_hat - g_ref|^2.
        squared_first, squared_second: the same against each set of reference windows alone.
        product: g_hat . g_ref.
        squared_norm: |g_hat|^2.
    """

    squared: float
    squared_first: float
    squared_second: float
    product: float
    squared_norm: float


def error_of(estimate: Float64[np.ndarray, " M"], *, reference: Reference) -> EstimateError:
    def squared(mean: np.ndarray) -> float:
        return float(((estimate - mean) ** 2).sum())

    both = reference.both.mean
    return EstimateError(
        squared(both),
        squared(reference.first.mean),
        squared(reference.second.mean),
        float(estimate @ both),
        float(estimate @ estimate),
    )
