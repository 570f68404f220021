"""What is probe z_j?  The definition, in NumPy; every faster implementation equals it bit for bit.

Philox counter (block, direction, update, accumulation) gives 128 bits: 64 coordinates of two bits, the lower one active
(probability 1/2), the upper one the sign.  Normalisation gains are always active (appendix E).  A coordinate's block is
its place in theta divided by 64, so no two tensors share bits.
"""

import numpy as np

from thinwire.base.seeds import StreamKey, philox
from thinwire.kernels.expert_shape import ExpertShape

COORDINATES_PER_BLOCK = 64
COORDINATES_PER_WORD = 16


def gain_words(shape: ExpertShape) -> np.ndarray:
    """uint32 [blocks, 4]: the active bit of every gain coordinate, to be OR-ed into the random words."""
    num_blocks = -(-shape.num_parameters // COORDINATES_PER_BLOCK)
    active = np.zeros(num_blocks * COORDINATES_PER_BLOCK, np.uint32)
    for slot in shape.slots:
        if slot.is_gain:
            active[slot.start : slot.stop] = 1
    shifts = np.arange(COORDINATES_PER_WORD, dtype=np.uint32) * np.uint32(2)
    return (active.reshape(num_blocks, 4, COORDINATES_PER_WORD) << shifts).sum(axis=-1, dtype=np.uint32)


def sign_probe(key: StreamKey, *, shape: ExpertShape, direction: int, update: int, accumulation: int) -> np.ndarray:
    """int8 [M]: one probe."""
    always = gain_words(shape)
    counters = np.empty((len(always), 4), np.uint32)
    counters[:, 0] = np.arange(len(always))
    counters[:, 1:] = (direction, update, accumulation)
    words = philox(key, counters) | always
    shifts = np.arange(COORDINATES_PER_WORD, dtype=np.uint32) * np.uint32(2)
    pairs = (words[:, :, None] >> shifts) & np.uint32(3)
    active, negative = (pairs & 1).astype(np.int8), (pairs >> 1).astype(np.int8)
    return (active * (1 - 2 * negative)).reshape(-1)[: shape.num_parameters]


def weighted_sum(
    weights: np.ndarray, *, key: StreamKey, shape: ExpertShape, first_direction: int, update: int, accumulation: int
) -> np.ndarray:
    """float64 [M]: sum_j w_j z_j, added in the order of the directions."""
    total = np.zeros(shape.num_parameters)
    for offset, weight in enumerate(weights):
        direction = first_direction + offset
        total += weight * sign_probe(key, shape=shape, direction=direction, update=update, accumulation=accumulation)
    return total
