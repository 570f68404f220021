"""What does noise of an estimate cost?  Curvature of the loss along perturbations, batch noise and the gradient.

A step along an estimate of mean m and covariance S changes the loss by ``-eta g.m + eta^2 (m.H m + tr H S) / 2``, H the
Hessian: noise costs by the curvature that it meets, ``tr H S / tr S`` a unit, and Eq. (17), which adds variances up,
takes it to be the same for all. Perturbation noise lies evenly over all coordinates; noise of a batch lies along the
gradients of single windows, where the loss is far more curved (decision 0016).
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.exact_gradients import probe_density, window_gradients, windows_per_chunk
from thinwire.soma.model import Expert
from thinwire.soma.theory import NoiseCosts


class NoiseCurvature(NamedTuple):
    """Curvature of the mean loss, tr H S / tr S, in nats per byte over squared weights.

    Attributes:
        probe: along recorded probes, where perturbation noise lies.
        batch: along the differences of single windows' gradients from their mean, times q.
        gradient: along the gradient times q, an estimate's mean.
    """

    probe: float
    batch: float
    gradient: float

    @property
    def costs(self) -> NoiseCosts | None:
        """In units of perturbation noise; None where a curvature is not positive, and no step size is best."""
        if min(self) <= 0:
            return None
        return NoiseCosts(self.batch / self.probe, self.gradient / self.probe)


def noise_curvature(
    expert: Expert,
    *,
    shape: ExpertShape,
    noisy: UInt8[Tensor, "B T1"],
    windows: UInt8[Tensor, "W T1"],
    halves: tuple[Float64[np.ndarray, " M"], Float64[np.ndarray, " M"]],
    generator: np.random.Generator,
    num_probes: int = 8,
) -> NoiseCurvature:
    """In the dtype of the weights.

    Args:
        noisy: windows whose gradients give batch noise; at least two.
        windows: other ones, whose mean loss is curved.
        halves: two independent estimates of the gradient; the product of both has no noise of either in its mean.
        num_probes: random directions for ``probe``.

    Raises:
        ValueError: fewer than two ``noisy`` windows.
    """
    if len(noisy) < 2:
        raise ValueError("batch noise of fewer than two windows")
    q = torch.from_numpy(probe_density(shape)).to(expert.theta.dtype)
    size = windows_per_chunk(shape, window_bytes=noisy.shape[1] - 1, value_bytes=expert.theta.element_size())
    gradients = torch.cat([window_gradients(expert, shape=shape, windows=part)[0] for part in noisy.split(size)])
    is_moved = generator.random((num_probes, len(q))) < q.numpy()
    signs = generator.choice((-1.0, 1.0), (num_probes, len(q)))
    probes = torch.from_numpy(is_moved * signs).to(expert.theta.dtype)

    def along(directions: Tensor, others: Tensor) -> float:
        products = hessian_products(expert, shape=shape, windows=windows, directions=directions)
        return float((others * products).sum() / (others * directions).sum())

    noise = (gradients - gradients.mean(dim=0)) * q
    first, second = (torch.from_numpy(half).to(q)[None] * q for half in halves)
    return NoiseCurvature(along(probes, probes), along(noise, noise), along(first, second))


def hessian_products(
    expert: Expert, *, shape: ExpertShape, windows: UInt8[Tensor, "W T1"], directions: Float[Tensor, "D M"]
) -> Float[Tensor, "D M"]:
    """H u for every direction u, H of the windows' mean loss over theta; forward over backward mode, in chunks."""

    def gradient(theta: Tensor, part: Tensor) -> Tensor:
        def loss(theta: Tensor) -> Tensor:
            return reference.mean_loss(theta[None], shape=shape, decoder=expert.decoder, windows=part)[0]

        return torch.func.grad(loss)(theta)

    theta = expert.theta.detach()
    fit = windows_per_chunk(shape, window_bytes=windows.shape[1] - 1, value_bytes=2 * theta.element_size())
    together = min(len(directions), max(1, fit // 8))
    total = torch.zeros_like(directions)
    for part in windows.split(max(1, fit // together)):

        def product(direction: Tensor, part: Tensor = part) -> Tensor:
            return torch.func.jvp(lambda theta: gradient(theta, part), (theta,), (direction,))[1]

        products = torch.cat([torch.func.vmap(product)(some) for some in directions.split(together)])
        total += products * (len(part) / len(windows))
    return total
