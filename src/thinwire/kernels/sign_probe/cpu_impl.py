"""Probes on the CPU: Philox in registers, applied or summed at once, never stored."""

from typing import no_type_check

import numpy as np

from thinwire.base.seeds import StreamKey
from thinwire.kernels.compiled import compiled
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.philox_lanes import add_by_word, philox_lanes, step_by_word
from thinwire.kernels.sign_probe.reference import COORDINATES_PER_BLOCK, COORDINATES_PER_WORD, gain_words
from thinwire.kernels.threads import for_each
from thinwire.kernels.vector_ir import LANES

BLOCKS_PER_TASK = 256


@compiled
@no_type_check
def _words_of_blocks(
    key_low: int,
    key_high: int,
    first_block: int,
    direction: int,
    update: int,
    accumulation: int,
    counters: np.ndarray,
    words: np.ndarray,
) -> None:
    """Words [4, 16] of 16 neighbouring blocks, through counters [4, 16]."""
    for lane in range(LANES):
        counters[0, lane] = np.uint32(first_block + lane)
        counters[1, lane] = np.uint32(direction)
        counters[2, lane] = np.uint32(update)
        counters[3, lane] = np.uint32(accumulation)
    philox_lanes(counters, np.uint64(key_low), np.uint64(key_high), words)


@compiled
@no_type_check
def perturb(
    theta: np.ndarray,
    always: np.ndarray,
    key_low: int,
    key_high: int,
    direction: int,
    update: int,
    accumulation: int,
    step: np.float32,
    out: np.ndarray,
) -> None:
    """out = theta + step z_direction, rounded once to float32."""
    counters, words = np.empty((4, LANES), np.uint32), np.empty((4, LANES), np.uint32)
    size, num_blocks = theta.shape[0], always.shape[0]
    for first in range(0, num_blocks, LANES):
        _words_of_blocks(key_low, key_high, first, direction, update, accumulation, counters, words)
        for block in range(first, min(first + LANES, num_blocks)):
            for part in range(4):
                word = words[part, block - first] | always[block, part]
                start = block * COORDINATES_PER_BLOCK + part * COORDINATES_PER_WORD
                if start + COORDINATES_PER_WORD <= size:
                    step_by_word(theta, out, start, word, step)
                    continue
                for k in range(size - start):
                    pair = (word >> np.uint32(2 * k)) & np.uint32(3)
                    sign = np.float32(np.int32(pair & np.uint32(1)) * (1 - np.int32(pair & np.uint32(2))))
                    out[start + k] = theta[start + k] + step * sign


@compiled
@no_type_check
def add_weighted(
    weights: np.ndarray,
    always: np.ndarray,
    key_low: int,
    key_high: int,
    first_direction: int,
    update: int,
    accumulation: int,
    first_block: int,
    last_block: int,
    total: np.ndarray,
) -> None:
    """total += sum_j w_j z_j on some blocks, directions in order."""
    counters, words = np.empty((4, LANES), np.uint32), np.empty((4, LANES), np.uint32)
    sums = np.empty(LANES * COORDINATES_PER_BLOCK)
    size = total.shape[0]
    for first in range(first_block, last_block, LANES):
        num_blocks = min(LANES, last_block - first)
        sums[:] = 0.0
        for j in range(weights.shape[0]):
            _words_of_blocks(key_low, key_high, first, first_direction + j, update, accumulation, counters, words)
            for block in range(num_blocks):
                for part in range(4):
                    word = words[part, block] | always[first + block, part]
                    add_by_word(sums, block * COORDINATES_PER_BLOCK + part * COORDINATES_PER_WORD, word, weights[j])
        start = first * COORDINATES_PER_BLOCK
        for k in range(min(num_blocks * COORDINATES_PER_BLOCK, size - start)):
            total[start + k] += sums[k]


def sign_probe(key: StreamKey, *, shape: ExpertShape, direction: int, update: int, accumulation: int) -> np.ndarray:
    """int8 [M]: as the reference, through the code that perturbs."""
    out = np.empty(shape.num_parameters, np.float32)
    zero = np.zeros(shape.num_parameters, np.float32)
    perturb(zero, gain_words(shape), key.low, key.high, direction, update, accumulation, np.float32(1.0), out)
    return out.astype(np.int8)


def weighted_sum(
    weights: np.ndarray,
    *,
    key: StreamKey,
    shape: ExpertShape,
    first_direction: int,
    update: int,
    accumulation: int,
    threads: int,
) -> np.ndarray:
    """float64 [M]: as the reference; threads take blocks of coordinates."""
    always, total = gain_words(shape), np.zeros(shape.num_parameters)
    weights = np.ascontiguousarray(weights, np.float64)

    def run(first: int, _: None) -> None:
        last = min(first + BLOCKS_PER_TASK, len(always))
        add_weighted(weights, always, key.low, key.high, first_direction, update, accumulation, first, last, total)

    for_each(range(0, len(always), BLOCKS_PER_TASK), run, make_workspace=lambda: None, threads=threads)
    return total
