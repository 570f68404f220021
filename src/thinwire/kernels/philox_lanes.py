"""Philox on 16 counters at once, and what is made of its words, as Numba intrinsics of LLVM vectors.

The same bits as ``thinwire.base.seeds.philox``: lane l of words [4, 16] is the block of counter l of counters [4, 16].
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from thinwire.base.seeds import MULTIPLIER_0, MULTIPLIER_1, PHILOX_ROUNDS, WEYL_0, WEYL_1
from thinwire.kernels.vector_ir import FLOAT, INT32, INT64, LANES

DOUBLE = ir.DoubleType()
INTS, LONGS = ir.VectorType(INT32, LANES), ir.VectorType(INT64, LANES)
FLOATS, DOUBLES = ir.VectorType(FLOAT, LANES), ir.VectorType(DOUBLE, LANES)
FLOAT_ONE_BITS = 0x3F800000


def _constant(kind: Any, value: int | float) -> Any:
    return ir.Constant(kind, [value] * LANES)


def _splat(builder: Any, scalar: Any) -> Any:
    kind = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _constant(INTS, 0))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _load(builder: Any, pointer: Any, *, bytes_aligned: int) -> Any:
    value = builder.load(pointer)
    value.align = bytes_aligned
    return value


def _store(builder: Any, value: Any, pointer: Any, *, bytes_aligned: int) -> None:
    builder.store(value, pointer).align = bytes_aligned


def _rounds(builder: Any, x: list[Any], k0: Any, k1: Any) -> list[Any]:
    """``PHILOX_ROUNDS`` rounds on four vectors; k0 and k1 are 32-bit scalars."""
    shift = _constant(LONGS, 32)
    for _ in range(PHILOX_ROUNDS):
        products = [
            builder.mul(builder.zext(value, LONGS), _constant(LONGS, multiplier))
            for value, multiplier in ((x[0], MULTIPLIER_0), (x[2], MULTIPLIER_1))
        ]
        (low_0, high_0), (low_1, high_1) = (
            (builder.trunc(p, INTS), builder.trunc(builder.lshr(p, shift), INTS)) for p in products
        )
        x = [
            builder.xor(builder.xor(high_1, x[1]), _splat(builder, k0)),
            low_1,
            builder.xor(builder.xor(high_0, x[3]), _splat(builder, k1)),
            low_0,
        ]
        k0, k1 = builder.add(k0, ir.Constant(INT32, WEYL_0)), builder.add(k1, ir.Constant(INT32, WEYL_1))
    return x


@intrinsic
def philox_lanes(typing_context: Any, counters: Any, key_low: Any, key_high: Any, words: Any) -> Any:  # noqa: ARG001
    """``philox_lanes(counters, key_low, key_high, words)``: uint32 [4, 16] each, C-contiguous."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def rows(position: int) -> list[Any]:
            kind, array = signature.args[position], arguments[position]
            starts = [ir.Constant(INT64, row * LANES) for row in range(4)]
            return [_pointer(context, builder, kind, array, start, INTS) for start in starts]

        x = [_load(builder, pointer, bytes_aligned=4) for pointer in rows(0)]
        keys = [builder.trunc(value, INT32) if value.type.width > 32 else value for value in arguments[1:3]]
        for value, pointer in zip(_rounds(builder, x, *keys), rows(3), strict=True):
            _store(builder, value, pointer, bytes_aligned=4)
        return context.get_dummy_value()

    return types.void(counters, types.uint64, types.uint64, words), generate


def _signs(builder: Any, word: Any) -> Any:
    """float32 vector of a word's 16 coordinates of two bits: 0, +1 or -1."""
    shifts = ir.Constant(INTS, [2 * lane for lane in range(LANES)])
    pairs = builder.lshr(_splat(builder, word), shifts)
    active = builder.icmp_unsigned("!=", builder.and_(pairs, _constant(INTS, 1)), _constant(INTS, 0))
    sign_bit = builder.shl(builder.and_(pairs, _constant(INTS, 2)), _constant(INTS, 30))
    ones = builder.bitcast(builder.or_(sign_bit, _constant(INTS, FLOAT_ONE_BITS)), FLOATS)
    return builder.select(active, ones, ir.Constant(FLOATS, [0.0] * LANES))


@intrinsic
def step_by_word(typing_context: Any, theta: Any, out: Any, start: Any, word: Any, step: Any) -> Any:  # noqa: ARG001
    """out[start : start + 16] = theta[start : start + 16] + step z, z the 16 coordinates of ``word``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, target, first, bits, scale = arguments
        source = _pointer(context, builder, signature.args[0], array, first, FLOATS)
        moved = builder.fmul(_splat(builder, scale), _signs(builder, bits))
        value = builder.fadd(_load(builder, source, bytes_aligned=4), moved)
        _store(builder, value, _pointer(context, builder, signature.args[1], target, first, FLOATS), bytes_aligned=4)
        return context.get_dummy_value()

    return types.void(theta, out, types.int64, types.uint32, types.float32), generate


@intrinsic
def add_by_word(typing_context: Any, sums: Any, start: Any, word: Any, weight: Any) -> Any:  # noqa: ARG001
    """sums[start : start + 16] += weight z in FP64, z the 16 coordinates of ``word``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, first, bits, weight = arguments
        pointer = _pointer(context, builder, signature.args[0], array, first, DOUBLES)
        signs = builder.fpext(_signs(builder, bits), DOUBLES)
        product = builder.fmul(_splat(builder, weight), signs)
        _store(builder, builder.fadd(_load(builder, pointer, bytes_aligned=8), product), pointer, bytes_aligned=8)
        return context.get_dummy_value()

    return types.void(sums, types.int64, types.uint32, types.float64), generate
