"""The steps of EGGROLL's network on 16 lanes, one member a lane, as Numba intrinsics; the rank-one term is fused in.

Each takes the mix of the lanes, (array, offset) pairs, then counts (``kernels/vector_ir.py``). A product's rows arrive
divided already; ``a`` are rows of normals and ``u`` one row, sigma s (b.x) of each lane. Buffers hold as many rows as
``ROWS_AT_ONCE`` rounds a count up to, with zeros or finite numbers behind.
"""

from functools import partial
from typing import Any

from llvmlite import ir

from thinwire.kernels import lane_functions as functions
from thinwire.kernels.eggroll.shape import LIMIT, SMALLEST_SCALE
from thinwire.kernels.lane_rows import ROWS_AT_ONCE
from thinwire.kernels.vector_ir import (
    FLOAT,
    INT32,
    LANES,
    VECTOR,
    Lanes,
    buffers_intrinsic,
    row_number,
)


def _groups(lanes: Lanes, num_rows: Any) -> Any:
    b = lanes.builder
    return b.sdiv(b.add(num_rows, row_number(lanes.rows - 1)), row_number(lanes.rows))


def _on_rows(lanes: Lanes, num_rows: Any, step: Any) -> None:
    """``step(first row)`` for every group of rows."""

    def body(group: Any, _: list[Any]) -> list[Any]:
        step(lanes.builder.mul(group, row_number(lanes.rows)))
        return []

    lanes.loop(_groups(lanes, num_rows), [], body)


def _sum(lanes: Lanes, num_rows: Any, add: Any) -> Any:
    """The sum over all rows, in every row; ``add(first row, total)`` adds a group."""

    def body(group: Any, carried: list[Any]) -> list[Any]:
        return [add(lanes.builder.mul(group, row_number(lanes.rows)), carried[0])]

    (total,) = lanes.loop(_groups(lanes, num_rows), [lanes.constant(0.0)], body)
    return lanes.across_rows(total, lanes.builder.fadd)


def _same_row(lanes: Lanes, buffer: Any) -> Any:
    """The buffer's first row, repeated as often as a value has rows."""
    row = buffer.vector_at(row_number(0))
    if lanes.rows == 1:
        return row
    mask = ir.Constant(ir.VectorType(INT32, lanes.size), [k % LANES for k in range(lanes.size)])
    return lanes.builder.shuffle_vector(row, ir.Constant(VECTOR, ir.Undefined), mask)


def _emit_dot(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """out row 0 = scale sum_k b[k] x[k]."""
    normals, x, scale, out = buffers
    total = _sum(lanes, counts[0], lambda r, s: lanes.fma(normals.row(r), x.row(r), s))
    out.store(row_number(0), lanes.builder.fmul(lanes.one_row(total), scale.weight(row_number(0))))


def _emit_norm(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """out = gain x / max(mean |x|, 1/16); gains lie in rows, one a lane."""
    x, gain, out = buffers
    (num_rows,) = counts
    b = lanes.builder

    def add_size(r: Any, total: Any) -> Any:
        value = x.row(r)
        return b.fadd(total, lanes.maximum(value, b.fneg(value)))

    size = lanes.builder.sitofp(num_rows, FLOAT)
    mean = b.fmul(_sum(lanes, num_rows, add_size), _all_lanes(lanes, b.fdiv(ir.Constant(FLOAT, 1.0), size)))
    scale = b.fdiv(lanes.constant(1.0), lanes.maximum(lanes.constant(SMALLEST_SCALE), mean))
    _on_rows(lanes, num_rows, lambda r: out.store(r, b.fmul(gain.row(r), b.fmul(x.row(r), scale))))


def _all_lanes(lanes: Lanes, scalar: Any) -> Any:
    b = lanes.builder
    kind = ir.VectorType(FLOAT, lanes.size)
    first = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(INT32, 0))
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes.integers(0))


