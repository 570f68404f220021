"""How far from the gradient are estimates of a fixed objective?  Dense probes in float64, losses apart or summed.

The laboratory of appendix G.2 (Fig. 11): experts at fixed weights, any set of their coordinates perturbed by dense
Rademacher probes, the same forwards serving every grouping of the experts' losses.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.config import Difference
from thinwire.soma.exact_gradients import window_gradients
from thinwire.soma.model import Expert

CHUNK_BYTES = 32 * 2**20
"""Of logits at once: about what a core's caches can still help with."""
Groups = Sequence[Sequence[int]]
"""A partition of the experts: those of a group learn from the sum of their losses."""


class FixedObjective(NamedTuple):
    """Experts whose losses are measured.

    Attributes:
        experts: float64 weights.
        shape: of each.
        coordinates: int64 [d]; the ones that are perturbed, of each expert; their number is equal.
        epsilon: perturbation radius.
    """

    experts: list[Expert]
    shape: ExpertShape
    coordinates: list[np.ndarray]
    epsilon: float

    @property
    def num_coordinates(self) -> int:
        """Of one expert."""
        return len(self.coordinates[0])


class Forwards(NamedTuple):
    """All that forwards said of some directions on one batch.

    Attributes:
        probes: int8 [E, n, d], of each expert.
        losses: float64 [E, n, 2], at +eps and -eps, nats per byte.
    """

    probes: np.ndarray
    losses: np.ndarray


def dense_forwards(
    objective: FixedObjective, *, windows: UInt8[Tensor, "B T1"], directions: int, generator: np.random.Generator
) -> Forwards:
    """Draw dense probes for every expert, and evaluate its loss at both ends of each on the same windows."""
    shape = (len(objective.experts), directions, objective.num_coordinates)
    probes = 2 * generator.integers(0, 2, shape, dtype=np.int8) - 1
    losses = np.stack([_losses(objective, e, windows=windows, probes=probes[e]) for e in range(shape[0])])
    return Forwards(probes, losses)


def _losses(objective: FixedObjective, index: int, *, windows: Tensor, probes: np.ndarray) -> np.ndarray:
    expert, of = objective.experts[index], torch.from_numpy(objective.coordinates[index])
    per_copy = windows.shape[0] * (windows.shape[1] - 1) * expert.decoder.shape[0] * 8
    size = max(1, CHUNK_BYTES // (2 * per_copy))
    found = []
    for chunk in torch.from_numpy(probes).split(size):
        copies = expert.theta.repeat(2 * len(chunk), 1)
        step = objective.epsilon * chunk.double()
        copies[:, of] += torch.cat([step, -step])
        with torch.no_grad():
            losses = reference.mean_loss(copies, shape=objective.shape, decoder=expert.decoder, windows=windows)
        found.append(losses.reshape(2, len(chunk)).T.numpy())
    return np.concatenate(found)


def coefficients(
    losses: Float64[np.ndarray, "E ... n 2"], *, groups: Groups, epsilon: float, difference: Difference
) -> Float64[np.ndarray, "E ... n"]:
    """What each expert's directions are weighted with where its group's losses are summed (Eq. 2).

    One-sided differences take the mean of the n directions on the last axis but one as baseline; n is two or more.
    """
    weights = np.empty(losses.shape[:-1])
    for group in groups:
        together = losses[list(group)].sum(axis=0)
        if difference == "central":
            slopes = (together[..., 0] - together[..., 1]) / (2 * epsilon)
        else:
            upper, n = together[..., 0], together.shape[-2]
            slopes = (upper - upper.mean(axis=-1, keepdims=True)) / epsilon * (n / (n - 1))
        weights[list(group)] = slopes
    return weights


def averaged_estimates(
    forwards: Forwards, *, groups: Groups, average: int, epsilon: float, difference: Difference = "central"
) -> Float64[np.ndarray, "E g d"]:
    """Estimates of n_pert = ``average`` directions, from disjoint runs of them; all of them must be used up."""
    experts, directions, num_coordinates = forwards.probes.shape
    split = (experts, directions // average, average)
    weights = coefficients(forwards.losses.reshape(*split, 2), groups=groups, epsilon=epsilon, difference=difference)
    probes = forwards.probes.reshape(*split, num_coordinates).astype(np.float64)
    return np.matmul(weights[..., None, :] / average, probes)[..., 0, :]


def squared_errors(
    estimates: Float64[np.ndarray, "E g d"], *, gradient: Float64[np.ndarray, "E d"]
) -> Float64[np.ndarray, " g"]:
    """|g_hat - g|^2 / |g|^2 of every estimate, over all experts."""
    apart = ((estimates - gradient[:, None]) ** 2).sum(axis=(0, 2))
    return apart / (gradient**2).sum()


class PoolGradients(NamedTuple):
    """Exact gradients of single windows of a pool, restricted to the objective's coordinates: float64 [W, E, d]."""

    each: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """float64 [E, d], the gradient of the pool's mean loss."""
        return self.each.mean(axis=0)

    @property
    def squared_norm(self) -> float:
        return float((self.mean**2).sum())

    @property
    def nu(self) -> float:
        """sigma^2 / |g|^2 of a draw from the pool with replacement (appendix F.1)."""
        return float(((self.each - self.mean) ** 2).sum()) / len(self.each) / self.squared_norm


def pool_gradients(objective: FixedObjective, *, windows: UInt8[Tensor, "W T1"]) -> PoolGradients:
    """By backpropagation, in float64."""
    each = [
        window_gradients(expert, shape=objective.shape, windows=windows)[0].numpy()[:, of]
        for expert, of in zip(objective.experts, objective.coordinates, strict=True)
    ]
    return PoolGradients(np.stack(each, axis=1))
