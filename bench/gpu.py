"""What does one GPU do?  Correctness on the device, then the paper's update, many directions, routing, wide experts.

``bash bench/gpu.sh [--json] [--record]``.  Every precision is compared with FP64 on the shared cases; where one that
must be exact (``ieee``, ``tf32x3``, ``fp16x3``), a probe or a wide expert is not, no speed is printed (exit status 1).
``tf32`` is timed and its derivative's error printed beside it.  Speeds are medians of CUDA events around whole calls,
after one that compiles.  Operations are counted as in Eq. (21); the peaks are FP32 and TF32 products of this process.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measuring import parsed, record
from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import BENCH_CASES, CASES, LossCase, inputs_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import routed_scores
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe, weighted_probe_sum

ADDRESS = ProbeAddress(stream_key(0, "bench"), 1)
DEVICE = "cuda"
RELATIVE_TOLERANCE = 2e-6
EXACT = ("ieee", "fp16x3", "tf32x3")
PRECISIONS = (*EXACT, "tf32")
PAPER = BENCH_CASES[0]
MANY_DIRECTIONS = BENCH_CASES[1:4]
WIDE = tuple(
    LossCase(f"wide, d = {d}, T = 256, B = 16, 4 directions", ExpertShape(width=d), 16, 256, 4) for d in (181, 509)
)
FULL_TILE = LossCase("64 windows", ExpertShape(width=32), 64, 32, 2)
"""The constants of the paper's update, so the kernel that is timed is the one that is checked."""
DERIVATIVE_CASE = LossCase("derivative", ExpertShape(width=32), 16, 64, 8, epsilon=1e-5)
BUDGET_SECONDS = 440.0
MATRIX_SIZE = 8192
EAGER_DIRECTIONS = 4


def losses(
    case: LossCase, *, dtype: torch.dtype = torch.float32, device: str | None = None, **changes: Any
) -> torch.Tensor:
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    arguments = {
        "directions": range(case.num_directions),
        "implementation": "triton",
        "epsilon": case.epsilon,
    } | changes
    return expert_losses(
        theta.to(device or DEVICE, dtype),
        shape=case.shape,
        decoder=decoder.to(device or DEVICE, dtype),
        windows=windows.to(device or DEVICE),
        address=ADDRESS,
        **arguments,
    )


def derivative_errors(precisions: Sequence[str]) -> dict[str, float]:
    """Root mean square error of the directional derivative at eps = 1e-5, relative to the derivative's own size."""
    case = DERIVATIVE_CASE
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    step, endpoints = float(np.float32(case.epsilon)), []
    for direction in range(case.num_directions):
        z = sign_probe(ADDRESS, shape=case.shape, direction=direction, implementation="reference")
        endpoints += [(theta + sign * step * torch.from_numpy(z)).float().double() for sign in (1, -1)]
    with torch.no_grad():
        both = reference.mean_loss(torch.stack(endpoints), shape=case.shape, decoder=decoder, windows=windows)
    exact = (both[::2] - both[1::2]) / (2 * case.epsilon)
    errors = {}
    for precision in precisions:
        found = losses(case, precision=precision)
        error = (found[:, 0] - found[:, 1]) / (2 * case.epsilon) - exact
        errors[precision] = float(error.pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())
    return errors


def failures(precision: str, *, cases: Sequence[LossCase]) -> list[str]:
    wrong = []
    for case in cases:
        exact = losses(case, dtype=torch.float64, device="cpu", implementation="reference")
        found = losses(case, precision=precision)
        error = float(((found - exact) / exact).abs().max())
        if not error <= RELATIVE_TOLERANCE:
            wrong.append(f"{precision}, {case.name}: relative error {error:.1e}, allowed {RELATIVE_TOLERANCE:.0e}")
        alone = losses(case, precision=precision, directions=range(case.num_directions - 1, case.num_directions))
        if not torch.equal(alone[0], found[-1]):
            wrong.append(f"{precision}, {case.name}: a direction alone has other bits than among others")
    return wrong


def probe_failures() -> list[str]:
    weights, shape = np.random.default_rng(0).standard_normal(65), ExpertShape(width=32)
    sums = [
        weighted_probe_sum(weights, address=ADDRESS, shape=shape, implementation=name)
        for name in ("triton", "reference")
    ]
    return [] if np.array_equal(*sums) else ["the weighted sum of probes has other bits than the reference's"]


