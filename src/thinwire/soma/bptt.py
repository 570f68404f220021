"""What is the exact gradient of a batch, fast?  The control that backpropagates: the same body on ``torch.nn.LSTM``.

The laboratory's references take ``exact_gradients`` (window by window, any dtype); this one trains (Table 5, Fig. 9).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from thinwire.kernels.expert_losses.reference import LAYER_NORM_EPSILON, tensors_of
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.exact_gradients import windows_per_chunk
from thinwire.soma.model import ExactGradient, Expert


def hidden_states(
    weights: dict[str, Tensor], *, shape: ExpertShape, decoder: Float[Tensor, "256 dE"], inputs: UInt8[Tensor, "B T"]
) -> Float[Tensor, "B T dE"]:
    """h, what E decodes at every position, from a zero state; gates i, f, g, o, as torch's."""
    width = shape.width
    recurrence = nn.LSTM(width, width, bias=False, batch_first=True, device="meta")

    def normal(x: Tensor, gain: str) -> Tensor:
        return functional.layer_norm(x, (width,), weights[gain], eps=LAYER_NORM_EPSILON)

    x = decoder[inputs.long()]
    if shape.has_projections:
        x = x @ weights["project_in"].T
    for block in range(shape.depth):
        name = f"blocks.{block}"
        given = {"weight_ih_l0": weights[f"{name}.lstm_input"], "weight_hh_l0": weights[f"{name}.lstm_hidden"]}
        x = x + functional_call(recurrence, given, (normal(x, f"{name}.lstm_norm"),))[0]
        inner = functional.gelu(normal(x, f"{name}.mlp_norm") @ weights[f"{name}.mlp_up"].T)
        x = x + inner @ weights[f"{name}.mlp_down"].T
    x = normal(x, "norm")
    return x @ weights["project_out"].T if shape.has_projections else x


def batch_gradient(expert: Expert, *, shape: ExpertShape, batches: Sequence[UInt8[Tensor, "_ T1"]]) -> ExactGradient:
    """Mean loss over every window of the batches, and its gradients; E's is the full one of a tied matrix.

    Windows are read in chunks, so that memory does not grow with their number. The dtype is the expert's.
    """
    theta = expert.theta.detach().clone().requires_grad_(True)
    decoder = expert.decoder.detach().clone().requires_grad_(True)
    windows = torch.cat(list(batches)).to(theta.device)
    length = windows.shape[1] - 1
    size = windows_per_chunk(shape, window_bytes=length, value_bytes=theta.element_size())
    total = 0.0
    for chunk in windows.split(size):
        weights = {name: tensor[0] for name, tensor in tensors_of(theta[None], shape=shape).items()}
        hidden = hidden_states(weights, shape=shape, decoder=decoder, inputs=chunk[:, :-1])
        logits, targets = (hidden @ decoder.T).flatten(0, 1), chunk[:, 1:].flatten().long()
        loss = functional.cross_entropy(logits, targets, reduction="sum") / (len(windows) * length)
        loss.backward()
        total += float(loss.detach())
    if theta.grad is None or decoder.grad is None:
        raise RuntimeError("backpropagation left no gradient")
    return ExactGradient(total, theta.grad, decoder.grad)
