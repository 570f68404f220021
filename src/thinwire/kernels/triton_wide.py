"""How does a GPU evaluate experts too wide for one multiprocessor?  Batched products of copies, fused pointwise parts.

A leading axis P holds perturbed copies, as in the reference, in chunks of bounded memory: at d > 64 a weight is read
for many windows at once, so PyTorch's batched matrix products are near what the machine can do.  All positions of a
layer are one product, but for the recurrent one, a product a step.  Fused here is what would otherwise be many small
launches a step: the LSTM cell, and the softmax with its gather.  Products are FP32 (``ieee``).
Legend: P copies, B windows, T input bytes, d width, V 256.
"""

from collections.abc import Iterator, Sequence
from typing import no_type_check

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from thinwire.base.errors import UserError
from thinwire.base.seeds import StreamKey
from thinwire.kernels.expert_losses.reference import tensors_of
from thinwire.kernels.expert_shape import LAYER_NORM_EPSILON, VOCABULARY, ExpertShape
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.sign_probe.triton_impl import BLOCKS, perturbed_copies
from thinwire.kernels.triton_parts import int64_on, sigmoid, tanh

CHUNK_BYTES = 4 * 2**30
"""Of the GPU's memory, for the copies of a chunk and their activations."""
ROW_TILE = 16


@triton.jit
@no_type_check
def _lstm_cells(
    gates, cells, outputs, t, num_rows, length, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr
):
    """gates [R, 4d] at one step -> cells [R, d] in place, outputs [R, T, d] at t."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, PADDED)[None, :]
    inside = (rows < num_rows) & (columns < WIDTH)
    places = gates + rows * (4 * WIDTH) + columns
    i, f = tl.load(places, mask=inside, other=0.0), tl.load(places + WIDTH, mask=inside, other=0.0)
    g, o = tl.load(places + 2 * WIDTH, mask=inside, other=0.0), tl.load(places + 3 * WIDTH, mask=inside, other=0.0)
    kept = cells + rows * WIDTH + columns
    cell = sigmoid(f) * tl.load(kept, mask=inside, other=0.0) + sigmoid(i) * tanh(g)
    tl.store(kept, cell, mask=inside)
    tl.store(outputs + (rows * length + t) * WIDTH + columns, sigmoid(o) * tanh(cell), mask=inside)


@triton.jit
@no_type_check
def _target_log_probabilities(logits, targets, results, num_rows, num_targets, ROWS: tl.constexpr, V: tl.constexpr):
    """results [R] = log softmax(logits [R, 256]) at targets, which repeat every ``num_targets`` rows (once a copy)."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = rows < num_rows
    bytes_ = tl.arange(0, V)[None, :]
    values = tl.load(logits + rows[:, None] * V + bytes_, mask=inside[:, None], other=0.0)
    target = tl.load(targets + rows % num_targets, mask=inside, other=0).to(tl.int32)
    largest = tl.max(values, axis=1)
    total = tl.sum(tl.exp(values - largest[:, None]), axis=1)
    chosen = tl.sum(tl.where(bytes_ == target[:, None], values, 0.0), axis=1)
    tl.store(results + rows, chosen - largest - tl.log(total), mask=inside)


