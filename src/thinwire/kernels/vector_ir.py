"""How does pure Python reach the vector units?  LLVM vector instructions emitted through Numba intrinsics.

Every function here works on rows of 16 lanes (one window a lane) in float32 buffers, addressed by array and offset.
LLVM lowers a <16 x float> to one AVX-512 register, two AVX2 ones or four NEON ones, so one source serves them all.
Legend: R rows of a tile, K summed dimension, row r of a buffer occupies ``buffer[16 r : 16 r + 16]``.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen, config
from numba.extending import intrinsic

LANES = 16
FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR, VECTOR_INT = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)

TABLE_SIZE = 16


def _registers_hold_16() -> bool:
    """Whether Numba compiles for AVX-512; NUMBA_CPU_FEATURES and NUMBA_ENABLE_AVX keep it from what is there."""
    features = codegen.get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return "+avx512f" in features.split(",")


HAS_TABLES = _registers_hold_16()
"""Whether one instruction looks up 16 lanes in a table of ``TABLE_SIZE`` numbers."""
TILE_ROWS = 16 if HAS_TABLES else 4
"""R, the rows of a GEMM tile kept in registers: 16 of AVX-512's 32, else 4 (each two of AVX2 or four of NEON)."""


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
        if HAS_TABLES and count == 2:
            return self._spread_pair(pointer)
        few = ir.VectorType(FLOAT, count)
        load = self.builder.load(self.builder.bitcast(pointer, few.as_pointer()))
        load.align = 4
        mask = ir.Constant(VECTOR_INT, [lane % count for lane in range(LANES)])
        return self.builder.shuffle_vector(load, ir.Constant(few, ir.Undefined), mask)

    def _spread_pair(self, pointer: Any) -> Any:
        """Two numbers repeated over the lanes, as one integer of 64 bits.

        The compiler's own choice occupies a pipe that multiply-adds need (a third slower on Zen 4), and it turns this
        instruction into that one: hence assembly.
        """
        llvm.initialize_native_asmparser()
        kind = ir.FunctionType(VECTOR, [pointer.type])
        return self.builder.asm(kind, "vpbroadcastq ($1), $0", "=v,r,~{memory}", [pointer], True)

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

    def lookup(self, table: Sequence[int], index: Any) -> Any:
        """int32 ``table[index % 16]`` of every lane (``HAS_TABLES``)."""
        b, one = self.builder, ir.Constant(VECTOR_INT, list(table))
        kind = ir.FunctionType(VECTOR_INT, [VECTOR_INT, VECTOR_INT])
        permute = cgutils.get_or_insert_function(b.module, kind, "llvm.x86.avx512.permvar.si.512")
        registers = [list(range(first, first + LANES)) for first in range(0, self.size, LANES)]
        parts = [b.call(permute, [one, self.shuffled(index, index, lanes)]) for lanes in registers]
        return self.joined(parts)

    def shuffled(self, a: Any, b: Any, mask: list[int]) -> Any:
        """Elements of a, followed by those of b, in the order of ``mask``."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, len(mask)), mask))

    def joined(self, parts: list[Any]) -> Any:
        """One vector of several, a power of two, of equal length."""
        while len(parts) > 1:
            mask = list(range(2 * parts[0].type.count))
            parts = [self.shuffled(low, high, mask) for low, high in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

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

    def span(
        self, first: Any, last: Any, initial: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """As ``loop``, ``for i in range(first, last)``, which may be empty."""
        b = self.builder
        before, head = b.block, b.append_basic_block("head")
        block, after = b.append_basic_block("body"), b.append_basic_block("after")
        b.branch(head)
        b.position_at_end(head)
        index, carried = b.phi(INT64), [b.phi(value.type) for value in initial]
        b.cbranch(b.icmp_signed("<", index, last), block, after)
        b.position_at_end(block)
        results = [b.add(index, ir.Constant(INT64, 1)), *body(index, list(carried))]
        for phi, start, result in zip((index, *carried), (first, *initial), results, strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(result, b.block)
        b.branch(head)
        b.position_at_end(after)
        return carried

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


def buffers_intrinsic(
    num_buffers: int, num_counts: int, emit: Callable[..., None], *, rows: int = 1, apart: bool = False
) -> Any:
    """An intrinsic ``f(mix, buffer, offset, ..., count, ...)`` whose body ``emit(lanes, buffers, counts)`` writes.

    ``mix`` is a tuple as long as the number of directions that share the lanes, so the compiler knows it.  A body that
    stands ``apart`` is a machine function of its own: inlined, the constants of many bodies would be kept through the
    caller's loop in registers that it does not have.  ``emit`` is then a named function, known by its module and name.
    """

    def write(builder: Any, pointers: Sequence[Any], numbers: Sequence[Any], *, directions: int) -> None:
        lanes = Lanes(builder, rows=rows)
        buffers = [
            Buffer(lanes, pointer, offset=offset, directions=directions)
            for pointer, offset in zip(pointers, numbers[:num_buffers], strict=True)
        ]
        emit(lanes, buffers, list(numbers[num_buffers:]))

    def written_apart(module: Any, pointers: Sequence[Any], *, directions: int) -> Any:
        kinds = [*(pointer.type for pointer in pointers), *[INT64] * (num_buffers + num_counts)]
        buffers = "_".join(str(kind.pointee) for kind in kinds[:num_buffers])
        name = f"{emit.__module__}.{emit.__qualname__}_{directions}_{buffers}"
        if name in module.globals:
            return module.globals[name]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block("entry"))
        write(inside, function.args[:num_buffers], function.args[num_buffers:], directions=directions)
        inside.ret_void()
        return function

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        directions, last = len(signature.args[0]), 2 * num_buffers + 1
        pointers = [
            context.make_array(signature.args[index])(context, builder, arguments[index]).data
            for index in range(1, last, 2)
        ]
        numbers = [*arguments[2:last:2], *arguments[last:]]
        if apart:
            function = written_apart(builder.module, pointers, directions=directions)
            builder.call(function, [*pointers, *numbers])
        else:
            write(builder, pointers, numbers, directions=directions)
        return context.get_dummy_value()

    names = [f"a{i}" for i in range(2 * num_buffers + num_counts + 1)]
    # Numba reads an intrinsic's arity from its signature, so the typing function is written out for this arity.
    source = f"def typing(typingctx, {', '.join(names)}):\n    return types.void({', '.join(names)}), generate\n"
    scope: dict[str, Any] = {"types": types, "generate": generate}
    exec(source, scope)
    return intrinsic(scope["typing"])
