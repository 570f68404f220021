"""Which normals perturb a pair?  Drawn by address, the same bits in every implementation, never stored.

Philox counter (block, pair, update, 0) gives four words, so eight numbers of 16 bits, the lower half of a word first.
A number u becomes the normal Phi^-1((u + 1/2) / 2^16), divided by the root mean square of all 2^16 of them, from a
table rounded once to FP32: no logarithm or cosine, whose last bits would differ between machines and compilers.
The largest is 4.17; the mean is 0 and the variance 1 exactly but for rounding.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from thinwire.base.seeds import StreamKey, philox
from thinwire.kernels.eggroll.shape import NORMALS_PER_BLOCK, EggrollShape

NUM_VALUES = 2**16


class NoiseAddress(NamedTuple):
    """Which normals: the stream's key (seed, "eggroll") and the update; the pair's number is the rest."""

    key: StreamKey
    update: int


@functools.cache
def normal_table() -> np.ndarray:
    """float32 [65536], ascending, antisymmetric; read-only."""
    # choice: 16 bits a normal; the sign of a sum over many pairs does not see the tails beyond 4.17.
    half = ndtri((np.arange(NUM_VALUES // 2, NUM_VALUES) + 0.5) / NUM_VALUES)
    half /= np.sqrt(np.mean(half**2))
    table = np.concatenate([-half[::-1], half]).astype(np.float32)
    table.flags.writeable = False
    return table


def pair_normals(address: NoiseAddress, *, shape: EggrollShape, pairs: range) -> np.ndarray:
    """float32 [pairs, num_normals]: the definition, in NumPy; runs as in ``EggrollShape.normal_runs``."""
    runs = shape.normal_runs
    num_blocks = runs[-1].first_block + -(-runs[-1].size // NORMALS_PER_BLOCK)
    counters = np.zeros((len(pairs), num_blocks, 4), np.uint32)
    counters[:, :, 0] = np.arange(num_blocks)
    counters[:, :, 1] = np.asarray(pairs)[:, None]
    counters[:, :, 2] = address.update
    words = philox(address.key, counters)
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1)
    values = normal_table()[halves.reshape(len(pairs), -1)]
    first = [run.first_block * NORMALS_PER_BLOCK for run in runs]
    return np.concatenate([values[:, at : at + run.size] for at, run in zip(first, runs, strict=True)], axis=1)
