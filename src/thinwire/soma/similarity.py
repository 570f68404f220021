"""How alike are unit vectors and centroids, with the same bits whatever the batch, the thread count or the BLAS?

A matrix product from BLAS may round a row differently when its neighbours change, so that one prefix could be routed
to two experts on two days.  Here every inner product is summed in one fixed order.
"""

from typing import no_type_check

import numba
import numpy as np
from jaxtyping import Float32


def similarities(
    points: Float32[np.ndarray, "n C"], centroids: Float32[np.ndarray, "N C"]
) -> Float32[np.ndarray, "n N"]:
    """Cosine similarity of unit vectors: ``points @ centroids.T``, each sum over C in ascending order.

    Args:
        points: rows of length one.
        centroids: rows of length one; in column-major order they are not copied.
    """
    result = np.zeros((len(points), len(centroids)), np.float32)
    _accumulate_products(np.ascontiguousarray(points), np.ascontiguousarray(centroids.T), result)
    return result


def unit_rows(rows: Float32[np.ndarray, "n C"]) -> Float32[np.ndarray, "n C"]:
    """Each row divided by its Euclidean length; a row of zeros stays as it is."""
    lengths = np.sqrt(np.sum(rows.astype(np.float64) ** 2, axis=1, keepdims=True))
    return (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


@numba.njit(cache=True, nogil=True)
@no_type_check
def _accumulate_products(points, centroids_transposed, result):
    """The inner loop runs over centroids: it fills vector registers without reordering any sum."""
    num_points, num_components = points.shape
    num_centroids = centroids_transposed.shape[1]
    for i in range(num_points):
        for c in range(num_components):
            value = points[i, c]
            for j in range(num_centroids):
                result[i, j] += value * centroids_transposed[c, j]
