"""Speed of a forward pass beside eager PyTorch and the peak: whom to time in turn, and the contract's keys of a row."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thinwire.kernels.peak import run_matrix_product, run_peak_loop
from thinwire.kernels.timing import Timed

Contestants = dict[str, Callable[[], float]]


def contestants_of(
    *, one_core: Callable[[], float], two_cores: Callable[[], float], eager: Callable[[], float]
) -> Contestants:
    """Byte-forwards of each; ``eager`` runs with PyTorch's threads at one and at two."""

    def with_threads(threads: int, run: Callable[[], float]) -> Callable[[], float]:
        def work() -> float:
            torch.set_num_threads(threads)
            return run()

        return work

    return {
        "peak loop": run_peak_loop,
        "one core": with_threads(1, one_core),
        "eager, 1 thread": with_threads(1, eager),
        "matrix product": run_matrix_product,
        "two cores": with_threads(2, two_cores),
        "eager, 2 threads": with_threads(2, eager),
    }


def measures_of(timed: Mapping[str, Timed], *, operations_per_byte: int, repeats: int) -> dict[str, Any]:
    """Rates in byte-forwards per second, the better eager baseline, the fraction of one core's peak."""
    baseline = max(timed["eager, 1 thread"], timed["eager, 2 threads"])
    peak = max(timed["peak loop"], timed["matrix product"])
    speed, one_core = timed["two cores"], timed["one core"]
    return {
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
        "fraction_of_fma_peak": one_core.median * operations_per_byte / peak.median,
        "second_core_gain": speed.median / one_core.median,
        "repeats": repeats,
    }


def lines_of(row: Mapping[str, Any]) -> list[str]:
    """For a person: rates in millions of byte-forwards per second, spreads of the rounds in brackets."""
    keys = ("byte_forwards_per_s", "one_core_byte_forwards_per_s", "eager_byte_forwards_per_s")
    speed, one_core, eager = (row[key] / 1e6 for key in keys)
    threads = row["eager_threads"]
    loop, product = row["fma_loop_flops_per_s"] / 1e9, row["matrix_product_flops_per_s"] / 1e9
    return [
        f"{row['case']}, {row['implementation']} (median of {row['repeats']})",
        f"  two cores        {speed:8.3f} M byte-forwards/s  [{row['byte_forwards_spread']:.0%}]",
        f"  one core         {one_core:8.3f} M byte-forwards/s  [{row['one_core_spread']:.0%}]",
        f"  eager            {eager:8.3f} M byte-forwards/s  [{row['eager_spread']:.0%}]  {threads} threads",
        f"  over eager       {row['speedup_over_eager']:8.2f} x",
        f"  of the FMA peak  {row['fraction_of_fma_peak']:8.1%}    loop {loop:.0f}, product {product:.0f} GFLOP/s",
        f"  second core      {row['second_core_gain']:8.2f} x",
    ]
