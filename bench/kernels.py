"""How fast does ``expert_losses`` run here, against PyTorch eager and against the machine's multiply-add peak?

``python bench/kernels.py [--json] [--repeats N]``.  First every correctness case is compared with FP64; a kernel that
fails one gets no speed printed (exit status 1).  Then all contestants of a case are timed in turn, round after round,
so that a busy moment hits them alike; medians and spreads of the rounds are given.  Operations are counted as in
Eq. (21).

The speed is of two cores, and so may the eager baseline's be: the reference implementation in FP32, with a leading axis
of perturbed copies, at the better of one and two threads.  The fraction of the peak is of one core: the peak is the
larger of a loop of independent vector multiply-adds and a large matrix product, both on one core in this process.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import BENCH_CASES, CASES, LossCase, inputs_for
from thinwire.kernels.lane_layout import aligned_floats
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.kernels.vector_ir import INT64, LANES, VECTOR, Lanes, tile_rows

ADDRESS = ProbeAddress(stream_key(0, "bench"), 1)
RELATIVE_TOLERANCE = 2e-6
# Enough independent sums to hide the latency of two units, few enough for the registers (32 of AVX-512, 16 of AVX2).
NUM_SUMS = 12 if tile_rows() == 16 else 5
UNROLLED = 8
PEAK_ROUNDS = 4_000_000
MATRIX_SIZE = 1024


class Timed(NamedTuple):
    """Operations or byte-forwards per second: the median of the rounds, and (largest - smallest) / median."""

    median: float
    spread: float


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
def _peak_loop(rows, num_rounds):  # type: ignore[no-untyped-def]
    multiply_adds(rows, num_rounds)


def run_peak_loop() -> float:
    """Operations done."""
    rows = aligned_floats((2 + NUM_SUMS) * LANES)
    rows[:] = 0.5
    _peak_loop(rows, PEAK_ROUNDS)
    if not np.isfinite(rows).all():
        raise RuntimeError("the peak loop overflowed")
    return 2.0 * LANES * NUM_SUMS * UNROLLED * PEAK_ROUNDS


def run_matrix_product() -> float:
    """Operations done: one FP32 product on one thread."""
    matrix = torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    torch.set_num_threads(1)
    torch.matmul(matrix, matrix)
    return 2.0 * MATRIX_SIZE**3


def losses(case: LossCase, *, implementation: str, dtype: torch.dtype, threads: int) -> torch.Tensor:
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    return expert_losses(
        theta.to(dtype),
        shape=case.shape,
        decoder=decoder.to(dtype),
        windows=windows,
        address=ADDRESS,
        directions=range(case.num_directions),
        epsilon=case.epsilon,
        implementation=implementation,
        threads=threads,
    )


def failures(implementation: str) -> list[str]:
    """What is wrong with an implementation on the correctness cases; empty where nothing is."""
    wrong = []
    for case in CASES:
        exact = losses(case, implementation="reference", dtype=torch.float64, threads=1)
        actual = losses(case, implementation=implementation, dtype=torch.float32, threads=1)
        error = float(((actual - exact) / exact).abs().max())
        if not error <= RELATIVE_TOLERANCE:
            wrong.append(f"{case.name}: relative error {error:.1e}, allowed {RELATIVE_TOLERANCE:.0e}")
        if not torch.equal(actual, losses(case, implementation=implementation, dtype=torch.float32, threads=2)):
            wrong.append(f"{case.name}: two threads give other bits than one")
    return wrong


def disagreement(case: LossCase, implementation: str) -> list[str]:
    """As ``failures``, on the timed shape itself, against eager FP32 (two directions, to be quick)."""
    short = case._replace(num_directions=2)
    eager = losses(short, implementation="reference", dtype=torch.float32, threads=1)
    actual = losses(short, implementation=implementation, dtype=torch.float32, threads=1)
    error = float(((actual - eager) / eager).abs().max())
    return [] if error <= RELATIVE_TOLERANCE else [f"{case.name}: {error:.1e} away from the eager reference"]


def timed_in_turn(contestants: dict[str, Callable[[], float]], *, repeats: int) -> dict[str, Timed]:
    """Units of work per second of each. Everything was compiled and touched once by the correctness checks."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            started = time.perf_counter()
            work = run()
            rates[name].append(work / (time.perf_counter() - started))
    return {
        name: Timed(statistics.median(values), (max(values) - min(values)) / statistics.median(values))
        for name, values in rates.items()
    }


