"""What does sgemm reach on one core, on the matrix products that a wide expert's forward pass is made of?

A block multiplies the batch [B, d] at each byte by the LSTM's hidden weights [d, 4d], and whole chunks of positions by
the LSTM's input weights [d, 4d] (all but the first block: a table there), the MLP's [d, 4d] and [4d, d]. The rate is of
all of them in these proportions.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import threadpoolctl  # type: ignore[import-untyped]
import torch

from thinwire.kernels.expert_shape import MLP_FACTOR, NUM_GATES, ExpertShape

CHUNK_STEPS = 16
"""Bytes of each window in a chunk of positions: 1,024 rows at 64 windows; more rows are no faster."""


class Product(NamedTuple):
    """``times`` products [rows, terms] x [terms, columns]."""

    rows: int
    terms: int
    columns: int
    times: int

    @property
    def operations(self) -> float:
        return 2.0 * self.rows * self.terms * self.columns * self.times


def products_of(shape: ExpertShape, *, batch: int) -> tuple[Product, ...]:
    """The products of ``CHUNK_STEPS`` bytes of every window."""
    d, blocks, positions = shape.width, shape.depth, batch * CHUNK_STEPS
    return (
        Product(batch, d, NUM_GATES * d, blocks * CHUNK_STEPS),
        Product(positions, d, NUM_GATES * d, blocks - 1),
        Product(positions, d, MLP_FACTOR * d, blocks),
        Product(positions, MLP_FACTOR * d, d, blocks),
    )


def operations_done(shape: ExpertShape) -> float:
    """Operations a byte, without those that the table of 256 bytes saves: block 1's input weights, projection in."""
    saved = NUM_GATES * shape.width**2 + (shape.embed_width * shape.width if shape.has_projections else 0)
    return shape.operations_per_byte - 2.0 * saved


def sgemm_runs(shape: ExpertShape, *, batch: int) -> dict[str, Callable[[], float]]:
    """Name -> a run of all products on one thread, which returns its operations: PyTorch's library and NumPy's."""
    products = products_of(shape, batch=batch)
    total = sum(product.operations for product in products)
    arrays = [
        tuple(
            np.full(size, 0.01, np.float32) for size in ((p.rows, p.terms), (p.terms, p.columns), (p.rows, p.columns))
        )
        for p in products
    ]
    tensors = [tuple(torch.from_numpy(array) for array in some) for some in arrays]

    def with_torch() -> float:
        torch.set_num_threads(1)
        for product, (x, w, y) in zip(products, tensors, strict=True):
            for _ in range(product.times):
                torch.mm(x, w, out=y)
        return total

    def with_numpy() -> float:
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            for product, (x, w, y) in zip(products, arrays, strict=True):
                for _ in range(product.times):
                    np.matmul(x, w, out=y)
        return total

    return {"sgemm, torch": with_torch, "sgemm, numpy": with_numpy}
