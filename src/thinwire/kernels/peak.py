"""What could a machine do at most?  A loop of independent vector multiply-adds, and a large matrix product, FP32."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, no_type_check

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from thinwire.kernels.lane_layout import aligned_floats
from thinwire.kernels.vector_ir import INT64, LANES, TILE_ROWS, VECTOR, Lanes

# Enough independent sums to hide the latency of two units, few enough for the registers (32 of AVX-512, 16 of AVX2).
NUM_SUMS = 12 if TILE_ROWS == 16 else 5
UNROLLED = 8
PEAK_ROUNDS = 4_000_000
MATRIX_SIZE = 1024


@intrinsic
def multiply_adds(typing_context: Any, rows: Any, num_rounds: Any) -> Any:  # noqa: ARG001
    """sums <- sums * x + y, ``UNROLLED`` times a round; x and y are loaded, so that nothing can be computed ahead."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder)
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        first = builder.bitcast(array.data, VECTOR.as_pointer())
        places = [builder.gep(first, [ir.Constant(INT64, row)]) for row in range(2 + NUM_SUMS)]
        x, y, *initial = (builder.load(place) for place in places)

        def body(_: Any, sums: list[Any]) -> list[Any]:
            for _ in range(UNROLLED):
                sums = [lanes.fma(total, x, y) for total in sums]
            return sums

        for place, total in zip(places[2:], lanes.loop(arguments[1], initial, body), strict=True):
            builder.store(total, place)
        return context.get_dummy_value()

    return types.void(rows, num_rounds), generate


@njit(nogil=True)
@no_type_check
def _peak_loop(rows, num_rounds):
    multiply_adds(rows, num_rounds)


def run_peak_loop(*, rounds: int | None = None) -> float:
    """Operations done; ``PEAK_ROUNDS`` where no number of rounds is given."""
    rounds = PEAK_ROUNDS if rounds is None else rounds
    rows = aligned_floats((2 + NUM_SUMS) * LANES)
    rows[:] = 0.5
    _peak_loop(rows, rounds)
    if not np.isfinite(rows).all():
        raise RuntimeError("the peak loop overflowed")
    return 2.0 * LANES * NUM_SUMS * UNROLLED * rounds


def run_matrix_product(*, shape: tuple[int, int, int] | None = None) -> float:
    """Operations done: one FP32 product [m, k] x [k, n] on one thread; square of ``MATRIX_SIZE`` where no shape is."""
    m, k, n = shape or (MATRIX_SIZE,) * 3
    torch.set_num_threads(1)
    torch.matmul(torch.ones(m, k), torch.ones(k, n))
    return 2.0 * m * k * n


def run_peak_loops(*, threads: int) -> float:
    """Operations done by the loop in so many threads at once."""
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: run_peak_loop(), range(threads)))


def run_large_product(*, device: torch.device, threads: int) -> float:
    """Operations done: one square FP32 product (on a GPU without TF32, eight times as wide), finished when returned."""
    size = MATRIX_SIZE if device.type == "cpu" else 8 * MATRIX_SIZE
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    product = torch.matmul(torch.ones(size, size, device=device), torch.ones(size, size, device=device))
    torch.set_num_threads(before)
    assert float(product[0, 0]) == size  # reading it waits for the device
    return 2.0 * size**3