def measure(case: LossCase, *, implementation: str, repeats: int) -> dict[str, Any]:
    """One row of the result; keys as in the contract, and spreads beside them."""
    byte_forwards = 2.0 * case.num_directions * case.batch * case.input_bytes

    def kernel(threads: int) -> float:
        torch.set_num_threads(threads)
        losses(case, implementation=implementation, dtype=torch.float32, threads=threads)
        return byte_forwards

    def eager(threads: int) -> float:
        torch.set_num_threads(threads)
        losses(case, implementation="reference", dtype=torch.float32, threads=1)
        return byte_forwards

    contestants: dict[str, Callable[[], float]] = {
        "peak loop": run_peak_loop,
        "one core": lambda: kernel(1),
        "eager, 1 thread": lambda: eager(1),
        "matrix product": run_matrix_product,
        "two cores": lambda: kernel(2),
        "eager, 2 threads": lambda: eager(2),
    }
    run_peak_loop()
    run_matrix_product()
    timed = timed_in_turn(contestants, repeats=repeats)
    baseline = max(timed["eager, 1 thread"], timed["eager, 2 threads"])
    peak = max(timed["peak loop"], timed["matrix product"])
    speed, one_core = timed["two cores"], timed["one core"]
    return {
        "case": case.name,
        "implementation": implementation,
        "byte_forwards_per_s": speed.median,
        "byte_forwards_spread": speed.spread,
        "one_core_byte_forwards_per_s": one_core.median,
        "one_core_spread": one_core.spread,
        "eager_byte_forwards_per_s": baseline.median,
        "eager_spread": baseline.spread,
        "eager_threads": 1 if baseline == timed["eager, 1 thread"] else 2,
        "speedup_over_eager": speed.median / baseline.median,
        "fma_peak_flops_per_s": peak.median,
        "fma_loop_flops_per_s": timed["peak loop"].median,
        "matrix_product_flops_per_s": timed["matrix product"].median,
        "fraction_of_fma_peak": one_core.median * case.shape.operations_per_byte / peak.median,
        "second_core_gain": speed.median / one_core.median,
        "repeats": repeats,
    }


def as_text(row: dict[str, Any]) -> str:
    """For a person: rates in millions of byte-forwards per second, spreads of the rounds in brackets."""
    keys = ("byte_forwards_per_s", "one_core_byte_forwards_per_s", "eager_byte_forwards_per_s")
    speed, one_core, eager = (row[key] / 1e6 for key in keys)
    threads = row["eager_threads"]
    loop, product = row["fma_loop_flops_per_s"] / 1e9, row["matrix_product_flops_per_s"] / 1e9
    lines = (
        f"{row['case']}, {row['implementation']} (median of {row['repeats']})",
        f"  two cores        {speed:8.3f} M byte-forwards/s  [{row['byte_forwards_spread']:.0%}]",
        f"  one core         {one_core:8.3f} M byte-forwards/s  [{row['one_core_spread']:.0%}]",
        f"  eager            {eager:8.3f} M byte-forwards/s  [{row['eager_spread']:.0%}]  {threads} threads",
        f"  over eager       {row['speedup_over_eager']:8.2f} x",
        f"  of the FMA peak  {row['fraction_of_fma_peak']:8.1%}    loop {loop:.0f}, product {product:.0f} GFLOP/s",
        f"  second core      {row['second_core_gain']:8.2f} x",
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 where a correctness case fails."""
    parser = argparse.ArgumentParser(prog="bench/kernels.py", description="Speed of expert_losses, checked first.")
    parser.add_argument("--json", action="store_true", help="print one JSON list, one object a case")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds a case (default 3)")
    parser.add_argument("--implementation", default="numba", help="which implementation to time (default numba)")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    implementation = arguments.implementation
    wrong = failures(implementation)
    for case in BENCH_CASES:
        wrong += disagreement(case, implementation)
    if wrong:
        print(f"{implementation} is wrong, so its speed means nothing:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    rows = []
    for case in BENCH_CASES:
        rows.append(measure(case, implementation=implementation, repeats=arguments.repeats))
        if not arguments.json:
            print(as_text(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
