"""What does an expert compute?  Its definition in PyTorch: any device and dtype, differentiable (appendix C).

A leading axis P holds perturbed copies of theta, so that one call evaluates many directions with batched products; this
is also the eager baseline of the benchmark.  Legend: P perturbed copies, B windows, T input bytes, d width, V 256.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from thinwire.base.seeds import StreamKey
from thinwire.kernels.expert_shape import LAYER_NORM_EPSILON, ExpertShape
from thinwire.kernels.sign_probe import reference as probes

COPIES_PER_CHUNK_BYTES = 256 * 2**20


def tensors_of(theta: Float[Tensor, "P M"], *, shape: ExpertShape) -> dict[str, Tensor]:
    """name -> view [P, *shape] of each tensor in theta."""
    return {slot.name: theta[:, slot.start : slot.stop].reshape(-1, *slot.shape) for slot in shape.slots}


def _normalise(x_PBTd: Tensor, gain_Pd: Tensor) -> Tensor:
    normal = functional.layer_norm(x_PBTd, x_PBTd.shape[-1:], eps=LAYER_NORM_EPSILON)
    return normal * gain_Pd[:, None, None, :]


def _project(x_PBTi: Tensor, weight_Poi: Tensor) -> Tensor:
    return torch.matmul(x_PBTi, weight_Poi.transpose(1, 2)[:, None])


def _lstm(gates_PBTg: Tensor, recurrent_Pgd: Tensor) -> Tensor:
    """Gates i, f, g, o already hold the input part; adds the recurrent one. Returns h [P, B, T, d].

    Steps are unbound together: the gradient of one step's slice alone would be as large as all steps'.
    """
    copies, batch, width = *gates_PBTg.shape[:2], recurrent_Pgd.shape[-1]
    hidden = gates_PBTg.new_zeros(copies, batch, width)
    cell = torch.zeros_like(hidden)
    weight = recurrent_Pgd.transpose(1, 2)
    outputs = []
    for gates_PBg in gates_PBTg.unbind(dim=2):
        i, f, g, o = (gates_PBg + torch.bmm(hidden, weight)).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        outputs.append(hidden)
    return torch.stack(outputs, dim=2)


def decoder_inputs(
    theta: Float[Tensor, "P M"], *, shape: ExpertShape, decoder: Float[Tensor, "256 dE"], inputs: UInt8[Tensor, "B T"]
) -> Float[Tensor, "P B T dE"]:
    """h, what E decodes at every position, from a zero state."""
    weights = tensors_of(theta, shape=shape)
    x = decoder[inputs.long()].expand(theta.shape[0], -1, -1, -1)
    if shape.has_projections:
        x = _project(x, weights["project_in"])
    for block in range(shape.depth):
        name = f"blocks.{block}"
        normal = _normalise(x, weights[f"{name}.lstm_norm"])
        x = x + _lstm(_project(normal, weights[f"{name}.lstm_input"]), weights[f"{name}.lstm_hidden"])
        normal = _normalise(x, weights[f"{name}.mlp_norm"])
        inner = functional.gelu(_project(normal, weights[f"{name}.mlp_up"]))
        x = x + _project(inner, weights[f"{name}.mlp_down"])
    x = _normalise(x, weights["norm"])
    return _project(x, weights["project_out"]) if shape.has_projections else x


def log_probabilities(
    theta: Float[Tensor, "P M"],
    *,
    shape: ExpertShape,
    decoder: Float[Tensor, "256 dE"],
    windows: UInt8[Tensor, "B T1"],
) -> Float[Tensor, "P B T"]:
    """log p(byte t + 1 | bytes 0..t) at every position of windows [B, T + 1]."""
    h = decoder_inputs(theta, shape=shape, decoder=decoder, inputs=windows[:, :-1])
    logits = torch.matmul(h, decoder.T)
    targets = windows[:, 1:].long().expand(theta.shape[0], -1, -1)
    return torch.log_softmax(logits, dim=-1).gather(-1, targets[..., None])[..., 0]


def mean_loss(
    theta: Float[Tensor, "P M"],
    *,
    shape: ExpertShape,
    decoder: Float[Tensor, "256 dE"],
    windows: UInt8[Tensor, "B T1"],
) -> Float[Tensor, " P"]:
    """Mean cross entropy in nats per byte of each copy, reduced in FP64."""
    return -log_probabilities(theta, shape=shape, decoder=decoder, windows=windows).double().mean(dim=(1, 2))


def expert_losses(
    theta: Float[Tensor, " M"],
    *,
    shape: ExpertShape,
    decoder: Float[Tensor, "256 dE"],
    windows: UInt8[Tensor, "B T1"],
    key: StreamKey,
    update: int,
    accumulation: int,
    directions: range,
    epsilon: float,
    signs: Sequence[int],
) -> Float[Tensor, "n S"]:
    """FP64 losses; copies are evaluated in chunks so that memory does not grow with the number of directions."""
    per_copy = windows.shape[0] * windows.shape[1] * (256 + 8 * shape.width) * theta.element_size()
    per_chunk = max(1, COPIES_PER_CHUNK_BYTES // per_copy // len(signs))
    step = torch.tensor(epsilon, dtype=theta.dtype, device=theta.device)
    results = []
    for start in range(0, len(directions), per_chunk):
        copies = []
        for direction in directions[start : start + per_chunk]:
            address = {"direction": direction, "update": update, "accumulation": accumulation}
            probe = torch.from_numpy(probes.sign_probe(key, shape=shape, **address)).to(theta)
            copies += [theta + (step * sign) * probe for sign in signs]
        with torch.no_grad():
            losses = mean_loss(torch.stack(copies), shape=shape, decoder=decoder, windows=windows)
        results.append(losses.reshape(-1, len(signs)).cpu())
    return torch.cat(results)
