"""Which way is downhill, from losses alone?  SPSA, central or one-sided, with accumulation (Eqs. 2, 8).

``estimate`` is pure: losses in, gradient out. ``gradient_from_differences`` is its second half, all that replay needs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress, weighted_probe_sum
from thinwire.soma.config import Difference

SIGNS: dict[Difference, tuple[int, ...]] = {"central": (1, -1), "one_sided": (1,)}


class BatchLosses(NamedTuple):
    """What the forwards of one accumulation batch say, as FP64 scalars.

    Attributes:
        differences: [n]; L+ - L- (central), or L+ minus the mean of all L+ (one-sided).
        mean_loss: mean of every loss evaluated, nats per byte.
    """

    differences: np.ndarray
    mean_loss: float


def differences_of(losses: Float64[Tensor, "n S"], *, difference: Difference) -> BatchLosses:
    """FP64 subtraction of FP64-reduced losses; everything the log keeps of an update's forwards."""
    values = losses.numpy()
    mean_loss = float(values.mean())
    if difference == "central":
        return BatchLosses(values[:, 0] - values[:, 1], mean_loss)
    return BatchLosses(values[:, 0] - values[:, 0].mean(), mean_loss)


def derivatives(differences: np.ndarray, *, epsilon: float, difference: Difference) -> np.ndarray:
    """Directional derivatives [n]: each direction's coefficient.

    One-sided differences use the mean of the other directions as baseline: the factor n/(n-1) makes the estimate's
    mean that of central differences.
    """
    if difference == "central":
        return differences / (2 * epsilon)
    num_directions = len(differences)
    return differences / epsilon * (num_directions / (num_directions - 1))


def gradient_from_differences(
    differences: Sequence[np.ndarray],
    *,
    addresses: Sequence[ProbeAddress],
    shape: ExpertShape,
    epsilon: float,
    difference: Difference,
    directions: range | None = None,
    threads: int = 1,
    implementation: str = "auto",
) -> Float64[Tensor, " M"]:
    """g = 1/A sum_a 1/n sum_j D_aj z_aj, in FP64, added in the order of (a, j) (Eq. 8; accumulation, appendix E).

    Args:
        directions: the j that are added, without a gap; None adds all n.
        implementation: that of the run, so that probes are summed where they are perturbed; the same bits for any.
    """
    total = np.zeros(shape.num_parameters)
    for values, address in zip(differences, addresses, strict=True):
        weights = derivatives(values, epsilon=epsilon, difference=difference) / len(values)
        added = directions or range(len(values))
        total += weighted_probe_sum(
            weights[added.start : added.stop],
            address=address,
            shape=shape,
            first_direction=added.start,
            threads=threads,
            implementation=implementation,
        )
    return torch.from_numpy(total / len(differences))


class Estimate(NamedTuple):
    """A gradient estimate and the scalars it was made from.

    Attributes:
        gradient: float64 [M]; its expectation is diag(q) g, q the probes' density (appendix E).
        batches: one a accumulation batch.
    """

    gradient: Tensor
    batches: list[BatchLosses]

    @property
    def differences(self) -> np.ndarray:
        """float64 [A, n]."""
        return np.stack([batch.differences for batch in self.batches])


def estimate(
    losses: Callable[[ProbeAddress], Float64[Tensor, "n S"]],
    *,
    addresses: Sequence[ProbeAddress],
    shape: ExpertShape,
    epsilon: float,
    difference: Difference,
    summed_by: Callable[[list[np.ndarray]], Float64[Tensor, " M"]] | None = None,
    threads: int = 1,
    implementation: str = "auto",
) -> Estimate:
    """One update's gradient estimate.

    Args:
        losses: evaluates every direction of an address on that address's own batch, one column a sign.
        addresses: one an accumulation batch; all its directions and signs share the batch.
        summed_by: makes the gradient from every batch's differences; None is ``gradient_from_differences``.
        implementation: of the weighted sum, as in ``gradient_from_differences``.
    """
    batches = [differences_of(losses(address), difference=difference) for address in addresses]
    differences = [batch.differences for batch in batches]
    if summed_by is not None:
        return Estimate(summed_by(differences), batches)
    gradient = gradient_from_differences(
        differences,
        addresses=addresses,
        shape=shape,
        epsilon=epsilon,
        difference=difference,
        threads=threads,
        implementation=implementation,
    )
    return Estimate(gradient, batches)
