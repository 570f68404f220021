"""The pointwise steps of an expert on 16 lanes, as Numba intrinsics: layer norm, LSTM cell, GELU, softmax sums.

Each takes the mix of directions in the lanes, (array, offset) pairs, then counts.  See ``vector_ir`` for the
arithmetic, ``lane_functions`` for exp, tanh and GELU, ``lane_forward`` for the order.  The LSTM cell, GELU and the
softmax sums go ``ROWS_AT_ONCE`` rows at a time: their buffers must hold as many rows as that rounds the count up to
(the layout's padding does).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from thinwire.kernels import lane_functions as functions
from thinwire.kernels.expert_shape import LAYER_NORM_EPSILON
from thinwire.kernels.vector_ir import (
    INT32,
    INT64,
    LANES,
    TILE_ROWS,
    VECTOR_INT,
    Lanes,
    buffers_intrinsic,
    row_number,
)

SUM_CHAINS = 4
ROWS_AT_ONCE = 4 if TILE_ROWS == 16 else 1
"""Rows that a pointwise step treats together where one row is one register, so that none waits for its own result."""


def _emit_layer_norm(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """out = gain (x - mean) / sqrt(variance + 1e-5) over the rows (appendix C: gain only).

    Where the variance is infinite the result is NaN, not the zero of 1 / infinity: a diverged expert shows.
    """
    x, gain, out = buffers
    (num_rows,) = counts
    b = lanes.builder
    size = lanes.splat(b.sitofp(num_rows, ir.FloatType()))
    mean = b.fdiv(_sum_over_rows(lanes, num_rows, x.row), size)

    def square(r: Any) -> Any:
        difference = b.fsub(x.row(r), mean)
        return b.fmul(difference, difference)

    variance = b.fadd(b.fdiv(_sum_over_rows(lanes, num_rows, square), size), lanes.constant(LAYER_NORM_EPSILON))
    scale = lanes.fma(variance, lanes.constant(0.0), b.fdiv(lanes.constant(1.0), lanes.sqrt(variance)))

    def write(r: Any, _: list[Any]) -> list[Any]:
        normal = b.fmul(b.fsub(x.row(r), mean), scale)
        out.store(r, b.fmul(normal, gain.weight(r)))
        return []

    lanes.loop(num_rows, [], write)


def _sum_over_rows(lanes: Lanes, num_rows: Any, term: Callable[[Any], Any]) -> Any:
    """sum_r term(r) in ``SUM_CHAINS`` interleaved chains, so that an addition need not wait for the one before it."""
    b = lanes.builder
    zero = lanes.constant(0.0)

    def body(group: Any, sums: list[Any]) -> list[Any]:
        first = b.mul(group, row_number(SUM_CHAINS))
        added = []
        for chain, total in enumerate(sums):
            row = b.add(first, row_number(chain))
            is_row = b.icmp_signed("<", row, num_rows)
            value = term(b.select(is_row, row, first))
            added.append(b.fadd(total, b.select(is_row, value, zero)))
        return added

    chains = lanes.loop(_groups(lanes, num_rows, SUM_CHAINS), [zero] * SUM_CHAINS, body)
    while len(chains) > 1:
        chains = [b.fadd(chains[k], chains[k + 1]) for k in range(0, len(chains), 2)]
    return chains[0]


def _groups(lanes: Lanes, num_rows: Any, size: int) -> Any:
    """How many groups of ``size`` rows hold ``num_rows``."""
    b = lanes.builder
    return b.sdiv(b.add(num_rows, row_number(size - 1)), row_number(size))


def _emit_lstm_cell(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """c = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c); x += h, with two divisions a row.

    Gates lie in four blocks i, f, g, o of ``stride`` rows.  With a = 1 + exp(-i), b = 1 + exp(-f) and tanh(g) = n/q:
    c' = (c a q + n b) / (a b q).
    """
    gates, cell, hidden, x = buffers
    num_rows, stride = counts
    b = lanes.builder

    def row(group: Any, _: list[Any]) -> list[Any]:
        r = b.mul(group, row_number(lanes.rows))
        i, f, g, o = (gates.row(b.add(r, b.mul(stride, row_number(q)))) for q in range(4))
        n, q = functions.tanh_ratio(lanes, g)
        input_part = b.fmul(functions.one_plus_exp_minus(lanes, i), q)
        forget_part = functions.one_plus_exp_minus(lanes, f)
        numerator = lanes.fma(cell.row(r), input_part, b.fmul(n, forget_part))
        c = b.fdiv(numerator, b.fmul(input_part, forget_part))
        n, q = functions.tanh_ratio(lanes, c)
        h = b.fdiv(n, b.fmul(q, functions.one_plus_exp_minus(lanes, o)))
        cell.store(r, c)
        hidden.store(r, h)
        x.store(r, b.fadd(x.row(r), h))
        return []

    lanes.loop(_groups(lanes, num_rows, lanes.rows), [], row)


def _emit_gelu(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """x <- x (1 / 2 + erf(x / sqrt 2) / 2), the exact GELU."""
    (x,) = buffers
    (num_rows,) = counts
    b = lanes.builder

    def row(group: Any, _: list[Any]) -> list[Any]:
        r = b.mul(group, row_number(lanes.rows))
        x.store(r, functions.gelu(lanes, x.row(r)))
        return []

    lanes.loop(_groups(lanes, num_rows, lanes.rows), [], row)


def _emit_softmax_sums(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """out row 0 = max_v z_v, row 1 = sum_v exp(z_v - max), over the rows of z."""
    z, out = buffers
    (num_rows,) = counts
    b = lanes.builder
    groups = _groups(lanes, num_rows, lanes.rows)

    def rows(group: Any) -> Any:
        return z.row(b.mul(group, row_number(lanes.rows)))

    (top,) = lanes.loop(groups, [lanes.constant(-3.0e38)], lambda r, s: [lanes.maximum(rows(r), s[0])])
    top = lanes.across_rows(top, lanes.maximum)
    low = lanes.constant(functions.EXP_LOW)

    def add(r: Any, carried: list[Any]) -> list[Any]:
        return [b.fadd(carried[0], functions.exp_in_range(lanes, lanes.maximum(low, b.fsub(rows(r), top))))]

    (total,) = lanes.loop(groups, [lanes.constant(0.0)], add)
    total = lanes.across_rows(total, b.fadd)
    out.store(row_number(0), lanes.one_row(top))
    out.store(row_number(1), lanes.one_row(total))


def _emit_gather(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """Row r of out = number r of each lane's table entry: 16 entries are read 16 numbers at a time and transposed.

    ``positions``, int32 [16], says where each lane's entry begins in the table.
    """
    positions, table, out = buffers
    (num_blocks,) = counts
    b = lanes.builder
    where = b.bitcast(positions.row(row_number(0)), VECTOR_INT)
    starts = [b.sext(b.extract_element(where, ir.Constant(INT32, lane)), INT64) for lane in range(LANES)]

    def block(index: Any, _: list[Any]) -> list[Any]:
        first = b.mul(index, ir.Constant(INT64, LANES))
        columns = lanes.transpose([table.vector_at(b.add(start, first)) for start in starts])
        for r, column in enumerate(columns):
            out.store(b.add(first, row_number(r)), column)
        return []

    lanes.loop(num_blocks, [], block)


def _emit_log_probabilities(lanes: Lanes, buffers: list[Any], _: list[Any]) -> None:
    """out = target - max - log(sum), FP64 [16]; rows of ``sums``: of ``softmax_sums``, then the targets' logits."""
    sums, out = buffers
    b = lanes.builder
    double = ir.VectorType(ir.DoubleType(), LANES)
    top, total, target = (sums.row(row_number(r)) for r in range(3))
    difference = b.fsub(b.fpext(target, double), b.fpext(top, double))
    out.store_at(row_number(0), b.fsub(difference, functions.log_of_sum(lanes, total)))


layer_norm = buffers_intrinsic(3, 1, _emit_layer_norm, apart=True)
lstm_cell = buffers_intrinsic(4, 2, _emit_lstm_cell, rows=ROWS_AT_ONCE, apart=True)
gelu = buffers_intrinsic(1, 1, _emit_gelu, rows=ROWS_AT_ONCE, apart=True)
softmax_sums = buffers_intrinsic(2, 1, _emit_softmax_sums, rows=ROWS_AT_ONCE, apart=True)
gather_entries = buffers_intrinsic(3, 1, _emit_gather, apart=True)
log_probabilities = buffers_intrinsic(2, 0, _emit_log_probabilities, apart=True)

__all__ = [
    "LANES",
    "TILE_ROWS",
    "gather_entries",
    "gelu",
    "layer_norm",
    "log_probabilities",
    "lstm_cell",
    "softmax_sums",
]
