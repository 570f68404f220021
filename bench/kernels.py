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

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from forward_speed import contestants_of, lines_of, measures_of
from measuring import parsed, parser_of, publish
from sgemm import operations_done, sgemm_runs
from thinwire.base.errors import UserError
from thinwire.base.seeds import stream_key
from thinwire.kernels.dispatch import IMPLEMENTATIONS, choose
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import (
    BENCH_CASES,
    CASES,
    WIDE_BENCH_CASES,
    WIDE_CASES,
    LossCase,
    inputs_for,
)
from thinwire.kernels.peak import run_matrix_product, run_peak_loop
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.kernels.timing import Timed, timed_in_turn

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
        some = case._replace(num_directions=directions)
        losses(some, implementation=implementation, dtype=torch.float32, threads=threads, given=given)
        return 2.0 * directions * case.batch * case.input_bytes

    def eager() -> float:
        some = case._replace(num_directions=min(case.num_directions, EAGER_DIRECTIONS))
        losses(some, implementation="reference", dtype=torch.float32, threads=1, given=given)
        return 2.0 * some.num_directions * case.batch * case.input_bytes

    contestants = contestants_of(
        one_core=lambda: kernel(1, directions=max(case.num_directions // 4, 1)),
        two_cores=lambda: kernel(2, directions=case.num_directions),
        eager=eager,
    )
    if is_wide:
        contestants |= sgemm_runs(case.shape, batch=case.batch)
    run_peak_loop()
    run_matrix_product()
    timed = timed_in_turn(contestants, repeats=repeats)
    row = {"case": case.name, "implementation": implementation}
    row |= measures_of(timed, operations_per_byte=case.shape.operations_per_byte, repeats=repeats)
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


def as_text(row: Mapping[str, Any]) -> str:
    lines = lines_of(row)
    if "fraction_of_sgemm" in row:
        fraction, best = row["fraction_of_sgemm"], row["sgemm_flops_per_s"] / 1e9
        lines.append(f"  of sgemm         {fraction:8.1%}    {best:.0f} GFLOP/s [{row['sgemm_spread']:.0%}]")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 where a correctness case fails, or 2 where an option is wrong."""
    parser = parser_of("bench/kernels.py", "Speed of expert_losses, checked first.")
    parser.add_argument("--only", choices=("narrow", "wide"), help="time one kind of expert (default both)")
    parser.add_argument(
        "--implementation",
        choices=IMPLEMENTATIONS,
        default="numba",
        help="which implementation to time (default numba)",
    )
    arguments = parsed(parser, argv)
    implementation = arguments.implementation
    try:
        choose(implementation, like=torch.empty(0))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    wrong = failures(implementation)
    cases = {"narrow": BENCH_CASES, "wide": WIDE_BENCH_CASES}.get(arguments.only, (*BENCH_CASES, *WIDE_BENCH_CASES))
    for case in cases:
        wrong += disagreement(case, implementation)
    if wrong:
        print(f"{implementation} is wrong, so its speed means nothing:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    rows = (measure(case, implementation=implementation, repeats=arguments.repeats) for case in cases)
    publish(rows, arguments=arguments, bench="kernels", as_text=as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
