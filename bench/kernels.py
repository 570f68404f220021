"""How fast does ``expert_losses`` run here, against PyTorch eager and against the machine's multiply-add peak?

``python bench/kernels.py [--json] [--record] [--repeats N]``.  First every correctness case is compared with FP64; a
kernel that fails one gets no speed printed (exit status 1).  Then all contestants of a case are timed in turn, round
after round, so that a busy moment hits them alike; medians and spreads of the rounds are given.  Operations are counted
as in Eq. (21).

The speed is of two cores, and so may the eager baseline's be: the reference implementation in FP32, with a leading axis
of perturbed copies, at the better of one and two threads.  One core runs a quarter of a case's directions, the eager
baseline at most ``EAGER_DIRECTIONS`` of them: the rates are per byte.  The fraction of the peak is of one core: the
peak is the larger of a loop of independent vector multiply-adds and a large matrix product, both on one core in this
process.

Wide experts are compared with sgemm besides: the products of their own forward pass, of the better of two libraries, on
one core in the same rounds (``sgemm.py``). ``fraction_of_sgemm`` counts only operations that are done; what the table
of 256 bytes saves is in ``counted_fraction_of_sgemm``, which counts as in Eq. (21).
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from measuring import Timed, record, timed_in_turn
from peak import run_matrix_product, run_peak_loop
from sgemm import operations_done, sgemm_runs
from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import (
    BENCH_CASES,
    CASES,
    WIDE_BENCH_CASES,
    WIDE_CASES,
    LossCase,
    inputs_for,
)
from thinwire.kernels.sign_probe.api import ProbeAddress

ADDRESS = ProbeAddress(stream_key(0, "bench"), 1)
RELATIVE_TOLERANCE = 2e-6
EAGER_DIRECTIONS = 16
"""The eager reference evaluates directions in chunks as large as its memory limit, so more would only take longer."""


class Tensors(NamedTuple):
    """A case's numbers in one dtype, made before the clock runs."""

    theta: torch.Tensor
    decoder: torch.Tensor
    windows: torch.Tensor


def tensors_for(case: LossCase, *, dtype: torch.dtype) -> Tensors:
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    return Tensors(theta.to(dtype), decoder.to(dtype), windows)


