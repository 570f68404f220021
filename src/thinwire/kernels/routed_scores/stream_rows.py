"""The steps of an expert on one to four texts, as Numba intrinsics: 16 output rows in the lanes instead of 16 windows.

With one text for an expert the lanes of ``lane_rows`` would hold fifteen idle windows.  A tile of packed weights is R
consecutive rows of a matrix for one term, so it is loaded as one vector, and multiplied by one number of each stream
(text).  Every output is summed in the order of ``lane_rows``, so both give the same bits.
Legend: S streams, as many as the tuple ``streams`` is long; R rows of a tile, T tiles kept in registers together.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from thinwire.kernels.lane_rows import ROWS_AT_ONCE, SUM_CHAINS, TILE_ROWS
from thinwire.kernels.vector_ir import (
    EXP_LOW,
    FLOAT,
    INT32,
    INT64,
    LANES,
    LAYER_NORM_EPSILON,
    Lanes,
    buffers_intrinsic,
    row_number,
)

TILES_TOGETHER = 4
"""T: with four tiles a multiply-add need not wait for the one before it, even for one stream."""


class Vector(Lanes):
    """Arithmetic on vectors of ``size`` numbers."""

    def __init__(self, builder: Any, size: int) -> None:
        super().__init__(builder)
        self.size = size
        self.kind, self.kind_int = ir.VectorType(FLOAT, size), ir.VectorType(INT32, size)

    def repeated(self, scalar: Any) -> Any:
        """``scalar`` in every element."""
        undefined = ir.Constant(self.kind, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self.kind_int, [0] * self.size))

    def part(self, value: Any, first: int) -> Any:
        """Elements ``first`` to ``first + size`` of a longer vector."""
        undefined = ir.Constant(value.type, ir.Undefined)
        mask = ir.Constant(self.kind_int, [first + k for k in range(self.size)])
        return self.builder.shuffle_vector(value, undefined, mask)

    def folded(self, value: Any, combine: Callable[[Any, Any], Any], *, neighbours_first: bool) -> Any:
        """The elements' combination, by halves: element k with k + 1, or with k + half the vector."""
        elements = [self.builder.extract_element(value, ir.Constant(INT32, k)) for k in range(self.size)]
        while len(elements) > 1:
            half = len(elements) // 2
            pairs = zip(elements[::2], elements[1::2], strict=True)
            halves = zip(elements[:half], elements[half:], strict=True)
            elements = [combine(a, b) for a, b in (pairs if neighbours_first else halves)]
        return elements[0]


def _emit_gemm(lanes: Lanes, buffers: list[Any], counts: list[Any], *, tiles: int) -> None:
    """y[s, t R + r] = start + sum_k w[t, k R + r] x[s, k] for T tiles and S streams; start is y or, ``is_new``, 0."""
    weights, x, y = buffers
    num_terms, weight_stride, x_stride, y_stride, y_tile, is_new = counts
    b, num_streams = lanes.builder, weights.directions
    rows = Vector(b, TILE_ROWS)
    starts = [b.mul(weight_stride, row_number(t)) for t in range(tiles)]
    x_starts = [b.mul(x_stride, row_number(s)) for s in range(num_streams)]
    places = [
        b.add(b.mul(y_stride, row_number(s)), b.mul(y_tile, row_number(t)))
        for t in range(tiles)
        for s in range(num_streams)
    ]
    from_zero = b.icmp_signed("!=", is_new, row_number(0))
    initial = [b.select(from_zero, rows.constant(0.0), y.vector_at(place, rows.kind)) for place in places]

    def body(k: Any, sums: list[Any]) -> list[Any]:
        base = b.mul(k, row_number(TILE_ROWS))
        numbers = [rows.repeated(b.load(x.pointer(b.add(start, k), FLOAT))) for start in x_starts]
        added = []
        for t, start in enumerate(starts):
            tile = weights.vector_at(b.add(start, base), rows.kind)
            added += [rows.fma(tile, number, sums[t * num_streams + s]) for s, number in enumerate(numbers)]
        return added

    for place, total in zip(places, lanes.loop(num_terms, initial, body), strict=True):
        y.store_at(place, total)


