"""What does an untrained expert look like, and what is its exact gradient?  (section 3, appendix C)"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from thinwire.base.seeds import numpy_generator
from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import VOCABULARY, ExpertShape
from thinwire.soma.config import ModelConfig

DECODER_STANDARD_DEVIATION = 0.1


class Expert(NamedTuple):
    """The weights of one expert: theta, flat, and the tied matrix E [256, d_E]."""

    theta: Tensor
    decoder: Tensor


class ExactGradient(NamedTuple):
    """Loss and gradients by backpropagation; the decoder's part is the full one of a tied matrix."""

    loss_nats_per_byte: float
    theta: Tensor
    decoder: Tensor


def shape_of(model: ModelConfig) -> ExpertShape:
    return ExpertShape(width=model.width, depth=model.depth, embed_width=model.embed_width)


def initial_expert(shape: ExpertShape, *, seed: int) -> Expert:
    """FP32 weights before the seed run.

    choice: matrices are uniform in +-1/sqrt(fan-in), the usual start of LSTMs and linear layers; gains are 1; E is
    normal with standard deviation 0.1. The paper gives none of them.
    """
    generator = numpy_generator(seed, "initial weights")
    theta = np.empty(shape.num_parameters, np.float32)
    for slot in shape.slots:
        if slot.is_gain:
            theta[slot.start : slot.stop] = 1.0
        else:
            bound = slot.shape[1] ** -0.5
            theta[slot.start : slot.stop] = generator.uniform(-bound, bound, slot.size)
    decoder = DECODER_STANDARD_DEVIATION * generator.standard_normal((VOCABULARY, shape.embed_width))
    return Expert(torch.from_numpy(theta), torch.from_numpy(decoder.astype(np.float32)))


def exact_gradient(expert: Expert, *, shape: ExpertShape, windows: UInt8[Tensor, "B T1"]) -> ExactGradient:
    """Backpropagation through time over a batch: the reference that zero-order estimates are judged by.

    The dtype is the expert's; use float64 for measurements.
    """
    theta = expert.theta.detach().clone().requires_grad_(True)
    decoder = expert.decoder.detach().clone().requires_grad_(True)
    loss = reference.mean_loss(theta[None], shape=shape, decoder=decoder, windows=windows)[0]
    loss.backward()
    if theta.grad is None or decoder.grad is None:
        raise RuntimeError("backpropagation left no gradient")
    return ExactGradient(float(loss.detach()), theta.grad, decoder.grad)


def count_parameters(shape: ExpertShape, *, num_experts: int, decoders: int) -> int:
    """Weights of an ensemble (Table 2): N bodies and as many heads as are kept apart (1 when shared, N when local)."""
    return num_experts * shape.num_parameters + decoders * shape.num_decoder_parameters


def stack_thetas(experts: list[Expert]) -> Float[Tensor, "N M"]:
    return torch.stack([expert.theta for expert in experts])
