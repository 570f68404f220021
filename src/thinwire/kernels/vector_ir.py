"""How does pure Python reach the vector units?  LLVM vector instructions emitted through Numba intrinsics.

Every function here works on rows of 16 lanes (one window a lane) in float32 buffers, addressed by array and offset.
LLVM lowers a <16 x float> to one AVX-512 register, two AVX2 ones or four NEON ones, so one source serves them all.
Legend: R rows of a tile, K summed dimension, row r of a buffer occupies ``buffer[16 r : 16 r + 16]``.

Approximations were fitted by Lawson-weighted least squares in FP64 (largest relative error in brackets): 2^r on
|r| <= 1/2 by a polynomial of degree 5 [9.1e-8]; tanh on |x| <= 9 by x P(x^2)/Q(x^2), degrees 4/4 [2.1e-8]; erf on
|x| <= 3.95 likewise, degrees 5/5 [2.1e-8].  ``tests/numerics/test_lanes.py`` checks what is left after FP32 rounding:
over the whole range, within 4e-7 relative for tanh and erf, 2.5e-7 + 1.4e-8 |x| for exp(x) and sigmoid(x) (log2(e) is
rounded).
"""

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR, VECTOR_INT = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)

EXP2_COEFFICIENTS = (1.0, 0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647273)
EXP_LOW, EXP_HIGH = -87.0, 88.0
LOG2_E = 1.44269504
ROUNDING_SHIFT = 12582912.0
TANH_LIMIT = 9.0
TANH_P = (0.999999979, 0.13381039, 0.00349560325, 2.06093005e-05, 1.33549081e-08)
TANH_Q = (1.0, 0.467143546, 0.0258770417, 0.000328565821, 7.77667094e-07)
ERF_LIMIT = 3.95
ERF_P = (1.12837914, 0.191549308, 0.0528751833, 0.00380807487, 0.000284678464, 2.02582539e-06)
ERF_Q = (1.0, 0.503088832, 0.114559088, 0.0150549326, 0.00117069043, 3.78304477e-05)
SIGMOID_LIMIT = 30.0  # three factors of 1 + exp(30) stay below the FP32 maximum; 1/(1 + exp(30)) = 9e-14


def tile_rows() -> int:
    """R, the rows of a GEMM tile kept in registers: 16 of AVX-512's 32, else 4 (each two of AVX2 or four of NEON)."""
    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 4