def all_failures(precisions: Sequence[str], *, say: Callable[[str], object]) -> list[str]:
    """What is wrong with probes, with the precisions that must be exact and with wide experts; ``say`` is told each."""
    # The whole list of cases compiles one kernel each; two of them meet every branch but padding, and all meet ieee.
    some = [case for case in CASES if case.shape.width == 32 and case.input_bytes <= 64] + [FULL_TILE]
    odd = [case for case in CASES if case.name in ("width no multiple of the lanes", "projections", "extreme weights")]
    wrong = probe_failures()
    for precision in precisions:
        if precision in EXACT:
            wrong += failures(precision, cases=some + (odd if precision == precisions[0] else []))
            say(f"{precision}: checked")
    return wrong + failures("ieee", cases=[WIDE[0]._replace(num_directions=1, input_bytes=16)])


def seconds_of(call: Callable[[], object], *, repeats: int) -> list[float]:
    """Of each call, by CUDA events; the first call, not counted, compiles."""
    call()
    found = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / 1e3)
    return found


def peak_flops_per_s(*, tf32: bool) -> float:
    """Of a large FP32 matrix product, by FP32 units or, rounded to TF32, by the matrix units."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.randn(MATRIX_SIZE, MATRIX_SIZE, device="cuda") for _ in range(2))
    seconds = statistics.median(seconds_of(lambda: a @ b, repeats=3))
    torch.backends.cuda.matmul.allow_tf32 = before
    return 2.0 * MATRIX_SIZE**3 / seconds


def row_of(
    name: str, times: list[float], *, byte_forwards: float, shape: ExpertShape, peaks: dict[str, float], **more: Any
) -> dict[str, Any]:
    seconds = statistics.median(times)
    flops = byte_forwards * shape.operations_per_byte / seconds
    return {
        "case": name,
        "implementation": "triton",
        "seconds": seconds,
        "seconds_spread": (max(times) - min(times)) / seconds,
        "byte_forwards_per_s": byte_forwards / seconds,
        "flops_per_s": flops,
        "fraction_of_fp32_product": flops / peaks["fp32"],
        "fraction_of_tf32_product": flops / peaks["tf32"],
        "gpu_memory_bytes": torch.cuda.max_memory_allocated(),
        **more,
    }


def loss_row(case: LossCase, *, precision: str, repeats: int, peaks: dict[str, float]) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    times = seconds_of(lambda: losses(case, precision=precision), repeats=repeats)
    compiling = time.perf_counter() - started - sum(times)
    work = 2.0 * case.num_directions * case.batch * case.input_bytes
    return row_of(
        f"{case.name}, {precision}", times, byte_forwards=work, shape=case.shape, peaks=peaks, compile_seconds=compiling
    )


def eager_row(*, peaks: dict[str, float]) -> dict[str, Any]:
    case = PAPER._replace(num_directions=EAGER_DIRECTIONS)
    times = seconds_of(lambda: losses(case, implementation="reference"), repeats=1)
    work = 2.0 * case.num_directions * case.batch * case.input_bytes
    row = row_of(f"eager, {case.num_directions} directions", times, byte_forwards=work, shape=case.shape, peaks=peaks)
    return row | {"implementation": "reference"}


def routing_row(*, precision: str, repeats: int, peaks: dict[str, float]) -> dict[str, Any]:
    """N = 256 experts, k = 4, 4,096 windows: 64 requests an expert; a token is one input byte of a window."""
    shape, num_experts, num_windows, length = ExpertShape(width=32), 256, 4096, 256
    generator = np.random.default_rng(0)
    thetas = torch.from_numpy(
        generator.uniform(-0.1, 0.1, (num_experts, shape.num_parameters)).astype("float32")
    ).cuda()
    decoder = torch.from_numpy(generator.standard_normal((256, 32)).astype("float32")).cuda()
    windows = torch.from_numpy(generator.integers(0, 256, (num_windows, length + 1), dtype="uint8")).cuda()
    # Equal shares, neighbouring experts: every window has four different ones.
    first = torch.from_numpy(generator.permutation(num_windows) % num_experts)
    experts = (first[:, None] + torch.arange(4)) % num_experts

    def call() -> object:
        return routed_scores(
            thetas,
            shape=shape,
            decoder=decoder,
            windows=windows,
            experts=experts,
            first_target=0,
            implementation="triton",
            precision=precision,
        )

    times = seconds_of(call, repeats=repeats)
    tokens = float(num_windows * length)
    name = f"routed, N = 256, k = 4, T = {length}, {precision}"
    row = row_of(name, times, byte_forwards=4 * tokens, shape=shape, peaks=peaks)
    return row | {"tokens_per_s": tokens / row["seconds"]}


def as_text(row: dict[str, Any]) -> str:
    tokens = f"  {row['tokens_per_s'] / 1e6:.2f} M tokens/s" if "tokens_per_s" in row else ""
    return (
        f"{row['case']:<62} {row['seconds'] * 1e3:9.2f} ms [{row['seconds_spread']:.0%}] "
        f"{row['byte_forwards_per_s'] / 1e6:8.1f} M byte-forwards/s {row['flops_per_s'] / 1e12:6.2f} TFLOP/s "
        f"({row['fraction_of_fp32_product']:.0%} of FP32, {row['fraction_of_tf32_product']:.0%} of TF32){tokens}"
    )


def keep(rows: list[dict[str, Any]], *, folder: Path | None) -> None:
    """Left after every row, so that a machine taken away leaves what it measured."""
    if folder:
        (folder / "gpu.json").write_text(json.dumps(rows, indent=2))


def precisions_of(text: str) -> tuple[str, ...]:
    """The precisions of ``--precisions``."""
    unknown = [name for name in text.split(",") if name not in PRECISIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no precision {unknown[0]!r}; choose from {', '.join(PRECISIONS)}")
    return tuple(text.split(","))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 where a check fails or there is no GPU, or 2 where an option is wrong."""
    parser = argparse.ArgumentParser(prog="bench/gpu.py", description="Kernels on one GPU, checked first.")
    parser.add_argument("--json", action="store_true", help="print one JSON list at the end")
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results/<gpu>.csv")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls a row (default 5)")
    parser.add_argument("--out", type=Path, help="an existing folder: gpu.json is left there after every row")
    parser.add_argument("--precisions", type=precisions_of, default=PRECISIONS, help="in the order they are tried")
    arguments = parsed(parser, argv)
    if arguments.out and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out} is no folder")
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 1
    started = time.perf_counter()
    say = (
        (lambda text: print(text, file=sys.stderr, flush=True))
        if arguments.json
        else (lambda text: print(text, flush=True))
    )
    precisions = arguments.precisions
    wrong = all_failures(precisions, say=lambda text: say(f"{text} at {time.perf_counter() - started:.0f} s"))
    if wrong:
        print("a kernel is wrong, so no speed means anything:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    errors = derivative_errors(precisions)
    say(
        "relative error of the directional derivative at eps = 1e-5: " + str({k: f"{v:.1e}" for k, v in errors.items()})
    )
    peaks = {"fp32": peak_flops_per_s(tf32=False), "tf32": peak_flops_per_s(tf32=True)}
    say(f"products: FP32 {peaks['fp32'] / 1e12:.1f}, TF32 {peaks['tf32'] / 1e12:.1f} TFLOP/s")
    plan: list[Callable[[], dict[str, Any]]] = [
        lambda p=p: loss_row(PAPER, precision=p, repeats=arguments.repeats, peaks=peaks) for p in precisions
    ]
    fastest = "fp16x3" if "fp16x3" in precisions else precisions[0]
    plan += [lambda: routing_row(precision=fastest, repeats=arguments.repeats, peaks=peaks)]
    plan += [lambda c=c: loss_row(c, precision=fastest, repeats=3, peaks=peaks) for c in MANY_DIRECTIONS]
    plan += [lambda c=c: loss_row(c, precision="ieee", repeats=2, peaks=peaks) for c in WIDE]
    plan += [lambda: eager_row(peaks=peaks)]
    rows: list[dict[str, Any]] = []
    for measure in plan:
        if time.perf_counter() - started > BUDGET_SECONDS:
            say("the time is used up: the rest is not measured")
            break
        row = measure()
        row["derivative_error"] = errors.get(row["case"].rsplit(", ", 1)[-1], "")
        rows.append(row)
        keep(rows, folder=arguments.out)
        say(as_text(row))
    if arguments.record and rows:
        name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name().lower())
        say(f"recorded in {record(rows, bench='gpu', machine=name)}")
    if arguments.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
