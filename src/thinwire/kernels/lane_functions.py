"""Functions of one number on the lanes: exp, tanh, sigmoid, GELU and the logarithm of a softmax sum.

Where a register holds 16 numbers (AVX-512) one instruction looks up each lane's entry of a table of 16, and a short
polynomial between the table's points is enough.  Elsewhere the polynomials are longer, so the last bits differ between
the two kinds of machine.  All are fitted in FP64; the largest error before FP32 rounding in brackets:

- 2^r: with the table |r| <= 1/32, degree 3 [relative 2e-9]; without |r| <= 1/2, degree 5 [9e-8].
- erf(u / sqrt 2) / 2, the part of GELU that is not x / 2: with the table sixteen polynomials of degree 4 [1.3e-7];
  without u P(u^2) / Q(u^2), degrees 5/5, u <= 5.59 [2e-8].
- log(m), 1/sqrt 2 <= m <= sqrt 2, is 2 artanh((m - 1) / (m + 1)) in FP64, eight terms of its series [4e-14].

``tests/numerics/test_lanes.py`` checks what is left after rounding, over the whole range of FP32.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from thinwire.kernels.vector_ir import HAS_TABLES, LANES, TABLE_SIZE, Lanes

EXP_LOW, EXP_HIGH = -87.0, 88.0
SIGMOID_LIMIT = 30.0  # three factors of 1 + exp(30) stay below the FP32 maximum; 1/(1 + exp(30)) = 9e-14
TANH_LIMIT = 9.0
LOG2_E = 1.44269504
ROUNDING_SHIFT = 12582912.0
"""1.5 * 2^23: adding it leaves the nearest integer in the last bits of the sum."""
STEPS = TABLE_SIZE if HAS_TABLES else 1
"""Points at which exp2 is known between two integers."""
EXP2_TERMS = (
    (0.693147181, 0.240234288, 0.0555059501)
    if HAS_TABLES
    else (0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647273)
)
"""(2^r - 1) / r, from the constant upwards."""
HALF_ERF_END = 5.59
HALF_ERF_P = (0.398942259, 0.0338614524, 0.0046735501, 0.000168294722, 6.29056506e-06, 2.23824191e-08)
HALF_ERF_Q = (1.0, 0.251544416, 0.028639772, 0.00188186657, 7.31681519e-05, 1.18220149e-06)
HALF_ERF_STEP = 2.75
"""Points a unit of u; from 14.5 / 2.75 on, erf(u / sqrt 2) / 2 is 1/2 to 7e-8."""
HALF_ERF_DEGREE = 4
ARTANH_TERMS = 8


class Power(NamedTuple):
    """2^y as scale (1 + part), so that 2^y - 1 near 0 keeps its digits."""

    scale: Any
    part: Any


def power_of_two(lanes: Lanes, x: Any, factor: float) -> Power:
    """2^(factor x), |factor x| < 126.

    factor x = n + j / STEPS + r: adding 1.5 * 2^23 / STEPS leaves STEPS n + j in the last bits of the sum, from where
    j chooses 2^(j / STEPS) of the table and a shift moves n into the exponent field.
    """
    b = lanes.builder
    by, shift = lanes.constant(factor), lanes.constant(ROUNDING_SHIFT / STEPS)
    shifted = lanes.fma(x, by, shift)
    r = lanes.fma(x, by, b.fneg(b.fsub(shifted, shift)))
    bits = b.bitcast(shifted, lanes.kind_int)
    moved = b.shl(bits, lanes.integers(23 - int(math.log2(STEPS))))
    base = lanes.lookup(_power_table(), bits) if HAS_TABLES else lanes.integers(0x3F800000)
    return Power(b.bitcast(b.add(base, moved), lanes.kind), b.fmul(r, lanes.polynomial(r, EXP2_TERMS)))


def _power_table() -> list[int]:
    """Bits of 2^(j / STEPS), less what the shift of j itself adds to them."""
    powers = np.exp2(np.arange(STEPS) / STEPS).astype(np.float32).view(np.int32)
    return [int(bits) - (j << 23) // STEPS for j, bits in enumerate(powers)]


def exp(lanes: Lanes, x: Any) -> Any:
    """exp(x) for x in [-87, 88], clamped outside, NaN for NaN; callers with a narrower range clamp themselves."""
    return exp_in_range(lanes, lanes.minimum(lanes.constant(EXP_HIGH), lanes.maximum(lanes.constant(EXP_LOW), x)))


def exp_in_range(lanes: Lanes, x: Any) -> Any:
    """exp(x) where x is known to lie in [-87, 88]."""
    power = power_of_two(lanes, x, LOG2_E)
    return lanes.fma(power.scale, power.part, power.scale)


def one_plus_exp_minus(lanes: Lanes, x: Any) -> Any:
    """1 + exp(-x), the reciprocal of sigmoid(x)."""
    power = power_of_two(lanes, lanes.clamp(x, SIGMOID_LIMIT), -LOG2_E)
    b = lanes.builder
    return b.fadd(lanes.constant(1.0), lanes.fma(power.scale, power.part, power.scale))


def tanh_ratio(lanes: Lanes, x: Any) -> tuple[Any, Any]:
    """Numerator and denominator of tanh(x) = (1 - e) / (1 + e), e = exp(-2 x); a caller can share the division."""
    b = lanes.builder
    power = power_of_two(lanes, lanes.clamp(x, TANH_LIMIT), -2.0 * LOG2_E)
    less_one = lanes.fma(power.scale, power.part, b.fsub(power.scale, lanes.constant(1.0)))
    return b.fneg(less_one), b.fadd(less_one, lanes.constant(2.0))


def gelu(lanes: Lanes, x: Any) -> Any:
    """x (1 / 2 + erf(x / sqrt 2) / 2), the exact GELU."""
    b = lanes.builder
    sign = b.and_(b.bitcast(x, lanes.kind_int), lanes.integers(-(2**31)))
    size = b.bitcast(b.xor(b.bitcast(x, lanes.kind_int), sign), lanes.kind)
    half_erf = _half_erf_of_table(lanes, size) if HAS_TABLES else _half_erf_of_ratio(lanes, size)
    signed = b.bitcast(b.or_(b.bitcast(half_erf, lanes.kind_int), sign), lanes.kind)
    return b.fmul(x, b.fadd(signed, lanes.constant(0.5)))


def _half_erf_of_table(lanes: Lanes, u: Any) -> Any:
    """erf(u / sqrt 2) / 2 for u >= 0, by the polynomial of the nearest point."""
    b = lanes.builder
    place = lanes.minimum(lanes.constant(TABLE_SIZE - 1.0), b.fmul(u, lanes.constant(HALF_ERF_STEP)))
    shift = lanes.constant(ROUNDING_SHIFT)
    shifted = b.fadd(place, shift)
    between = b.fsub(place, b.fsub(shifted, shift))
    point = b.bitcast(shifted, lanes.kind_int)
    *others, total = (b.bitcast(lanes.lookup(entries, point), lanes.kind) for entries in _half_erf_tables())
    for coefficient in reversed(others):
        total = lanes.fma(total, between, coefficient)
    return total


@functools.cache
def _half_erf_tables() -> list[list[int]]:
    """Bits of each coefficient, from the constant upwards, at the 16 points; the last point stands for 1/2."""
    chebyshev = np.polynomial.chebyshev
    nodes = np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    terms = np.zeros((TABLE_SIZE, HALF_ERF_DEGREE + 1))
    for point in range(TABLE_SIZE - 1):
        values = [math.erf(u / math.sqrt(2.0)) / 2 for u in (point + nodes / 2) / HALF_ERF_STEP]
        fitted = chebyshev.cheb2poly(chebyshev.chebfit(nodes, values, HALF_ERF_DEGREE))
        terms[point] = fitted * 2.0 ** np.arange(HALF_ERF_DEGREE + 1)
    terms[-1, 0] = 0.5
    return [[int(bits) for bits in column] for column in terms.T.astype(np.float32).copy().view(np.int32)]


def _half_erf_of_ratio(lanes: Lanes, u: Any) -> Any:
    """erf(u / sqrt 2) / 2 for u >= 0."""
    b = lanes.builder
    u = lanes.minimum(lanes.constant(HALF_ERF_END), u)
    square = b.fmul(u, u)
    top = b.fmul(u, lanes.polynomial(square, HALF_ERF_P))
    return b.fdiv(top, lanes.polynomial(square, HALF_ERF_Q))


def log_of_sum(lanes: Lanes, total: Any) -> Any:
    """log of FP32 numbers >= 2^-126, as FP64 [16]; NaN for NaN and infinity."""
    b = lanes.builder
    double, half = ir.VectorType(ir.DoubleType(), LANES), 0x3F3504F3  # bits of sqrt(1/2)

    def constant(value: float) -> Any:
        return ir.Constant(double, [value] * LANES)

    bits = b.bitcast(total, lanes.kind_int)
    exponent = b.ashr(b.sub(bits, lanes.integers(half)), lanes.integers(23))
    mantissa = b.bitcast(b.sub(bits, b.shl(exponent, lanes.integers(23))), lanes.kind)
    m = b.fpext(mantissa, double)
    z = b.fdiv(b.fsub(m, constant(1.0)), b.fadd(m, constant(1.0)))
    square = b.fmul(z, z)
    series = constant(2.0 / (2 * ARTANH_TERMS - 1))
    for k in reversed(range(ARTANH_TERMS - 1)):
        series = b.fadd(b.fmul(series, square), constant(2.0 / (2 * k + 1)))
    log = b.fadd(b.fmul(b.sitofp(exponent, double), constant(math.log(2.0))), b.fmul(z, series))
    return b.fadd(log, b.fpext(b.fsub(total, total), double))


__all__ = ["EXP_HIGH", "EXP_LOW", "exp", "exp_in_range", "gelu", "log_of_sum", "one_plus_exp_minus", "tanh_ratio"]
