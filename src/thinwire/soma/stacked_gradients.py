"""What would backpropagation say to every expert of an ensemble at once?  Exact gradients and their spread, stacked.

Experts of equal shape stand in one tensor, each with text of its own: 256 small ones go through in one pass.
For the laboratory: its references (Eqs. 5 and 20, appendices G.1 and K) and the short training of what it measures.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.exact_gradients import GradientMoments
from thinwire.soma.model import Expert
from thinwire.soma.updates import AdamState, adam


class StackedExperts(NamedTuple):
    """Weights of N experts of one shape, each with a head of its own: theta [N, M], decoder [N, 256, d_E]."""

    theta: Tensor
    decoder: Tensor

    @classmethod
    def all_alike(cls, expert: Expert, *, num_experts: int) -> "StackedExperts":
        """N copies of one expert, as experts begin (appendix K)."""
        return cls(expert.theta.repeat(num_experts, 1), expert.decoder.repeat(num_experts, 1, 1))

    def expert(self, index: int) -> Expert:
        return Expert(self.theta[index], self.decoder[index])

    def double(self) -> "StackedExperts":
        return StackedExperts(self.theta.double(), self.decoder.double())

    def __len__(self) -> int:
        return len(self.theta)


class StackedGradients(NamedTuple):
    """Mean losses [N] of each expert's own batch, nats per byte, and their gradients; E's is that of a tied matrix."""

    losses: Tensor
    theta: Tensor
    decoder: Tensor


def stacked_gradients(
    experts: StackedExperts, *, shape: ExpertShape, windows: UInt8[Tensor, "N B T1"]
) -> StackedGradients:
    """Backpropagation through time, every expert on its own windows, in the dtype of the weights."""
    theta = experts.theta.detach().requires_grad_(True)
    decoder = experts.decoder.detach().requires_grad_(True)

    def loss(theta: Tensor, decoder: Tensor, windows: Tensor) -> Tensor:
        return reference.mean_loss(theta[None], shape=shape, decoder=decoder, windows=windows)[0]

    losses = torch.func.vmap(loss)(theta, decoder, windows)
    by_theta, by_decoder = torch.autograd.grad(losses.sum(), (theta, decoder))
    return StackedGradients(losses.detach(), by_theta, by_decoder)


class StackedMoments(NamedTuple):
    """As ``GradientMoments``, of N experts: float64 mean and variance [N, M] over windows."""

    mean: np.ndarray
    variance: np.ndarray
    num_windows: int
    losses_nats_per_byte: np.ndarray

    def of(self, expert: int) -> GradientMoments:
        return GradientMoments(
            self.mean[expert], self.variance[expert], self.num_windows, float(self.losses_nats_per_byte[expert])
        )


def stacked_moments(
    experts: StackedExperts, *, shape: ExpertShape, windows: UInt8[Tensor, "W T1"], together: int
) -> StackedMoments:
    """Mean and spread of the exact gradients of windows that all experts read, gathered in float64.

    Args:
        together: windows of one backward pass, n; the spread of one window's gradient is n times that of such means.

    Raises:
        ValueError: fewer than two passes, or a last one that would be shorter.
    """
    passes, rest = divmod(len(windows), together)
    if passes < 2 or rest:
        raise ValueError(f"{len(windows)} windows do not make two or more passes of {together}")
    mean = np.zeros(tuple(experts.theta.shape))
    squares, losses = np.zeros_like(mean), np.zeros(len(experts))
    for index, chunk in enumerate(windows.split(together), start=1):
        found = stacked_gradients(experts, shape=shape, windows=chunk.expand(len(experts), -1, -1))
        values = found.theta.double().numpy()
        apart = values - mean
        mean += apart / index
        squares += apart * (values - mean)
        losses += found.losses.numpy()
    return StackedMoments(mean, together * squares / (passes - 1), len(windows), losses / passes)


def train_stacked(
    experts: StackedExperts,
    *,
    shape: ExpertShape,
    batch_of: Callable[[int], UInt8[Tensor, "N B T1"]],
    updates: range,
    learning_rate: float,
    states: tuple[AdamState, AdamState] | None = None,
) -> tuple[StackedExperts, tuple[AdamState, AdamState]]:
    """Adam on exact gradients, bodies and heads: how the laboratory's ensembles come to be trained a little.

    Args:
        batch_of: update -> the windows of every expert.
        updates: which updates are made.
        states: moments of theta and of the heads, to go on with.
    """
    body, head = states or (AdamState.zeros_like(experts.theta), AdamState.zeros_like(experts.decoder))
    for update in updates:
        found = stacked_gradients(experts, shape=shape, windows=batch_of(update))
        theta, body = adam(experts.theta, found.theta, state=body, learning_rate=learning_rate, weight_decay=0.0)
        decoder, head = adam(experts.decoder, found.decoder, state=head, learning_rate=learning_rate, weight_decay=0.0)
        experts = StackedExperts(theta, decoder)
    return experts, (body, head)
