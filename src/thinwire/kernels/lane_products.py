"""The matrix products of an expert on 16 lanes, as Numba intrinsics, one of them with GELU inside.

A multiply-add keeps half of a processor's vector pipes busy, and most instructions of GELU go through the other half:
beside a tile's sum only its multiply-adds take time (``docs/decisions/0018-functions-from-tables.md``).  Sums and
functions are those of the steps apart, and so are the bits.  Legend: R rows of a tile (``lane_layout``), T tiles.
"""

from functools import partial
from typing import Any

from thinwire.kernels import lane_functions as functions
from thinwire.kernels.vector_ir import TILE_ROWS, Lanes, buffers_intrinsic, row_number


def _emit_gemm(lanes: Lanes, buffers: list[Any], counts: list[Any], *, start_from_output: bool) -> None:
    """y[r] (+)= sum_k w[k R + r] x[k] for R rows: weights are broadcast, a row of x is one vector."""
    weights, x, y = buffers
    (num_terms,) = counts
    rows = [row_number(r) for r in range(TILE_ROWS)]
    initial = [y.row(r) if start_from_output else lanes.constant(0.0) for r in rows]
    body = partial(_add_term, lanes, weights, x, row_number(0))
    for r, total in zip(rows, lanes.loop(num_terms, initial, body), strict=True):
        y.store(r, total)


def _add_term(lanes: Lanes, weights: Any, x: Any, first: Any, k: Any, sums: list[Any]) -> list[Any]:
    """The R sums of a tile that begins with weight ``first``, and term k."""
    b = lanes.builder
    x_row, base = x.row(k), b.add(first, b.mul(k, row_number(TILE_ROWS)))
    return [lanes.fma(weights.weight(b.add(base, row_number(r))), x_row, total) for r, total in enumerate(sums)]


def _emit_gemm_gelu(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """y = W x of T tiles, and GELU of all but the last: while a tile is summed, GELU of the one before it."""
    weights, x, y = buffers
    num_tiles, num_terms = counts
    b = lanes.builder
    size = row_number(TILE_ROWS)

    def tile(number: Any, _: list[Any]) -> list[Any]:
        first_row = b.mul(number, size)
        first_weight = b.mul(first_row, num_terms)

        def step(r: Any, sums: list[Any]) -> list[Any]:
            """The r-th part of the terms, and row r of the tile before."""
            first, last = (b.sdiv(b.mul(part, num_terms), size) for part in (r, b.add(r, row_number(1))))
            sums = lanes.span(first, last, sums, partial(_add_term, lanes, weights, x, first_weight))
            row = b.add(b.sub(first_row, size), r)
            with b.if_then(b.icmp_signed(">", number, row_number(0))):
                y.store(row, functions.gelu(lanes, y.row(row)))
            return sums

        for r, total in enumerate(lanes.loop(size, [lanes.constant(0.0)] * TILE_ROWS, step)):
            y.store(b.add(first_row, row_number(r)), total)
        return []

    lanes.loop(num_tiles, [], tile)


gemm_set = buffers_intrinsic(3, 1, partial(_emit_gemm, start_from_output=False))
gemm_add = buffers_intrinsic(3, 1, partial(_emit_gemm, start_from_output=True))
gemm_gelu = buffers_intrinsic(3, 2, _emit_gemm_gelu, apart=True)
