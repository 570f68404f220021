"""How far are the functions of the lanes from FP64, after rounding, over the whole range of float32?"""

import math
from typing import Any

import numpy as np
import pytest
from numba import njit
from scipy import special

from thinwire.kernels import lane_functions as functions
from thinwire.kernels.lane_products import gemm_add, gemm_gelu, gemm_set
from thinwire.kernels.lane_rows import (
    LANES,
    ROWS_AT_ONCE,
    TILE_ROWS,
    gather_entries,
    gelu,
    layer_norm,
    log_probabilities,
    lstm_cell,
    softmax_sums,
)
from thinwire.kernels.routed_scores.stream_rows import stream_softmax
from thinwire.kernels.vector_ir import Lanes, buffers_intrinsic

BOUND = 4e-7  # relative
ONE = (0,)  # one set of weights in all lanes


def _emit_exp(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    _emit_each(lanes, buffers, counts, lambda x: functions.exp_in_range(lanes, x))


def _emit_tanh(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    _emit_each(lanes, buffers, counts, lambda x: lanes.builder.fdiv(*functions.tanh_ratio(lanes, x)))


def _emit_sigmoid(lanes: Lanes, buffers: list[Any], counts: list[Any]) -> None:
    one = lanes.constant(1.0)
    _emit_each(lanes, buffers, counts, lambda x: lanes.builder.fdiv(one, functions.one_plus_exp_minus(lanes, x)))


def _emit_each(lanes: Lanes, buffers: list[Any], counts: list[Any], function: Any) -> None:
    (x,) = buffers

    def row(r: Any, _: list[Any]) -> list[Any]:
        x.store(r, function(x.row(r)))
        return []

    lanes.loop(counts[0], [], row)


exp_rows = buffers_intrinsic(1, 1, _emit_exp)
tanh_rows = buffers_intrinsic(1, 1, _emit_tanh)
sigmoid_rows = buffers_intrinsic(1, 1, _emit_sigmoid)


@njit(nogil=True)
def _exp(x, rows):  # type: ignore[no-untyped-def]
    exp_rows(ONE, x, 0, rows)


@njit(nogil=True)
def _tanh(x, rows):  # type: ignore[no-untyped-def]
    tanh_rows(ONE, x, 0, rows)


@njit(nogil=True)
def _sigmoid(x, rows):  # type: ignore[no-untyped-def]
    sigmoid_rows(ONE, x, 0, rows)


@njit(nogil=True)
def _gelu(x, rows):  # type: ignore[no-untyped-def]
    gelu(ONE, x, 0, rows)


@njit(nogil=True)
def _log_probabilities(sums, out):  # type: ignore[no-untyped-def]
    for k in range(0, len(out), LANES):
        log_probabilities(ONE, sums, 3 * k, out, k)


@njit(nogil=True)
def _gemm_gelu(weights, x, y, tiles, terms):  # type: ignore[no-untyped-def]
    gemm_gelu(ONE, weights, 0, x, 0, y, 0, tiles, terms)


@njit(nogil=True)
def _gemm_then_gelu(weights, x, y, tiles, terms):  # type: ignore[no-untyped-def]
    for tile in range(tiles):
        gemm_set(ONE, weights, tile * terms * TILE_ROWS, x, 0, y, tile * TILE_ROWS * LANES, terms)
    for tile in range(tiles - 1):
        gelu(ONE, y, tile * TILE_ROWS * LANES, TILE_ROWS)


@njit(nogil=True)
def _stream_softmax(z, powers, sums):  # type: ignore[no-untyped-def]
    stream_softmax((0, 0), z, 0, powers, 0, sums, 0, 256, 256)


@njit(nogil=True)
def _steps(start_from, weights, x, y, z, gain, gates, cell, hidden, residual, sums, terms, rows):  # type: ignore[no-untyped-def]
    """Every remaining step once, so that one compilation serves its tests."""
    if start_from == 0:
        gemm_set(ONE, weights, 0, x, 0, y, 0, terms)
        gemm_add(ONE, weights, 0, x, 0, z, 0, terms)
    elif start_from == 1:
        layer_norm(ONE, x, 0, gain, 0, y, 0, rows)
    elif start_from == 2:
        lstm_cell(ONE, gates, 0, cell, 0, hidden, 0, residual, 0, rows, rows + 2)
    else:
        softmax_sums(ONE, x, 0, sums, 0, rows)


def apply(kernel: Any, x: np.ndarray) -> np.ndarray:
    """float64 results of a kernel that works in place on rows of 16."""
    together = ROWS_AT_ONCE * LANES
    padded = np.resize(x.astype(np.float32), -(-len(x) // together) * together)
    kernel(padded, len(padded) // LANES)
    return padded[: len(x)].astype(float)


def grid(low: float, high: float) -> np.ndarray:
    """float32 numbers of [low, high] as float64: evenly spaced and by exponent, subnormal ones and zero included."""
    even = np.linspace(low, high, 400_000)
    powers = np.exp(np.linspace(math.log(1e-42), math.log(max(-low, high)), 200_000))
    points = np.concatenate([even, powers, -powers, [0.0, low, high]])
    return np.clip(points, low, high).astype(np.float32).astype(float)


def relative_errors(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Exact zeros and subnormal numbers (the last bit is then relatively large) count absolutely."""
    return np.abs(actual - exact) / np.maximum(np.abs(exact), 2.0**-126)


def relative_error(actual: np.ndarray, exact: np.ndarray) -> float:
    """The largest one."""
    return float(np.max(relative_errors(actual, exact)))


def test_exp_over_its_whole_range() -> None:
    x = grid(-87.0, 88.0)
    assert np.all(relative_errors(apply(_exp, x), np.exp(x)) < 2.5e-7 + 1.4e-8 * np.abs(x))


def test_exp_is_one_at_zero_and_grows() -> None:
    assert apply(_exp, np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    x = np.sort(grid(-87.0, 88.0))
    steps = np.diff(apply(_exp, x)) / np.exp(x[1:])
    assert steps.min() > -BOUND


def test_tanh_over_its_whole_range() -> None:
    """Near 0 the digits of exp(-2 x) - 1 count, and between table points they are fewer."""
    x = grid(-20.0, 20.0)
    actual, exact = apply(_tanh, x), np.tanh(x)
    assert relative_error(actual, exact) < 3e-6
    assert np.max(np.abs(actual - exact)) < BOUND


def test_tanh_saturates_near_one() -> None:
    far = apply(_tanh, np.array([20.0, 1e30, np.inf, -20.0, -1e30, -np.inf]))
    assert np.all(np.abs(far - [1, 1, 1, -1, -1, -1]) < BOUND)


def test_sigmoid_over_its_whole_range() -> None:
    x = grid(-30.0, 30.0)
    assert np.all(relative_errors(apply(_sigmoid, x), special.expit(x)) < 2.5e-7 + 1.4e-8 * np.abs(x))


def test_sigmoid_outside_its_range_is_zero_or_one_within_1e_13() -> None:
    x = np.array([-np.inf, -1e30, -31.0, 31.0, 1e30, np.inf])
    assert np.max(np.abs(apply(_sigmoid, x) - special.expit(x))) < 1e-13


def test_gelu_over_its_whole_range() -> None:
    """x (1 + erf) / 2: relative to |x| (to the left of -1 the exact value itself is a cancelled difference)."""
    x = grid(-100.0, 100.0)
    exact = 0.5 * x * special.erfc(-x / math.sqrt(2.0))
    assert np.max(np.abs(apply(_gelu, x) - exact) / np.maximum(np.abs(x), 2.0**-126)) < BOUND
    near = x[x > -1.0]
    exact_near = 0.5 * near * special.erfc(-near / math.sqrt(2.0))
    assert relative_error(apply(_gelu, near), exact_near) < 1.2e-6  # the sum 1 + erf(-0.71) = 0.32 loses 1.6 bits


def test_gelu_far_out_is_x_or_nothing() -> None:
    far = np.array([10.0, 1e30, -10.0, -1e30])
    assert np.all(np.abs(apply(_gelu, far) - [10.0, 1e30, 0.0, 0.0]) <= 1e-7 * np.abs(far))


def test_logarithms_of_sums() -> None:
    """FP64 of FP32 numbers: to 1e-13, over all that a sum of 256 powers can be and far beyond."""
    totals = np.exp(np.linspace(math.log(1e-37), math.log(3e38), 160_000)).astype(np.float32)
    totals[:4] = [1.0, 2.0, 256.0, np.float32(np.sqrt(2.0))]
    tops, targets = normal(160_000, seed=1, scale=30.0), normal(160_000, seed=2, scale=30.0)
    actual = np.empty(160_000)
    sums = np.stack([tops, totals, targets]).reshape(3, -1, LANES).transpose(1, 0, 2)
    _log_probabilities(np.ascontiguousarray(sums).ravel(), actual)
    exact = targets.astype(float) - tops.astype(float) - np.log(totals.astype(float))
    np.testing.assert_allclose(actual, exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("total", [np.nan, np.inf])
def test_logarithm_of_an_overflow_is_not_a_number(total: float) -> None:
    sums, actual = np.ones(3 * LANES, np.float32), np.empty(LANES)
    sums[LANES + 3] = total
    _log_probabilities(sums, actual)
    assert np.isnan(actual).tolist() == [lane == 3 for lane in range(LANES)]


@pytest.mark.parametrize("terms", [1, 5, 16, 33, 64])
@pytest.mark.parametrize("tiles", [1, 3])
def test_gemm_with_gelu_has_the_bits_of_both_apart(tiles: int, terms: int) -> None:
    """GELU of all tiles but the last."""
    weights, x = normal(tiles * terms * TILE_ROWS, seed=3), normal(terms * LANES, seed=4)
    together, apart = (np.zeros(tiles * TILE_ROWS * LANES, np.float32) for _ in range(2))
    _gemm_gelu(weights, x, together, tiles, terms)
    _gemm_then_gelu(weights, x, apart, tiles, terms)
    np.testing.assert_array_equal(together, apart)


@pytest.mark.parametrize("kernel", [_exp, _tanh, _sigmoid, _gelu])
def test_not_a_number_stays_so_in_its_lane_alone(kernel: Any) -> None:
    x = np.linspace(-1, 1, LANES)
    clean = apply(kernel, x)
    spoiled = x.copy()
    spoiled[5] = np.nan
    values = apply(kernel, spoiled)
    assert np.isnan(values[5])
    np.testing.assert_array_equal(np.delete(values, 5), np.delete(clean, 5))


def run_steps(which: int, *, terms: int = 1, rows: int = 1, **buffers: np.ndarray) -> None:
    names = ("weights", "x", "y", "z", "gain", "gates", "cell", "hidden", "residual", "sums")
    empty = np.zeros(1, np.float32)
    _steps(which, *(buffers.get(name, empty) for name in names), terms, rows)


def normal(*shape: int, seed: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("terms", [1, 2, 33, 128])
def test_gemm_tiles(terms: int) -> None:
    weights, x, start = normal(terms, TILE_ROWS, seed=1), normal(terms, LANES, seed=2), normal(TILE_ROWS, LANES, seed=3)
    y, z = np.full((TILE_ROWS, LANES), np.nan, np.float32), start.copy()
    flat = {name: array.ravel() for name, array in {"weights": weights, "x": x}.items()}
    y_flat, z_flat = y.ravel(), z.ravel()
    run_steps(0, terms=terms, **flat, y=y_flat, z=z_flat)
    exact = weights.astype(float).T @ x.astype(float)
    size = np.abs(weights.astype(float)).T @ np.abs(x.astype(float))
    # a chain of fused multiply-adds rounds once a term: |error| <= terms 2^-24 sum |w x|
    assert np.all(np.abs(y_flat.reshape(y.shape) - exact) <= terms * 2.0**-24 * size)
    assert np.all(np.abs(z_flat.reshape(y.shape) - exact - start) <= terms * 2.0**-24 * (size + np.abs(start)))


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_layer_norm(offset: float) -> None:
    rows = 37
    x, gain = normal(rows, LANES, seed=4) + np.float32(offset), normal(rows, seed=5)
    out = np.zeros(rows * LANES, np.float32)
    run_steps(1, rows=rows, x=x.ravel(), gain=gain, y=out)
    values = x.astype(float)
    centred = values - values.mean(axis=0)
    exact = centred / np.sqrt((centred**2).mean(axis=0) + 1e-5) * gain[:, None]
    # an offset of 100 costs the digits that float32 spends on it
    np.testing.assert_allclose(out.reshape(rows, LANES), exact, rtol=0, atol=3e-6 if offset == 0.0 else 2e-4)


def test_layer_norm_of_equal_rows_is_zero() -> None:
    rows = 8
    out = np.ones(rows * LANES, np.float32)
    run_steps(1, rows=rows, x=np.full(rows * LANES, 0.5, np.float32), gain=np.ones(rows, np.float32), y=out)
    assert np.all(out == 0.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 100.0])
def test_lstm_cell(scale: float) -> None:
    """Gates lie ``stride`` rows apart; saturated gates included."""
    rows, stride, held = 9, 11, 12  # ``held``: rows rounded up to those treated together
    gates, cell = normal(4 * stride + held - rows, LANES, seed=6, scale=scale), normal(held, LANES, seed=7)
    residual, hidden = normal(held, LANES, seed=8), np.zeros(held * LANES, np.float32)
    new_cell, new_residual = cell.ravel().copy(), residual.ravel().copy()
    run_steps(2, rows=rows, gates=gates.ravel(), cell=new_cell, hidden=hidden, residual=new_residual)
    i, f, g, o = (gates.astype(float)[q * stride : q * stride + rows] for q in range(4))
    c = special.expit(f) * cell[:rows] + special.expit(i) * np.tanh(g)
    h = special.expit(o) * np.tanh(c)
    for actual, exact in ((new_cell, c), (hidden, h), (new_residual, residual[:rows] + h)):
        np.testing.assert_allclose(actual.reshape(held, LANES)[:rows], exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, -100.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_softmax_sums(scale: float, offset: float) -> None:
    """Of logits that may all be negative, too; of texts alone with the bits of the lanes."""
    rows = 256
    z = normal(rows, LANES, seed=9, scale=scale) + np.float32(offset)
    sums = np.zeros(2 * LANES, np.float32)
    run_steps(3, rows=rows, x=z.ravel(), sums=sums)
    values = z.astype(float)
    np.testing.assert_array_equal(sums[:LANES], z.max(axis=0))
    exact = np.exp(values - values.max(axis=0)).sum(axis=0)
    np.testing.assert_allclose(sums[LANES:], exact, rtol=4e-6)
    powers, pairs = np.zeros(2 * rows, np.float32), np.zeros(LANES, np.float32)
    _stream_softmax(np.ascontiguousarray(z[:, :2].T).ravel(), powers, pairs)
    assert pairs[:4].tolist() == [sums[0], sums[LANES], sums[1], sums[LANES + 1]]
    np.testing.assert_allclose(powers.reshape(2, rows).sum(axis=1), exact[:2], rtol=4e-6)


@njit(nogil=True)
def _gather(positions, table, out, blocks):  # type: ignore[no-untyped-def]
    gather_entries(ONE, positions, 0, table, 0, out, 0, blocks)


def test_gathered_rows_are_the_table_entries_transposed() -> None:
    table = np.arange(40 * 48, dtype=np.float32)
    positions = np.array([48 * entry for entry in (3, 0, 39, 7, 7, 12, 1, 2, 38, 20, 21, 22, 5, 30, 31, 9)], np.int32)
    out = np.zeros(32 * LANES, np.float32)
    _gather(positions, table, out, 2)
    expected = np.stack([table[position : position + 32] for position in positions], axis=1)
    np.testing.assert_array_equal(out.reshape(32, LANES), expected)


@njit(nogil=True)
def _mixed_gemm(mix, weights, x, y, terms):  # type: ignore[no-untyped-def]
    gemm_set(mix, weights, 0, x, 0, y, 0, terms)


@pytest.mark.parametrize("directions", [1, 2, 4, 8, 16])
def test_a_lane_of_a_shared_tile_has_the_bits_of_its_direction_alone(directions: int) -> None:
    generator = np.random.default_rng(directions)
    terms = 5
    weights = generator.standard_normal((directions, terms * TILE_ROWS)).astype(np.float32)
    x = generator.standard_normal(terms * LANES).astype(np.float32)
    mixed, alone = (np.zeros(TILE_ROWS * LANES, np.float32) for _ in range(2))
    _mixed_gemm((0,) * directions, np.ascontiguousarray(weights.T).ravel(), x, mixed, terms)
    for direction in range(directions):
        _mixed_gemm(ONE, weights[direction], x, alone, terms)
        lanes = slice(direction, None, directions)
        np.testing.assert_array_equal(mixed.reshape(-1, LANES)[:, lanes], alone.reshape(-1, LANES)[:, lanes])