def _gemm(tiles: int) -> Any:
    def emit(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
        _emit_gemm(lanes, buffers, counts, tiles=tiles)

    return buffers_intrinsic(3, 6, emit)


def _emit_layer_norm(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """out = gain (x - mean) / sqrt(variance + 1e-5) over each stream's rows, summed in the chains of ``lane_rows``."""
    x, gain, out = buffers
    num_rows, stride = counts
    b = lanes.builder
    four = Vector(b, SUM_CHAINS)
    starts = [b.mul(stride, row_number(s)) for s in range(x.directions)]
    groups = b.sdiv(b.add(num_rows, row_number(SUM_CHAINS - 1)), row_number(SUM_CHAINS))
    size = b.sitofp(num_rows, FLOAT)
    numbers = ir.Constant(ir.VectorType(INT64, SUM_CHAINS), list(range(SUM_CHAINS)))
    zero = four.constant(0.0)

    def sums(terms: list[Callable[[Any], Any]]) -> list[Any]:
        def body(group: Any, totals: list[Any]) -> list[Any]:
            first = b.mul(group, row_number(SUM_CHAINS))
            left = b.sub(num_rows, first)
            repeated = ir.Constant(ir.VectorType(INT64, SUM_CHAINS), ir.Undefined)
            for k in range(SUM_CHAINS):
                repeated = b.insert_element(repeated, left, ir.Constant(INT32, k))
            is_row = b.icmp_signed("<", numbers, repeated)
            return [b.fadd(t, b.select(is_row, term(first), zero)) for t, term in zip(totals, terms, strict=True)]

        totals = lanes.loop(groups, [zero] * len(terms), body)
        return [four.folded(total, b.fadd, neighbours_first=True) for total in totals]

    def row(start: Any) -> Callable[[Any], Any]:
        return lambda first: x.vector_at(b.add(start, first), four.kind)

    def square(start: Any, mean: Any) -> Callable[[Any], Any]:
        def term(first: Any) -> Any:
            difference = b.fsub(row(start)(first), four.repeated(mean))
            return b.fmul(difference, difference)

        return term

    means = [b.fdiv(total, size) for total in sums([row(start) for start in starts])]
    scales = []
    root = cgutils.get_or_insert_function(b.module, ir.FunctionType(FLOAT, [FLOAT]), "llvm.sqrt.f32")
    for total in sums([square(start, mean) for start, mean in zip(starts, means, strict=True)]):
        variance = b.fadd(b.fdiv(total, size), ir.Constant(FLOAT, LAYER_NORM_EPSILON))
        scales.append(b.fdiv(ir.Constant(FLOAT, 1.0), b.call(root, [variance])))

    def write(group: Any, _: list[Any]) -> list[Any]:
        first = b.mul(group, row_number(LANES))
        gains = gain.vector_at(first)
        for start, mean, scale in zip(starts, means, scales, strict=True):
            place = b.add(start, first)
            normal = b.fmul(b.fsub(x.vector_at(place), lanes.splat(mean)), lanes.splat(scale))
            out.store_at(place, b.fmul(normal, gains))
        return []

    lanes.loop(b.sdiv(b.add(num_rows, row_number(LANES - 1)), row_number(LANES)), [], write)


def _emit_softmax_sums(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """For each stream: e = exp(z - max z); sums[2 s] = max z, sums[2 s + 1] = sum of e, added as in ``lane_rows``."""
    z, e, sums = buffers
    num_rows, stride = counts
    b = lanes.builder
    few = Vector(b, ROWS_AT_ONCE)
    starts = [b.mul(stride, row_number(s)) for s in range(z.directions)]
    groups = b.sdiv(num_rows, row_number(LANES))

    def rows(start: Any, group: Any) -> Any:
        return z.vector_at(b.add(start, b.mul(group, row_number(LANES))))

    def larger(group: Any, tops: list[Any]) -> list[Any]:
        return [lanes.maximum(rows(start, group), top) for start, top in zip(starts, tops, strict=True)]

    maxima = lanes.loop(groups, [lanes.constant(-3.0e38)] * len(starts), larger)
    whole = Vector(b, LANES)
    tops = [whole.folded(top, lanes.maximum, neighbours_first=False) for top in maxima]
    low = lanes.constant(EXP_LOW)

    def add(group: Any, totals: list[Any]) -> list[Any]:
        added = []
        for start, top, total in zip(starts, tops, totals, strict=True):
            value = lanes.exp_in_range(lanes.maximum(low, b.fsub(rows(start, group), lanes.splat(top))))
            e.store_at(b.add(start, b.mul(group, row_number(LANES))), value)
            for first in range(0, LANES, ROWS_AT_ONCE):
                total = b.fadd(total, few.part(value, first))
            added.append(total)
        return added

    totals = lanes.loop(groups, [few.constant(0.0)] * len(starts), add)
    for s, (top, total) in enumerate(zip(tops, totals, strict=True)):
        b.store(top, sums.pointer(row_number(2 * s), FLOAT))
        b.store(few.folded(total, b.fadd, neighbours_first=False), sums.pointer(row_number(2 * s + 1), FLOAT))


gemm_4, gemm_2, gemm_1 = (_gemm(tiles) for tiles in (TILES_TOGETHER, 2, 1))
stream_norm = buffers_intrinsic(3, 2, _emit_layer_norm)
stream_softmax = buffers_intrinsic(3, 2, _emit_softmax_sums)