def losses(
    case: LossCase, *, implementation: str, dtype: torch.dtype, threads: int, given: Tensors | None = None
) -> torch.Tensor:
    theta, decoder, windows = given or tensors_for(case, dtype=dtype)
    return expert_losses(
        theta,
        shape=case.shape,
        decoder=decoder,
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
    for case in (*CASES, *WIDE_CASES):
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
    short = case._replace(num_directions=min(2, case.num_directions))
    eager = losses(short, implementation="reference", dtype=torch.float32, threads=1)
    actual = losses(short, implementation=implementation, dtype=torch.float32, threads=1)
    error = float(((actual - eager) / eager).abs().max())
    return [] if error <= RELATIVE_TOLERANCE else [f"{case.name}: {error:.1e} away from the eager reference"]


def measure(case: LossCase, *, implementation: str, repeats: int) -> dict[str, Any]:
    """One row of the result; keys as in the contract, and spreads beside them."""
    given = tensors_for(case, dtype=torch.float32)
    is_wide = case in WIDE_BENCH_CASES

    def kernel(threads: int, *, directions: int) -> float:
        torch.set_num_threads(threads)
        some = case._replace(num_directions=directions)
        losses(some, implementation=implementation, dtype=torch.float32, threads=threads, given=given)
        return 2.0 * directions * case.batch * case.input_bytes

    def eager(threads: int) -> float:
        torch.set_num_threads(threads)
        some = case._replace(num_directions=min(case.num_directions, EAGER_DIRECTIONS))
        losses(some, implementation="reference", dtype=torch.float32, threads=1, given=given)
        return 2.0 * some.num_directions * case.batch * case.input_bytes

    part = max(case.num_directions // 4, 1)
    contestants: dict[str, Callable[[], float]] = {
        "peak loop": run_peak_loop,
        "one core": lambda: kernel(1, directions=part),
        "eager, 1 thread": lambda: eager(1),
        "matrix product": run_matrix_product,
        "two cores": lambda: kernel(2, directions=case.num_directions),
        "eager, 2 threads": lambda: eager(2),
    }
    if is_wide:
        contestants |= sgemm_runs(case.shape, batch=case.batch)
    run_peak_loop()
    run_matrix_product()
    timed = timed_in_turn(contestants, repeats=repeats)
    baseline = max(timed["eager, 1 thread"], timed["eager, 2 threads"])
    peak = max(timed["peak loop"], timed["matrix product"])
    speed, one_core = timed["two cores"], timed["one core"]
    row = {
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
    return row | (against_sgemm(case, timed) if is_wide else {})


def against_sgemm(case: LossCase, timed: Mapping[str, Timed]) -> dict[str, float]:
    """The better library's rate on the pass's own products, and one core's share of it."""
    best = max(timed[name] for name in ("sgemm, torch", "sgemm, numpy"))
    speed = timed["one core"].median
    return {
        "sgemm_flops_per_s": best.median,
        "sgemm_spread": best.spread,
        "torch_sgemm_flops_per_s": timed["sgemm, torch"].median,
        "numpy_sgemm_flops_per_s": timed["sgemm, numpy"].median,
        "fraction_of_sgemm": speed * operations_done(case.shape) / best.median,
        "counted_fraction_of_sgemm": speed * case.shape.operations_per_byte / best.median,
    }


def as_text(row: dict[str, Any]) -> str:
    """For a person: rates in millions of byte-forwards per second, spreads of the rounds in brackets."""
    keys = ("byte_forwards_per_s", "one_core_byte_forwards_per_s", "eager_byte_forwards_per_s")
    speed, one_core, eager = (row[key] / 1e6 for key in keys)
    threads = row["eager_threads"]
    loop, product = row["fma_loop_flops_per_s"] / 1e9, row["matrix_product_flops_per_s"] / 1e9
    lines: tuple[str, ...] = (
        f"{row['case']}, {row['implementation']} (median of {row['repeats']})",
        f"  two cores        {speed:8.3f} M byte-forwards/s  [{row['byte_forwards_spread']:.0%}]",
        f"  one core         {one_core:8.3f} M byte-forwards/s  [{row['one_core_spread']:.0%}]",
        f"  eager            {eager:8.3f} M byte-forwards/s  [{row['eager_spread']:.0%}]  {threads} threads",
        f"  over eager       {row['speedup_over_eager']:8.2f} x",
        f"  of the FMA peak  {row['fraction_of_fma_peak']:8.1%}    loop {loop:.0f}, product {product:.0f} GFLOP/s",
        f"  second core      {row['second_core_gain']:8.2f} x",
    )
    if "fraction_of_sgemm" in row:
        fraction, best = row["fraction_of_sgemm"], row["sgemm_flops_per_s"] / 1e9
        lines += (f"  of sgemm         {fraction:8.1%}    {best:.0f} GFLOP/s [{row['sgemm_spread']:.0%}]",)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 where a correctness case fails."""
    parser = argparse.ArgumentParser(prog="bench/kernels.py", description="Speed of expert_losses, checked first.")
    parser.add_argument("--json", action="store_true", help="print one JSON list, one object a case")
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results/<machine>.csv")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds a case (default 3)")
    parser.add_argument("--only", choices=("narrow", "wide"), help="time one kind of expert (default both)")
    parser.add_argument("--implementation", default="numba", help="which implementation to time (default numba)")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    implementation = arguments.implementation
    wrong = failures(implementation)
    cases = {"narrow": BENCH_CASES, "wide": WIDE_BENCH_CASES}.get(arguments.only, (*BENCH_CASES, *WIDE_BENCH_CASES))
    for case in cases:
        wrong += disagreement(case, implementation)
    if wrong:
        print(f"{implementation} is wrong, so its speed means nothing:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    rows = []
    for case in cases:
        rows.append(measure(case, implementation=implementation, repeats=arguments.repeats))
        if not arguments.json:
            print(as_text(rows[-1]), flush=True)
    if arguments.record:
        record(rows, bench="kernels")
    if arguments.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
