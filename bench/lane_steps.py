"""Where does the time of one byte go?  Each step of the lane kernel alone, beside the whole, on one core.

``python bench/lane_steps.py [--json] [--record] [--repeats N]``.  A step is run over and over on the same few
kilobytes, as often for one byte of 16 windows as the kernel runs it; the whole is ``forward_lanes`` itself.  What the
steps leave is the rest: reading tokens, picking the targets' logits, caches that the steps alone do not miss.  All are
timed in turn, round after round; medians, in nanoseconds a byte and window.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit

from measuring import parsed, parser_of, publish
from thinwire.kernels.expert_losses.cases import BENCH_CASES, inputs_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_forward import build_table, forward_lanes, pack_weights
from thinwire.kernels.lane_layout import (
    LANES,
    TILE_ROWS,
    VOCABULARY,
    aligned_floats,
    lane_tokens,
    pack_decoder,
    sizes_of,
)
from thinwire.kernels.lane_products import gemm_gelu, gemm_set
from thinwire.kernels.lane_rows import gather_entries, gelu, layer_norm, log_probabilities, lstm_cell, softmax_sums
from thinwire.kernels.lane_workspace import LaneWorkspace
from thinwire.kernels.peak import run_peak_loop
from thinwire.kernels.timing import timed_in_turn

ONE = (0,)
BYTES_A_ROUND = 2_000


@njit(nogil=True)
def _products(weights, x, out, tiles, terms, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        for tile in range(tiles):
            gemm_set(ONE, weights, tile * terms * TILE_ROWS, x, 0, out, tile * TILE_ROWS * LANES, terms)


@njit(nogil=True)
def _activated_products(weights, x, out, tiles, terms, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        gemm_gelu(ONE, weights, 0, x, 0, out, 0, tiles, terms)
        gelu(ONE, out, (tiles - 1) * TILE_ROWS * LANES, TILE_ROWS)


@njit(nogil=True)
def _cells(rows, d, d_pad, times):  # type: ignore[no-untyped-def]
    gates, cell = 0, 4 * d_pad * LANES
    hidden, residual = cell + d_pad * LANES, cell + 2 * d_pad * LANES
    for _ in range(times):
        lstm_cell(ONE, rows, gates, rows, cell, rows, hidden, rows, residual, d, d_pad)


@njit(nogil=True)
def _norms(rows, gain, out, d, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        layer_norm(ONE, rows, 0, gain, 0, out, 0, d)


@njit(nogil=True)
def _softmaxes(rows, out, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        softmax_sums(ONE, rows, 0, out, 0, VOCABULARY)


@njit(nogil=True)
def _gathers(positions, table, out, blocks, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        gather_entries(ONE, positions, 0, table, 0, out, 0, blocks)


@njit(nogil=True)
def _logarithms(sums, out, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        log_probabilities(ONE, sums, 0, out, 0)


def steps_of(shape: ExpertShape) -> dict[str, Callable[[], float]]:
    """Each step as often as for ``BYTES_A_ROUND`` bytes of 16 windows; each returns bytes times windows."""
    sizes, depth, times = sizes_of(shape), shape.depth, BYTES_A_ROUND
    d, hidden = sizes.width, sizes.hidden
    generator = np.random.default_rng(0)

    def rows(count: int, *, scale: float = 0.5) -> np.ndarray:
        filled = aligned_floats(count * LANES)
        filled[:] = scale * generator.standard_normal(count * LANES)
        return filled

    weights, wide, out = rows(8 * hidden), rows(2 * hidden), rows(2 * VOCABULARY)
    cells, table = rows(8 * sizes.width_pad), rows(VOCABULARY * sizes.entry_floats // LANES)
    positions = (generator.integers(0, VOCABULARY, LANES) * sizes.entry_floats).astype(np.int32)
    gate_tiles, up_tiles = 4 * sizes.width_pad // TILE_ROWS, sizes.hidden_pad // TILE_ROWS

    def products() -> None:
        _products(weights, wide, out, gate_tiles, d, times)
        for _ in range(depth - 1):
            _products(weights, wide, out, gate_tiles, 2 * d, times)
        _products(weights, wide, out, sizes.width_pad // TILE_ROWS, hidden, depth * times)
        _products(weights, wide, out, VOCABULARY // TILE_ROWS, sizes.embed, times)

    runs: dict[str, Callable[[], None]] = {
        "matrix products": products,
        "products with GELU": lambda: _activated_products(weights, wide, out, up_tiles, d, depth * times),
        "LSTM cells": lambda: _cells(cells, d, sizes.width_pad, depth * times),
        "layer norms": lambda: _norms(wide, weights, out, d, 2 * depth * times),
        "softmax sums": lambda: _softmaxes(table, out, times),
        "logarithms": lambda: _logarithms(np.abs(cells), np.empty(LANES), times),
        "table entries": lambda: _gathers(positions, table, out, sizes.entry_floats // LANES, times),
        "whole": _whole(shape),
    }

    def counted(run: Callable[[], None]) -> Callable[[], float]:
        def work() -> float:
            run()
            return float(BYTES_A_ROUND * LANES)

        return work

    return {name: counted(run) for name, run in runs.items()}


def _whole(shape: ExpertShape) -> Callable[[], None]:
    sizes = sizes_of(shape)
    case = BENCH_CASES[0]._replace(shape=shape, batch=LANES, input_bytes=BYTES_A_ROUND)
    inputs = inputs_for(case)
    decoder = pack_decoder(inputs.decoder.astype(np.float32), sizes=sizes)
    work = LaneWorkspace.for_sizes(sizes, input_bytes=BYTES_A_ROUND)
    pack_weights(inputs.theta.astype(np.float32), sizes, work.packed[::1])
    build_table(ONE, work.packed, decoder, sizes, work.table, work.scratch)
    tokens, no_hidden = lane_tokens(inputs.windows)[0], np.empty((0, 0, 0), np.float32)

    def run() -> None:
        work.state[:] = 0.0
        forward_lanes(
            ONE,
            work.packed,
            work.table,
            decoder,
            sizes,
            tokens,
            0,
            work.state,
            work.scratch,
            no_hidden,
            work.log_probability,
        )

    return run


def measure(shape: ExpertShape, *, repeats: int) -> list[dict[str, Any]]:
    """One row a step, the rest and the whole: ns a byte and window, and the share of the whole."""
    contestants = steps_of(shape)
    for run in (*contestants.values(), run_peak_loop):
        run()
    timed = timed_in_turn(contestants | {"peak": run_peak_loop}, repeats=repeats)
    nanoseconds = {name: 1e9 / rate.median for name, rate in timed.items() if name != "peak"}
    whole = nanoseconds.pop("whole")
    nanoseconds |= {"rest": whole - sum(nanoseconds.values()), "whole": whole}
    at_peak = 1e9 * shape.operations_per_byte / timed["peak"].median
    rows = [{"case": name, "ns_per_byte": value, "share": value / whole} for name, value in nanoseconds.items()]
    return [*rows, {"case": "counted operations at the FMA peak", "ns_per_byte": at_peak, "share": at_peak / whole}]


def as_text(row: Mapping[str, Any]) -> str:
    return f"{row['case']:<36}{row['ns_per_byte']:9.1f} ns a byte  {row['share']:7.1%}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("bench/lane_steps.py", "Where the time of one byte goes: d = 32, one core.", repeats=5)
    arguments = parsed(parser, argv)
    rows = measure(ExpertShape(width=32), repeats=arguments.repeats)
    publish(rows, arguments=arguments, bench="lane_steps", as_text=as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
