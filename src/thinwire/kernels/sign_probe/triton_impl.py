"""Probes on a GPU: a weighted sum of many, rebuilt from their address and never stored; one of them, for comparison.

A program owns some blocks of 64 coordinates and adds the directions in their order, in FP64, so the sum has the bits of
the reference whatever the grid.
"""

from typing import no_type_check

import numpy as np
import torch
import triton
import triton.language as tl

from thinwire.base.seeds import StreamKey
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.triton_parts import device_of_triton, int64_on, probe_words, signs_of, store_perturbed

BLOCKS = 16
"""Blocks of 64 coordinates a program: 1,024 FP64 sums, eight a thread."""


@triton.jit
@no_type_check
def _weighted_sums(
    weights, directions, always, address, sums, num_directions, SIZE: tl.constexpr, BLOCKS: tl.constexpr
):
    blocks = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    is_block = blocks * 64 < SIZE
    places = blocks[:, None] * 64 + tl.arange(0, 16)[None, :]
    gains_0 = tl.load(always + blocks * 4, mask=is_block, other=0).to(tl.uint32)
    gains_1 = tl.load(always + blocks * 4 + 1, mask=is_block, other=0).to(tl.uint32)
    gains_2 = tl.load(always + blocks * 4 + 2, mask=is_block, other=0).to(tl.uint32)
    gains_3 = tl.load(always + blocks * 4 + 3, mask=is_block, other=0).to(tl.uint32)
    sum_0 = tl.zeros((BLOCKS, 16), tl.float64)
    sum_1, sum_2, sum_3 = sum_0, sum_0, sum_0
    for j in range(num_directions):
        weight = tl.load(weights + j)
        word_0, word_1, word_2, word_3 = probe_words(address, tl.load(directions + j), blocks)
        sum_0 += weight * signs_of(word_0, gains_0).to(tl.float64)
        sum_1 += weight * signs_of(word_1, gains_1).to(tl.float64)
        sum_2 += weight * signs_of(word_2, gains_2).to(tl.float64)
        sum_3 += weight * signs_of(word_3, gains_3).to(tl.float64)
    tl.store(sums + places, sum_0, mask=places < SIZE)
    tl.store(sums + places + 16, sum_1, mask=places + 16 < SIZE)
    tl.store(sums + places + 32, sum_2, mask=places + 32 < SIZE)
    tl.store(sums + places + 48, sum_3, mask=places + 48 < SIZE)


@triton.jit
@no_type_check
def perturbed_copies(theta, always, address, directions, steps, copies, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """copies [P, SIZE] = theta + step_p z_p, a program a copy."""
    p = tl.program_id(0)
    direction, step = tl.load(directions + p), tl.load(steps + p)
    store_perturbed(theta, always, address, direction, step, copies + p.to(tl.int64) * SIZE, SIZE, BLOCKS)


def sign_probe(key: StreamKey, *, shape: ExpertShape, direction: int, update: int, accumulation: int) -> np.ndarray:
    """int8 [M]: as the reference, through the code that perturbs."""
    device, size = device_of_triton(), shape.num_parameters
    copy = torch.empty(size, dtype=torch.float32, device=device)
    perturbed_copies[(1,)](
        torch.zeros(size, device=device),
        int64_on(gain_words(shape), device=device),
        int64_on([*key, update, accumulation], device=device),
        int64_on([direction], device=device),
        torch.ones(1, device=device),
        copy,
        SIZE=size,
        BLOCKS=BLOCKS,
    )
    return copy.cpu().numpy().astype(np.int8)


def weighted_sum(
    weights: np.ndarray, *, key: StreamKey, shape: ExpertShape, first_direction: int, update: int, accumulation: int
) -> np.ndarray:
    """float64 [M]: as the reference."""
    device, size = device_of_triton(), shape.num_parameters
    sums = torch.empty(size, dtype=torch.float64, device=device)
    always = gain_words(shape)
    _weighted_sums[(-(-len(always) // BLOCKS),)](
        torch.from_numpy(np.ascontiguousarray(weights, np.float64)).to(device),
        int64_on(range(first_direction, first_direction + len(weights)), device=device),
        int64_on(always, device=device),
        int64_on([*key, update, accumulation], device=device),
        sums,
        len(weights),
        SIZE=size,
        BLOCKS=BLOCKS,
    )
    return sums.cpu().numpy()