class Lanes:
    """Vector arithmetic on an llvmlite builder; ``a * b + c`` is one fused instruction.

    A value holds ``rows`` neighbouring rows of 16 lanes: of several, the processor works on one while another waits.
    """

    def __init__(self, builder: Any, *, rows: int = 1) -> None:
        self.builder, self.rows = builder, rows
        self.size = rows * LANES
        self.kind, self.kind_int = ir.VectorType(FLOAT, self.size), ir.VectorType(INT32, self.size)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.kind, [value] * self.size)

    def integers(self, value: int) -> Any:
        return ir.Constant(self.kind_int, [value] * self.size)

    def splat(self, scalar: Any) -> Any:
        first = self.builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(INT32, 0))
        mask = ir.Constant(VECTOR_INT, [0] * LANES)
        return self.builder.shuffle_vector(first, ir.Constant(VECTOR, ir.Undefined), mask)

    def spread(self, pointer: Any, count: int) -> Any:
        """``count`` numbers repeated over the lanes: one a direction, where ``count`` directions share the lanes."""
        if count == 1:
            return self.splat(self.builder.load(pointer))
        few = ir.VectorType(FLOAT, count)
        load = self.builder.load(self.builder.bitcast(pointer, few.as_pointer()))
        load.align = 4
        mask = ir.Constant(VECTOR_INT, [lane % count for lane in range(LANES)])
        return self.builder.shuffle_vector(load, ir.Constant(few, ir.Undefined), mask)

    def transpose(self, rows: list[Any]) -> list[Any]:
        """16 vectors of 16: element j of vector i becomes element i of vector j."""
        for step in (8, 4, 2, 1):
            low = [k if not k & step else LANES + k - step for k in range(LANES)]
            high = [k + step if not k & step else LANES + k for k in range(LANES)]
            for i in range(LANES):
                if not i & step:
                    pair = rows[i], rows[i + step]
                    rows[i] = self.builder.shuffle_vector(*pair, ir.Constant(VECTOR_INT, low))
                    rows[i + step] = self.builder.shuffle_vector(*pair, ir.Constant(VECTOR_INT, high))
        return rows

    def _call(self, name: str, *arguments: Any) -> Any:
        kind = ir.FunctionType(self.kind, [self.kind] * len(arguments))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.v{self.size}f32")
        return self.builder.call(function, arguments)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self._call("llvm.fma", a, b, c)

    def rint(self, a: Any) -> Any:
        return self._call("llvm.rint", a)

    def sqrt(self, a: Any) -> Any:
        return self._call("llvm.sqrt", a)

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller one; b where either is NaN. Limits therefore stand first, so that a NaN is never clamped away."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger one; b where either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def clamp(self, a: Any, limit: float) -> Any:
        """a within +-limit; NaN stays NaN."""
        return self.minimum(self.constant(limit), self.maximum(self.constant(-limit), a))

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Horner's scheme, coefficients from the constant upwards."""
        total = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.constant(coefficient))
        return total

    def exp(self, x: Any) -> Any:
        """exp(x) for x in [-87, 88], clamped outside, NaN for NaN; callers with a narrower range clamp themselves."""
        return self.exp_in_range(self.minimum(self.constant(EXP_HIGH), self.maximum(self.constant(EXP_LOW), x)))

    def exp_in_range(self, x: Any) -> Any:
        """exp(x) where x is known to lie in [-87, 88].

        exp(x) = 2^n 2^r, n + r = x log2(e): adding 1.5 * 2^23 leaves n in the last bits of the sum, from where a shift
        moves it into the exponent field.
        """
        b = self.builder
        log2_e = self.constant(LOG2_E)
        shifted = self.fma(x, log2_e, self.constant(ROUNDING_SHIFT))
        n = b.fsub(shifted, self.constant(ROUNDING_SHIFT))
        r = self.fma(x, log2_e, b.fneg(n))
        exponent = b.shl(b.bitcast(shifted, self.kind_int), self.integers(23))
        power = b.bitcast(self.polynomial(r, EXP2_COEFFICIENTS), self.kind_int)
        return b.bitcast(b.add(power, exponent), self.kind)

    def ratio(self, x: Any, limit: float, p: Sequence[float], q: Sequence[float]) -> tuple[Any, Any]:
        """Numerator and denominator of x P(x^2) / Q(x^2), so that a caller can share the division."""
        x = self.clamp(x, limit)
        square = self.builder.fmul(x, x)
        return self.builder.fmul(x, self.polynomial(square, p)), self.polynomial(square, q)

    def one_plus_exp_minus(self, x: Any) -> Any:
        """1 + exp(-x), the reciprocal of sigmoid(x)."""
        x = self.clamp(x, SIGMOID_LIMIT)
        return self.builder.fadd(self.constant(1.0), self.exp_in_range(self.builder.fneg(x)))

    def across_rows(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """In every row, the combination of all rows of ``value``."""
        step = self.rows // 2
        while step:
            mask = ir.Constant(self.kind_int, [(k + step * LANES) % self.size for k in range(self.size)])
            value = combine(value, self.builder.shuffle_vector(value, ir.Constant(self.kind, ir.Undefined), mask))
            step //= 2
        return value

    def one_row(self, value: Any) -> Any:
        """The first row of ``value``."""
        if self.rows == 1:
            return value
        mask = ir.Constant(VECTOR_INT, list(range(LANES)))
        return self.builder.shuffle_vector(value, ir.Constant(self.kind, ir.Undefined), mask)

    def loop(self, count: Any, initial: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """``for i in range(count)`` (count >= 1) with values carried in registers; returns their last values."""
        b = self.builder
        before, block, after = b.block, b.append_basic_block("body"), b.append_basic_block("after")
        b.branch(block)
        b.position_at_end(block)
        index = b.phi(INT64)
        index.add_incoming(ir.Constant(INT64, 0), before)
        carried = []
        for value in initial:
            phi = b.phi(value.type)
            phi.add_incoming(value, before)
            carried.append(phi)
        results = body(index, carried)
        following = b.add(index, ir.Constant(INT64, 1))
        index.add_incoming(following, b.block)
        for phi, result in zip(carried, results, strict=True):
            phi.add_incoming(result, b.block)
        b.cbranch(b.icmp_signed("<", following, count), block, after)
        b.position_at_end(after)
        return results


class Buffer:
    """A float32 array at an offset, inside an intrinsic: rows of 16 lanes, or weights of the lanes' directions."""

    def __init__(self, lanes: Lanes, pointer: Any, *, offset: Any, directions: int) -> None:
        self.lanes, self.builder, self.directions = lanes, lanes.builder, directions
        self._start, self._offset = pointer, offset

    def _row(self, row: Any, kind: Any) -> Any:
        index = self.builder.add(self._offset, self.builder.mul(row, ir.Constant(INT64, LANES)))
        return self.builder.bitcast(self.builder.gep(self._start, [index]), kind.as_pointer())

    def row(self, row: Any) -> Any:
        """The vector of row ``row``, or of as many rows from it on as the lanes' values hold."""
        load = self.builder.load(self._row(row, self.lanes.kind))
        load.align = 4
        return load

    def pointer(self, index: Any, kind: Any) -> Any:
        """Where the ``kind`` that begins with number ``index`` lies."""
        position = self.builder.gep(self._start, [self.builder.add(self._offset, index)])
        return self.builder.bitcast(position, kind.as_pointer())

    def vector_at(self, index: Any, kind: Any = VECTOR) -> Any:
        """Consecutive numbers from ``index`` on, 16 unless ``kind`` says otherwise."""
        load = self.builder.load(self.pointer(index, kind))
        load.align = 4
        return load

    def store_at(self, index: Any, value: Any) -> None:
        """A vector's numbers from ``index`` on."""
        store = self.builder.store(value, self.pointer(index, value.type))
        store.align = 4

    def store(self, row: Any, value: Any) -> None:
        store = self.builder.store(value, self._row(row, value.type))
        store.align = 4

    def weight(self, index: Any) -> Any:
        """Weight ``index`` of each direction, in that direction's lanes."""
        position = self.builder.add(self._offset, index)
        if self.directions > 1:
            position = self.builder.mul(position, ir.Constant(INT64, self.directions))
        return self.lanes.spread(self.builder.gep(self._start, [position]), self.directions)


def row_number(value: int) -> Any:
    return ir.Constant(INT64, value)


def buffers_intrinsic(num_buffers: int, num_counts: int, emit: Callable[..., None], *, rows: int = 1) -> Any:
    """An intrinsic ``f(mix, buffer, offset, ..., count, ...)`` whose body ``emit(lanes, buffers, counts)`` writes.

    ``mix`` is a tuple as long as the number of directions that share the lanes, so the compiler knows it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, directions = Lanes(builder, rows=rows), len(signature.args[0])
        buffers = []
        for index in range(1, 2 * num_buffers, 2):
            array = context.make_array(signature.args[index])(context, builder, arguments[index])
            buffers.append(Buffer(lanes, array.data, offset=arguments[index + 1], directions=directions))
        emit(lanes, buffers, list(arguments[2 * num_buffers + 1 :]))
        return context.get_dummy_value()

    names = [f"a{i}" for i in range(2 * num_buffers + num_counts + 1)]
    # Numba reads an intrinsic's arity from its signature, so the typing function is written out for this arity.
    source = f"def typing(typingctx, {', '.join(names)}):\n    return types.void({', '.join(names)}), generate\n"
    scope: dict[str, Any] = {"types": types, "generate": generate}
    exec(source, scope)
    return intrinsic(scope["typing"])
