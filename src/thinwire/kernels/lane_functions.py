"""Functions of one number on the lanes: exp, tanh, sigmoid, GELU and the logarithm of a softmax sum.

Where a register holds 16 numbers (AVX-512) one instruction looks up each lane's entry of a table of 16, and a short
polynomial between the table's points is enough.  Elsewhere the polynomials are longer, so the last bits differ between
the two kinds of machine.  All are fitted in FP64; the largest error before FP32 rounding in brackets:

- 2^r: with the table |r| <= 1/32, degree 3 [relative 2e-9]; without |r| <= 1/2, degree 5 [1.1e-7].
- erf(u / sqrt 2) / 2, the part of GELU that is not x / 2: with the table sixteen polynomials of degree 4 [absolute
  1.3e-7]; without u P(u^2) / Q(u^2), degrees 5/5, u <= 5.59 [absolute 2e-8].
- log(m), 1/sqrt 2 <= m <= sqrt 2, is 2 artanh((m - 1) / (m + 1)) in FP64, eight terms of its series [4e-14].

``tests/numerics/test_lanes.py`` checks what is left after rounding, over the whole range of FP32.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from thinwire.kernels.vector_ir import HAS_TABLES, LANES, TABLE_SIZE, Lanes


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split())


EXP_LOW = -87.0
SIGMOID_LIMIT, TANH_LIMIT = 30.0, 9.0
"""A cell's denominator, (1 + exp(30))^2 (1 + exp(18)), stays below the FP32 maximum; 1/(1 + exp(30)) is 9e-14."""
LOG2_E = 1.44269504
ROUNDING_SHIFT = 12582912.0
"""1.5 * 2^23: adding it leaves the nearest integer in the last bits of the sum."""
STEPS = TABLE_SIZE if HAS_TABLES else 1
"""Points at which exp2 is known between two integers."""
POWERS = _numbers("""
    1 1.04427373 1.09050775 1.13878858 1.18920708 1.24185777 1.29683959 1.35425556 1.41421354 1.47682619 1.54221082
    1.61049032 1.68179286 1.75625217 1.8340081 1.91520655
""")
"""2^(j / 16)."""
EXP2_TERMS = (
    (0.693147181, 0.240234288, 0.0555059501)
    if HAS_TABLES
    else (0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647273)
)
"""(2^r - 1) / r, from the constant upwards."""
HALF_ERF_END = 5.59
HALF_ERF_P = (0.398942259, 0.0338614524, 0.0046735501, 0.000168294722, 6.29056506e-06, 2.23824191e-08)
HALF_ERF_Q = (1.0, 0.251544416, 0.028639772, 0.00188186657, 7.31681519e-05, 1.18220149e-06)
HALF_ERF_POINTS_A_UNIT = 2.75
"""From u = 14.5 / 2.75 on, erf(u / sqrt 2) / 2 is 1/2 to 7e-8."""
HALF_ERF_TERMS = tuple(
    _numbers(terms)
    for terms in (
        """
    0 0.141935214 0.266470551 0.36234355 0.427102417 0.465481818 0.485438526 0.494543225 0.498187602 0.499467432
    0.499861747 0.49996832 0.499993593 0.499998868 0.499999821 0.5
""",
        """
    0.14506869 0.13578786 0.111358277 0.0800124481 0.0503691733 0.0277806595 0.0134241981 0.00568328425 0.0021080079
    0.000685019419 0.000195023415 4.86428144e-05 1.06290117e-05 2.03471131e-06 3.41225388e-07 0
""",
        """
    0 -0.00897755753 -0.0147248162 -0.0158699937 -0.0133206146 -0.00918364618 -0.00532534719 -0.00263036066
    -0.0011150511 -0.000407661195 -0.00012896469 -3.53863943e-05 -8.43631915e-06 -1.74982586e-06 -3.16086982e-07 0
""",
        """
    -0.00317739788 -0.00258317031 -0.00115554186 0.000325313478 0.00122655858 0.00140421872 0.00111069495
    0.000687869673 0.000349007256 0.00014829087 5.34273131e-05 1.64507383e-05 4.35185211e-06 9.9278634e-07
    1.95852721e-07 0
""",
        """
    0 0.000281475077 0.000398286473 0.00031520988 0.000130202403 -2.97572806e-05 -0.000102334554 -0.000100470847
    -6.71609523e-05 -3.48061076e-05 -1.46647517e-05 -5.14177373e-06 -1.52060863e-06 -3.82575365e-07 -8.23681603e-08
    0
""",
    )
)
"""Coefficients from the constant upwards at each of the 16 points. Odd at 0; the last point stands for 1/2."""
ARTANH_TERMS = 8


class Power(NamedTuple):
    """2^y as scale (1 + part), so that 2^y - 1 near 0 keeps its digits."""

    scale: Any
    part: Any


def power_of_two(lanes: Lanes, x: Any, factor: float) -> Power:
    """2^(factor x), |factor x| <= 127.

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
    """Bits of 2^(j / 16), less what the shift of j itself adds to them."""
    return [bits - (j << 23) // TABLE_SIZE for j, bits in enumerate(_bits_of(POWERS))]


def _bits_of(numbers: Sequence[float]) -> list[int]:
    """As FP32, read as integers."""
    return [int(bits) for bits in np.array(numbers, np.float32).view(np.int32)]


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
    place = lanes.minimum(lanes.constant(TABLE_SIZE - 1.0), b.fmul(u, lanes.constant(HALF_ERF_POINTS_A_UNIT)))
    shift = lanes.constant(ROUNDING_SHIFT)
    shifted = b.fadd(place, shift)
    between = b.fsub(place, b.fsub(shifted, shift))
    point = b.bitcast(shifted, lanes.kind_int)
    *others, total = (b.bitcast(lanes.lookup(_bits_of(terms), point), lanes.kind) for terms in HALF_ERF_TERMS)
    for coefficient in reversed(others):
        total = lanes.fma(total, between, coefficient)
    return total


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


__all__ = ["EXP_LOW", "exp_in_range", "gelu", "log_of_sum", "one_plus_exp_minus", "tanh_ratio"]