def _lstm(gates_PBTg: Tensor, recurrent_Pgd: Tensor) -> Tensor:
    copies, batch, length, width = *gates_PBTg.shape[:3], recurrent_Pgd.shape[-1]
    outputs = gates_PBTg.new_empty(copies, batch, length, width)
    cells = gates_PBTg.new_zeros(copies, batch, width)
    weight, rows = recurrent_Pgd.transpose(1, 2), copies * batch
    for t in range(length):
        at_t = gates_PBTg[:, :, t]
        gates = torch.baddbmm(at_t, outputs[:, :, t - 1], weight) if t else at_t.contiguous()
        _lstm_cells[(-(-rows // ROW_TILE),)](
            gates, cells, outputs, t, rows, length, WIDTH=width, PADDED=triton.next_power_of_2(width), ROWS=ROW_TILE
        )
    return outputs


def _normalise(x_PBTd: Tensor, gain_Pd: Tensor) -> Tensor:
    return functional.layer_norm(x_PBTd, x_PBTd.shape[-1:], eps=LAYER_NORM_EPSILON) * gain_Pd[:, None, None, :]


def _project(x_PBTi: Tensor, weight_Poi: Tensor) -> Tensor:
    copies, batch, length = x_PBTi.shape[:3]
    return torch.bmm(x_PBTi.reshape(copies, batch * length, -1), weight_Poi.transpose(1, 2)).reshape(
        copies, batch, length, -1
    )


def decoder_inputs(thetas: Tensor, *, shape: ExpertShape, decoder: Tensor, inputs: Tensor) -> Tensor:
    """h [P, B, T, d_E] of copies [P, M] on inputs [B, T]."""
    weights = tensors_of(thetas, shape=shape)
    x = decoder[inputs.long()].expand(len(thetas), -1, -1, -1)
    if shape.has_projections:
        x = _project(x, weights["project_in"])
    for block in range(shape.depth):
        name = f"blocks.{block}"
        gates = _project(_normalise(x, weights[f"{name}.lstm_norm"]), weights[f"{name}.lstm_input"])
        x = x + _lstm(gates, weights[f"{name}.lstm_hidden"])
        inner = _project(_normalise(x, weights[f"{name}.mlp_norm"]), weights[f"{name}.mlp_up"])
        x = x + _project(functional.gelu(inner), weights[f"{name}.mlp_down"])
    x = _normalise(x, weights["norm"])
    return _project(x, weights["project_out"]) if shape.has_projections else x


def log_probabilities(thetas: Tensor, *, shape: ExpertShape, decoder: Tensor, windows: Tensor) -> Tensor:
    """float32 [P, B, T]: log p of every next byte of windows [B, T + 1]."""
    h = decoder_inputs(thetas, shape=shape, decoder=decoder, inputs=windows[:, :-1])
    logits = torch.matmul(h, decoder.T).contiguous()
    results = logits.new_empty(logits.shape[:3])
    targets, rows = windows[:, 1:].contiguous(), results.numel()
    _target_log_probabilities[(-(-rows // ROW_TILE),)](
        logits, targets, results, rows, targets.numel(), ROWS=ROW_TILE, V=VOCABULARY
    )
    return results


def _chunks(shape: ExpertShape, *, windows: Tensor, num_copies: int) -> Iterator[range]:
    """Copies evaluated together: 4 bytes for each weight and, of each position, logits, gates and inner units."""
    positions = windows.shape[0] * (windows.shape[1] - 1)
    per_copy = 4 * (shape.num_parameters + positions * (2 * VOCABULARY + 16 * shape.width))
    together = max(1, CHUNK_BYTES // per_copy)
    for start in range(0, num_copies, together):
        yield range(start, min(start + together, num_copies))


def refuse_other_precisions(precision: str, *, shape: ExpertShape) -> None:
    """Raises UserError: only the fused kernels have them."""
    if precision != "ieee":
        raise UserError(
            f"experts of width {shape.width} are evaluated in full FP32",
            where=f"precision = {precision}",
            fix="use the precision ieee",
        )


def expert_losses(
    theta: Tensor,
    *,
    shape: ExpertShape,
    decoder: Tensor,
    windows: Tensor,
    key: StreamKey,
    update: int,
    accumulation: int,
    signed: Sequence[tuple[int, int]],
    epsilon: float,
) -> Tensor:
    """float64 [len(signed)] on the CPU: mean losses of theta + sign eps z."""
    device, num_targets = theta.device, windows.shape[0] * (windows.shape[1] - 1)
    always = int64_on(gain_words(shape), device=device)
    address = int64_on([*key, update, accumulation], device=device)
    step, losses = torch.tensor(epsilon, dtype=torch.float32), []
    windows = windows.to(device)
    for chunk in _chunks(shape, windows=windows, num_copies=len(signed)):
        some = [signed[place] for place in chunk]
        copies = torch.empty(len(some), shape.num_parameters, dtype=torch.float32, device=device)
        steps = torch.stack([step * sign for _, sign in some]).to(device)
        directions = int64_on(np.array([direction for direction, _ in some]), device=device)
        perturbed_copies[(len(some),)](
            theta.contiguous(), always, address, directions, steps, copies, SIZE=shape.num_parameters, BLOCKS=BLOCKS
        )
        log_p = log_probabilities(copies, shape=shape, decoder=decoder, windows=windows)
        losses.append(-log_p.double().sum(dim=(1, 2)).cpu() / num_targets)
    return torch.cat(losses)
