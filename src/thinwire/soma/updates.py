"""How do weights move?  Adam with coupled weight decay (Eq. 8, appendix E)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

BETA_1, BETA_2 = 0.9, 0.999
STABILIZER = 1e-8


class AdamState(NamedTuple):
    """First and second moments, shaped like the weights, and how many updates made them."""

    first: Tensor
    second: Tensor
    updates: int

    @classmethod
    def zeros_like(cls, weights: Tensor) -> "AdamState":
        return cls(torch.zeros_like(weights), torch.zeros_like(weights), 0)


class Moved(NamedTuple):
    weights: Tensor
    state: AdamState


def adam(
    weights: Float[Tensor, "..."],
    gradient: Float[Tensor, "..."],
    *,
    state: AdamState,
    learning_rate: float,
    weight_decay: float,
) -> Moved:
    """One update in the weights' dtype; nothing is changed in place.

    Coupled: ``weight_decay * weights`` is added to the gradient before the moments, as in
    ``torch.optim.Adam(weight_decay=...)``. Probes are not rescaled by their density, so on ordinary weights (density
    1/2) the decay counts twice relative to the expected gradient (appendix E).
    """
    updates = state.updates + 1
    g = gradient.to(weights.dtype) + weight_decay * weights
    first = BETA_1 * state.first + (1 - BETA_1) * g
    second = BETA_2 * state.second + (1 - BETA_2) * g * g
    corrected_first = first / (1 - BETA_1**updates)
    corrected_second = second / (1 - BETA_2**updates)
    moved = weights - learning_rate * corrected_first / (corrected_second.sqrt() + STABILIZER)
    return Moved(moved, AdamState(first, second, updates))
