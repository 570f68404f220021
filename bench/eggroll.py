"""How much slower than the plain batched forward is EGGROLL's perturbed one, and what does its update cost?

``python bench/eggroll.py [--json] [--record] [--repeats N] [--widths 20,58]``.  First every case is compared with dense
perturbed weights in FP64; a kernel that fails one gets no speed printed (exit status 1).  Then, width by width, timed
in turn on two cores: the perturbed forward of a population of pairs, normals drawn and forgotten inside; the
unperturbed forward of the same kernel on as many rows and the same bytes; the perturbed forward in eager PyTorch (one
shared product, FP32, fewer pairs, at one thread); the weighted sum over the same pairs; and a large matrix product.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from measuring import parsed, parser_of, publish
from thinwire.base.seeds import stream_key
from thinwire.kernels.eggroll import reference
from thinwire.kernels.eggroll.api import (
    EggrollRules,
    EggrollShape,
    NoiseAddress,
    eggroll_losses,
    initial_theta,
    perturbation_sum,
    window_losses,
    zero_state,
)
from thinwire.kernels.eggroll.cases import CASES, PAPER_WIDTHS, EggrollCase, inputs_for
from thinwire.kernels.peak import run_matrix_product, run_peak_loop
from thinwire.kernels.timing import timed_in_turn

ADDRESS = NoiseAddress(stream_key(0, "bench"), 1)
RELATIVE_TOLERANCE = 1e-5
INPUT_BYTES, STREAMS = 100, 256
OPERATIONS_A_ROUND = 4e10
EAGER_PAIRS = 32


def case_losses(case: EggrollCase, *, threads: int) -> torch.Tensor:
    theta, windows, state = map(torch.from_numpy, inputs_for(case))
    return eggroll_losses(
        theta,
        shape=case.shape,
        rules=case.rules,
        windows=windows,
        address=ADDRESS,
        pairs=range(case.first_pair, case.first_pair + case.num_pairs),
        state=state,
        threads=threads,
    )


def failures() -> list[str]:
    """What is wrong on the correctness cases; empty where nothing is."""
    wrong = []
    for case in CASES:
        theta, windows, state = map(torch.from_numpy, inputs_for(case))
        exact = reference.dense_losses(
            theta.double(),
            shape=case.shape,
            rules=case.rules,
            windows=windows,
            address=ADDRESS,
            pairs=range(case.first_pair, case.first_pair + case.num_pairs),
            state=state,
        )
        actual = case_losses(case, threads=1)
        error = float(((actual - exact) / exact).abs().max())
        if not error <= RELATIVE_TOLERANCE:
            wrong.append(f"{case.name}: relative error {error:.1e}, allowed {RELATIVE_TOLERANCE:.0e}")
        if not torch.equal(actual, case_losses(case, threads=2)):
            wrong.append(f"{case.name}: two threads give other bits than one")
    return wrong


def pairs_for(shape: EggrollShape) -> int:
    """A chunk of about ``OPERATIONS_A_ROUND``, in whole chunks for both cores."""
    pairs = OPERATIONS_A_ROUND / (2 * INPUT_BYTES * shape.operations_per_byte)
    return max(round(pairs / 256), 1) * 256


def measure(width: int, *, repeats: int) -> dict[str, Any]:
    """One row of the result: rates in byte-forwards per second, spreads beside them."""
    shape, rules = EggrollShape(width=width), EggrollRules()
    theta, num_pairs = initial_theta(shape, seed=0), pairs_for(shape)
    windows = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (STREAMS, INPUT_BYTES + 1), dtype=np.uint8))
    state = zero_state(shape, streams=STREAMS)
    signs = np.where(np.arange(num_pairs) % 2, 1, -1)
    rows = torch.arange(2 * num_pairs) // 2 % STREAMS
    plain_windows, plain_state = windows[rows].contiguous(), state[rows].contiguous()
    kwargs: dict[str, Any] = {"shape": shape, "rules": rules}

    def perturbed(pairs: int, *, implementation: str, threads: int) -> float:
        torch.set_num_threads(1)
        eggroll_losses(
            theta,
            **kwargs,
            windows=windows,
            address=ADDRESS,
            pairs=range(pairs),
            state=state,
            implementation=implementation,
            threads=threads,
        )
        return 2.0 * pairs * INPUT_BYTES

    def plain() -> float:
        window_losses(theta, **kwargs, windows=plain_windows, state=plain_state, threads=2)
        return float(len(plain_windows) * INPUT_BYTES)

    def update() -> float:
        perturbation_sum(signs, shape=shape, address=ADDRESS, threads=2)
        return float(num_pairs)

    contestants: dict[str, Callable[[], float]] = {
        "perturbed": lambda: perturbed(num_pairs, implementation="numba", threads=2),
        "plain": plain,
        "eager": lambda: perturbed(EAGER_PAIRS, implementation="reference", threads=1),
        "update": update,
        "peak loop": run_peak_loop,
        "matrix product": run_matrix_product,
    }
    perturbed(32, implementation="numba", threads=2)
    run_peak_loop()
    update()
    timed = timed_in_turn(contestants, repeats=repeats)
    speed, baseline = timed["perturbed"], timed["plain"]
    peak = max(timed["peak loop"], timed["matrix product"])
    seconds = 2 * num_pairs * INPUT_BYTES / speed.median
    return {
        "case": f"d={width}",
        "implementation": "numba",
        "parameters": shape.num_parameters,
        "pairs": num_pairs,
        "perturbed_byte_forwards_per_s": speed.median,
        "perturbed_spread": speed.spread,
        "plain_byte_forwards_per_s": baseline.median,
        "plain_spread": baseline.spread,
        "fraction_of_plain": speed.median / baseline.median,
        "eager_byte_forwards_per_s": timed["eager"].median,
        "speedup_over_eager": speed.median / timed["eager"].median,
        "update_share": 1 / (1 + seconds * timed["update"].median / num_pairs),
        "fraction_of_fma_peak": speed.median * shape.operations_per_byte / (2 * peak.median),
        "fma_peak_flops_per_s": peak.median,
        "repeats": repeats,
    }


def as_text(row: Mapping[str, Any]) -> str:
    return (
        f"{row['case']:<6} {row['pairs']:>6} pairs"
        f"  perturbed {row['perturbed_byte_forwards_per_s'] / 1e6:7.3f} M/s [{row['perturbed_spread']:.0%}]"
        f"  plain {row['plain_byte_forwards_per_s'] / 1e6:7.3f} M/s [{row['plain_spread']:.0%}]"
        f"  {row['fraction_of_plain']:.1%} of plain"
        f"  {row['speedup_over_eager']:.1f} x eager"
        f"  {row['fraction_of_fma_peak']:.0%} of the FMA peak"
        f"  sum over pairs {row['update_share']:.1%} of an update"
    )


def widths_of(text: str) -> tuple[int, ...]:
    """The widths of ``--widths``."""
    if not all(width.isdecimal() and int(width) for width in text.split(",")):
        raise argparse.ArgumentTypeError(f"widths are whole numbers of at least 1, as in 20,58, not {text!r}")
    return tuple(map(int, text.split(",")))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 where a correctness case fails, or 2 where an option is wrong."""
    parser = parser_of("bench/eggroll.py", "Speed of EGGROLL's forward, checked first.")
    parser.add_argument("--widths", type=widths_of, default=PAPER_WIDTHS, help="which widths (default the paper's)")
    arguments = parsed(parser, argv)
    wrong = failures()
    if wrong:
        print("the kernel is wrong, so its speed means nothing:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    rows = (measure(width, repeats=arguments.repeats) for width in arguments.widths)
    publish(rows, arguments=arguments, bench="eggroll", as_text=as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
