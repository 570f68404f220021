"""How good is the average of two experts, for all pairs at once?  Sums of log((p_i + p_j) / 2) over bytes.

N = 256 has 32,640 pairs, and the paper reads 749,568 bytes: 24 G logarithms one by one. Here the averages of
``BYTES_TOGETHER`` bytes are multiplied first, in FP64, and one logarithm is taken of the product; a product that
comes near the smallest FP64 number is taken apart again, so the result is the same to rounding.
"""

from typing import no_type_check

import numpy as np
from jaxtyping import Float64
from numba import njit

from thinwire.kernels.threads import for_each

BYTES_TOGETHER = 8
SMALLEST_PRODUCT = 1e-280
"""Far above the smallest normal FP64 number, 2e-308, below which a product loses digits."""


def add_pair_averages(
    sums: Float64[np.ndarray, "N N"], scores: Float64[np.ndarray, "N S"], *, threads: int = 1
) -> None:
    """sums[i, j] += sum over bytes of log((p_i + p_j) / 2), for i < j; nothing else changes.

    Args:
        scores: log p of each byte under each expert, nats.
        threads: the same bits for any number.
    """
    most = scores.max(axis=0)
    # Every byte's probabilities are taken relative to its best expert's, so that products stay near one.
    relative = np.ascontiguousarray(np.exp(scores - most).T)
    columns = np.ascontiguousarray(scores.T)
    shift = float(most.sum())

    def run(expert: int, products: np.ndarray) -> None:
        _add_row(expert, relative, columns, shift, products, sums[expert])

    count = len(scores)
    for_each(range(count - 1), run, make_workspace=lambda: np.empty(count), threads=threads)


@njit(cache=True, nogil=True)
@no_type_check
def _add_row(i, relative, scores, shift, products, sums):
    """``relative`` and ``scores`` are [S, N]; row i of the pairs, j from i + 1 on."""
    num_bytes, count = relative.shape
    half = np.log(0.5)
    for j in range(i + 1, count):
        sums[j] += shift + num_bytes * half
    for first in range(0, num_bytes, BYTES_TOGETHER):
        last = min(first + BYTES_TOGETHER, num_bytes)
        products[:] = 1.0
        for t in range(first, last):
            own = relative[t, i]
            for j in range(i + 1, count):
                products[j] *= own + relative[t, j]
        for j in range(i + 1, count):
            if products[j] > SMALLEST_PRODUCT:
                sums[j] += np.log(products[j])
            else:
                for t in range(first, last):
                    sums[j] += _log_sum(scores[t, i], scores[t, j]) - _largest(scores[t])


@njit(cache=True, nogil=True)
@no_type_check
def _log_sum(a, b):
    """log(e^a + e^b), however small."""
    return max(a, b) + np.log1p(np.exp(-abs(a - b)))


@njit(cache=True, nogil=True)
@no_type_check
def _largest(values):
    largest = values[0]
    for value in values:
        largest = max(largest, value)
    return largest
