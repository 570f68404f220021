"""The steps of an expert on one to four texts, as Numba intrinsics: 16 output rows in the lanes instead of 16 windows.

With one text for an expert the lanes of ``lane_rows`` would hold fifteen idle windows.  A tile of packed weights is R
consecutive rows of a matrix for one term, so it is loaded as one vector, and multiplied by one number of each stream
(text).  Every output is summed in the order of ``lane_rows``, so both give the same bits.
Legend: S streams, as many as the tuple ``streams`` is long; R rows of a tile, T tiles kept in registers together.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from thinwire.kernels import lane_functions as functions
from thinwire.kernels.expert_shape import LAYER_NORM_EPSILON
from thinwire.kernels.lane_rows import ROWS_AT_ONCE, SUM_CHAINS, TILE_ROWS
from thinwire.kernels.vector_ir import (
    FLOAT,
    INT32,
    LANES,
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

    def repeated_integer(self, scalar: Any) -> Any:
        """As ``repeated``, of 32-bit integers."""
        undefined = ir.Constant(self.kind_int, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self.kind_int, [0] * self.size))

    def part(self, value: Any, first: int) -> Any:
        """Elements ``first`` to ``first + size`` of a longer vector."""
        return self.shuffled(value, value, [first + k for k in range(self.size)])

    def halved(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """All elements combined, number k with k + half of the vector until one is left."""
        while value.type.count > 1:
            half = value.type.count // 2
            low, high = list(range(half)), list(range(half, 2 * half))
            value = combine(self.shuffled(value, value, low), self.shuffled(value, value, high))
        return self.element(value, 0)

    def paired(self, value: Any, combine: Callable[[Any, Any], Any], *, count: int) -> Any:
        """The elements combined with their neighbours until ``count`` are left."""
        while value.type.count > count:
            even, odd = list(range(0, value.type.count, 2)), list(range(1, value.type.count, 2))
            value = combine(self.shuffled(value, value, even), self.shuffled(value, value, odd))
        return value

    def element(self, value: Any, index: int) -> Any:
        return self.builder.extract_element(value, ir.Constant(INT32, index))


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
    """out = gain (x - mean) / sqrt(variance + 1e-5) over each stream's rows; NaN where the variance is infinite.

    The chains of ``lane_rows`` (row r belongs to chain r % 4) lie side by side in one vector, stream after stream.
    """
    x, gain, out = buffers
    num_rows, stride = counts
    b, num_streams = lanes.builder, x.directions
    chains, each = Vector(b, SUM_CHAINS * num_streams), Vector(b, num_streams)
    four = ir.VectorType(FLOAT, SUM_CHAINS)
    starts = [b.mul(stride, row_number(s)) for s in range(num_streams)]
    groups = b.sdiv(b.add(num_rows, row_number(SUM_CHAINS - 1)), row_number(SUM_CHAINS))
    numbers = ir.Constant(chains.kind_int, list(range(SUM_CHAINS)) * num_streams)
    size = each.repeated(b.sitofp(num_rows, FLOAT))

    def summed(term: Callable[[Any], Any]) -> Any:
        def body(group: Any, totals: list[Any]) -> list[Any]:
            first = b.mul(group, row_number(SUM_CHAINS))
            rows = chains.joined([x.vector_at(b.add(start, first), four) for start in starts])
            left = b.trunc(b.sub(num_rows, first), INT32)
            is_row = b.icmp_signed("<", numbers, chains.repeated_integer(left))
            return [b.fadd(totals[0], b.select(is_row, term(rows), chains.constant(0.0)))]

        (totals,) = lanes.loop(groups, [chains.constant(0.0)], body)
        return b.fdiv(chains.paired(totals, b.fadd, count=num_streams), size)

    means = summed(lambda rows: rows)
    of_chains = [s for s in range(num_streams) for _ in range(SUM_CHAINS)]
    mean_of_chains = chains.shuffled(means, means, of_chains)

    def square(rows: Any) -> Any:
        difference = b.fsub(rows, mean_of_chains)
        return b.fmul(difference, difference)

    variances = b.fadd(summed(square), each.constant(LAYER_NORM_EPSILON))
    scales = each.fma(variances, each.constant(0.0), b.fdiv(each.constant(1.0), each.sqrt(variances)))

    def write(group: Any, _: list[Any]) -> list[Any]:
        first = b.mul(group, row_number(LANES))
        gains = gain.vector_at(first)
        for s, start in enumerate(starts):
            place = b.add(start, first)
            mean, scale = (lanes.splat(each.element(value, s)) for value in (means, scales))
            normal = b.fmul(b.fsub(x.vector_at(place), mean), scale)
            out.store_at(place, b.fmul(normal, gains))
        return []

    lanes.loop(b.sdiv(b.add(num_rows, row_number(LANES - 1)), row_number(LANES)), [], write)


def _emit_copy(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """out = x, ``num_tiles`` times R numbers."""
    x, out = buffers
    (num_tiles,) = counts
    b, tile = lanes.builder, ir.VectorType(FLOAT, TILE_ROWS)

    def copy(index: Any, _: list[Any]) -> list[Any]:
        first = b.mul(index, row_number(TILE_ROWS))
        out.store_at(first, x.vector_at(first, tile))
        return []

    lanes.loop(num_tiles, [], copy)


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
    tops = [whole.halved(top, lanes.maximum) for top in maxima]
    low = lanes.constant(functions.EXP_LOW)

    def add(group: Any, totals: list[Any]) -> list[Any]:
        added = []
        for start, top, total in zip(starts, tops, totals, strict=True):
            value = functions.exp_in_range(lanes, lanes.maximum(low, b.fsub(rows(start, group), lanes.splat(top))))
            e.store_at(b.add(start, b.mul(group, row_number(LANES))), value)
            for first in range(0, LANES, ROWS_AT_ONCE):
                total = b.fadd(total, few.part(value, first))
            added.append(total)
        return added

    totals = lanes.loop(groups, [few.constant(0.0)] * len(starts), add)
    for s, (top, total) in enumerate(zip(tops, totals, strict=True)):
        b.store(top, sums.pointer(row_number(2 * s), FLOAT))
        b.store(few.halved(total, b.fadd), sums.pointer(row_number(2 * s + 1), FLOAT))


gemm_4, gemm_2, gemm_1 = (_gemm(tiles) for tiles in (TILES_TOGETHER, 2, 1))
stream_norm = buffers_intrinsic(3, 2, _emit_layer_norm)
stream_softmax = buffers_intrinsic(3, 2, _emit_softmax_sums, apart=True)
copy_tiles = buffers_intrinsic(2, 1, _emit_copy)