def _emit_axpy(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    """x += u b."""
    normals, u, x = buffers
    factor = _same_row(lanes, u)
    _on_rows(lanes, counts[0], lambda r: x.store(r, lanes.fma(normals.row(r), factor, x.row(r))))


def _terms(lanes: Lanes, buffers: list[Any], *, perturbed: bool) -> tuple[Any, list[Any]]:
    """Row -> the clipped product there; takes (product[, a, u]) off the front of ``buffers``, returns the rest."""
    product = buffers[0]
    if not perturbed:
        return lambda r: lanes.clamp(product.row(r), LIMIT), buffers[1:]
    a, u = buffers[1:3]
    factor = _same_row(lanes, u)
    return lambda r: lanes.clamp(lanes.fma(a.row(r), factor, product.row(r)), LIMIT), buffers[3:]


def _emit_linear(lanes: Lanes, buffers: list[Any], counts: list[Any], *, perturbed: bool) -> None:
    """out = clip(p + a u)."""
    term, (out,) = _terms(lanes, buffers, perturbed=perturbed)
    _on_rows(lanes, counts[0], lambda r: out.store(r, term(r)))


def _emit_linear_add(lanes: Lanes, buffers: list[Any], counts: list[Any], *, perturbed: bool) -> None:
    """x += clip(p + a u)."""
    term, (x,) = _terms(lanes, buffers, perturbed=perturbed)
    _on_rows(lanes, counts[0], lambda r: x.store(r, lanes.builder.fadd(x.row(r), term(r))))


def _emit_gate(lanes: Lanes, buffers: list[Any], counts: list[Any], *, perturbed: bool, smooth: bool) -> None:
    """G = (16 f + 127) / 256, f the clipped sum of both clipped products and the bias (or sigmoid); and G h."""
    b = lanes.builder
    from_input, rest = _terms(lanes, buffers, perturbed=perturbed)
    from_hidden, (bias, hidden, gate, gated) = _terms(lanes, rest, perturbed=perturbed)

    def step(r: Any) -> None:
        total = b.fadd(b.fadd(from_input(r), from_hidden(r)), bias.row(r))
        if smooth:
            value = b.fdiv(lanes.constant(1.0), functions.one_plus_exp_minus(lanes, total))
        else:
            value = lanes.fma(lanes.clamp(total, LIMIT), lanes.constant(16 / 256), lanes.constant(127 / 256))
        gate.store(r, value)
        gated.store(r, b.fmul(value, hidden.row(r)))

    _on_rows(lanes, counts[0], step)


def _emit_candidate(lanes: Lanes, buffers: list[Any], counts: list[Any], *, perturbed: bool, smooth: bool) -> None:
    """h += G (c - h), c the clipped sum of both clipped products and the bias (or tanh); x += h."""
    b = lanes.builder
    from_input, rest = _terms(lanes, buffers, perturbed=perturbed)
    from_hidden, (bias, gate, hidden, x) = _terms(lanes, rest, perturbed=perturbed)

    def step(r: Any) -> None:
        total = b.fadd(b.fadd(from_input(r), from_hidden(r)), bias.row(r))
        total = b.fdiv(*functions.tanh_ratio(lanes, total)) if smooth else lanes.clamp(total, LIMIT)
        before = hidden.row(r)
        h = lanes.fma(gate.row(r), b.fsub(total, before), before)
        hidden.store(r, h)
        x.store(r, b.fadd(x.row(r), h))

    _on_rows(lanes, counts[0], step)


def _make(num_buffers: int, emit: Any, **flags: bool) -> Any:
    return buffers_intrinsic(num_buffers, 1, partial(emit, **flags), rows=ROWS_AT_ONCE)


dot = _make(4, _emit_dot)
norm = _make(3, _emit_norm)
axpy = _make(3, _emit_axpy)
linear, noisy_linear = _make(2, _emit_linear, perturbed=False), _make(4, _emit_linear, perturbed=True)
linear_add, noisy_linear_add = (
    _make(2, _emit_linear_add, perturbed=False),
    _make(4, _emit_linear_add, perturbed=True),
)
gate, noisy_gate = (
    _make(6, _emit_gate, perturbed=False, smooth=False),
    _make(10, _emit_gate, perturbed=True, smooth=False),
)
sigmoid_gate, noisy_sigmoid_gate = (
    _make(6, _emit_gate, perturbed=False, smooth=True),
    _make(10, _emit_gate, perturbed=True, smooth=True),
)
candidate, noisy_candidate = (
    _make(6, _emit_candidate, perturbed=False, smooth=False),
    _make(10, _emit_candidate, perturbed=True, smooth=False),
)
tanh_candidate, noisy_tanh_candidate = (
    _make(6, _emit_candidate, perturbed=False, smooth=True),
    _make(10, _emit_candidate, perturbed=True, smooth=True),
)
