"""Which random number belongs here?  Every stream has an address, so any step can be drawn again on its own.

Philox4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a 64-bit key and a 128-bit
counter into 128 random bits without state.  The key is a hash of (seed, purpose, expert); the counter says what is
drawn: (block, direction, update, accumulation).
"""

import hashlib
from typing import NamedTuple

import numpy as np

PHILOX_ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
LOW_32 = np.uint64(0xFFFFFFFF)


class StreamKey(NamedTuple):
    """A 64-bit Philox key as two 32-bit words."""

    low: int
    high: int


def stream_key(seed: int, purpose: str, expert: int = 0) -> StreamKey:
    """The key of one stream.

    Args:
        seed: the run's seed, any integer.
        purpose: what the numbers are for, e.g. ``"probe"`` or ``"batch"``.
        expert: which expert draws; -1 is the seed run.
    """
    digest = hashlib.blake2b(f"thinwire/{seed}/{purpose}/{expert}".encode(), digest_size=8).digest()
    return StreamKey(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))


def philox(key: StreamKey, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10, the reference every other implementation equals bit for bit.

    Args:
        key: the stream.
        counters: uint32 [..., 4], one counter a row.

    Returns:
        uint32 [..., 4], 128 random bits a row.
    """
    c0, c1, c2, c3 = (counters[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key.low, key.high
    for _ in range(PHILOX_ROUNDS):
        product_0 = np.uint64(MULTIPLIER_0) * c0
        product_1 = np.uint64(MULTIPLIER_1) * c2
        c0 = (product_1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c1 = product_1 & LOW_32
        c2 = (product_0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c3 = product_0 & LOW_32
        k0 = (k0 + WEYL_0) & 0xFFFFFFFF
        k1 = (k1 + WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def draw_words(key: StreamKey, num_words: int, *, c1: int = 0, c2: int = 0, c3: int = 0) -> np.ndarray:
    """uint32 [num_words] from the counters (0.., c1, c2, c3)."""
    num_blocks = -(-num_words // 4)
    counters = np.empty((num_blocks, 4), np.uint32)
    counters[:, 0] = np.arange(num_blocks, dtype=np.uint32)
    counters[:, 1:] = (c1, c2, c3)
    return philox(key, counters).reshape(-1)[:num_words]


def draw_below(key: StreamKey, bounds: np.ndarray, *, c1: int = 0, c2: int = 0, c3: int = 0) -> np.ndarray:
    """int64 integers, one below each bound: ``floor(u * bound)`` with 53 random bits in u (bias below 2^-20 for bounds
    up to 2^33)."""
    words = draw_words(key, 2 * len(bounds), c1=c1, c2=c2, c3=c3).astype(np.uint64).reshape(-1, 2)
    unit = ((words[:, 0] << np.uint64(21)) ^ (words[:, 1] >> np.uint64(11))).astype(np.float64) * 2.0**-53
    return np.minimum((unit * bounds).astype(np.int64), np.asarray(bounds, np.int64) - 1)


def numpy_generator(seed: int, purpose: str, expert: int = 0) -> np.random.Generator:
    """A NumPy generator for draws that are made once, in order (initial weights, bootstrap, sampling for clusters)."""
    key = stream_key(seed, purpose, expert)
    return np.random.Generator(np.random.Philox(key=key.low | (key.high << 32)))
