"""One expert's forward pass over 16 windows at once, weights packed, the whole time loop in one compiled function.

Block 1 is pre-norm on E[byte] and E is never perturbed, so its input projection is a table of 256 rows, made once per
set of weights (an eighth of the work of the body, saved exactly).  Everything releases the interpreter's
lock; threads split the calls, never a sum, so results do not depend on how many there are.
"""

from typing import no_type_check

import numpy as np
from numba import njit

from thinwire.kernels.compiled import compiled
from thinwire.kernels.expert_shape import VOCABULARY
from thinwire.kernels.lane_layout import BlockOffsets, Sizes
from thinwire.kernels.lane_products import gemm_add, gemm_gelu, gemm_set
from thinwire.kernels.lane_rows import (
    LANES,
    TILE_ROWS,
    gather_entries,
    gelu,
    layer_norm,
    log_probabilities,
    lstm_cell,
    softmax_sums,
)


@njit(nogil=True, inline="always")
@no_type_check
def block_offsets(sizes: Sizes, block: int) -> BlockOffsets:
    start = block * sizes.block_floats
    lstm = start + sizes.gain_pad
    mlp_norm = lstm + 8 * sizes.width_pad * sizes.width
    mlp_up = mlp_norm + sizes.gain_pad
    return BlockOffsets(start, lstm, mlp_norm, mlp_up, mlp_up + sizes.hidden_pad * sizes.width)


@compiled
@no_type_check
def _pack_rows(
    flat: np.ndarray, start: int, rows: int, columns: int, packed: np.ndarray, offset: int, terms: int, first: int
) -> None:
    """Rows of W [rows, columns] into tiles of ``terms`` summed terms, from term ``first`` on."""
    for row in range(rows):
        tile = offset + (row // TILE_ROWS) * terms * TILE_ROWS + first * TILE_ROWS + row % TILE_ROWS
        for k in range(columns):
            packed[tile + k * TILE_ROWS] = flat[start + row * columns + k]


@njit(nogil=True, inline="always")
@no_type_check
def _copy(source: np.ndarray, start: int, target: np.ndarray, first: int, count: int) -> None:
    """As a loop: a slice assignment would have the messages of its errors compiled too, for seconds."""
    for k in range(count):
        target[first + k] = source[start + k]


@compiled
@no_type_check
def pack_weights(flat: np.ndarray, sizes: Sizes, packed: np.ndarray) -> None:
    """theta [M] -> packed tiles. LSTM tiles sum over [input; hidden], 2 d terms."""
    d, d_pad, position = sizes.width, sizes.width_pad, 0
    for block in range(sizes.depth):
        at = block_offsets(sizes, block)
        _copy(flat, position, packed, at.lstm_norm, d)
        position += d
        for half in range(2):
            for gate in range(4):
                target = at.lstm + gate * d_pad * 2 * d
                _pack_rows(flat, position, d, d, packed, target, 2 * d, half * d)
                position += d * d
        _copy(flat, position, packed, at.mlp_norm, d)
        position += d
        _pack_rows(flat, position, sizes.hidden, d, packed, at.mlp_up, d, 0)
        position += sizes.hidden * d
        _pack_rows(flat, position, d, sizes.hidden, packed, at.mlp_down, sizes.hidden, 0)
        position += sizes.hidden * d
    final = sizes.final_norm
    _copy(flat, position, packed, final, d)
    position += d
    if sizes.has_projections:
        _pack_rows(flat, position, d, sizes.embed, packed, sizes.project_in, sizes.embed, 0)
        position += d * sizes.embed
        _pack_rows(flat, position, sizes.embed, d, packed, sizes.project_out, d, 0)


@compiled
@no_type_check
def build_table(
    mix: tuple[int, ...],
    packed: np.ndarray,
    decoder: np.ndarray,
    sizes: Sizes,
    table: np.ndarray,
    scratch: np.ndarray,
) -> None:
    """For every byte and direction: the residual stream's start [d_pad], then block 1's input part of the gates.

    Entry (byte, direction) begins at ``(byte * directions + direction) * entry_floats``.
    """
    d, d_pad, embed, directions = sizes.width, sizes.width_pad, sizes.embed, len(mix)
    at = block_offsets(sizes, 0)
    gates = d_pad * LANES
    normal = (sizes.entry_floats + sizes.hidden_pad) * LANES
    embedded = normal + scratch_rows(sizes) * LANES
    per_group = LANES // directions
    for first in range(0, VOCABULARY, per_group):
        target = embedded if sizes.has_projections else 0
        for r in range(embed):
            for lane in range(LANES):
                byte = first + lane // directions
                scratch[target + r * LANES + lane] = decoder[(VOCABULARY + byte) * embed + r]
        if sizes.has_projections:
            for tile in range(d_pad // TILE_ROWS):
                weights = sizes.project_in + tile * embed * TILE_ROWS
                gemm_set(mix, packed, weights, scratch, embedded, scratch, tile * TILE_ROWS * LANES, embed)
        layer_norm(mix, scratch, 0, packed, at.lstm_norm, scratch, normal, d)
        for tile in range(4 * d_pad // TILE_ROWS):
            # The tile's first d terms are the input weights; its last d, the hidden ones, wait for the time loop.
            weights = at.lstm + tile * 2 * d * TILE_ROWS
            gemm_set(mix, packed, weights, scratch, normal, scratch, gates + tile * TILE_ROWS * LANES, d)
        for lane in range(LANES):
            entry = (first * directions + lane) * sizes.entry_floats
            for r in range(5 * d_pad):
                table[entry + r] = scratch[r * LANES + lane]


@compiled
@no_type_check
def forward_lanes(
    mix: tuple[int, ...],
    packed: np.ndarray,
    table: np.ndarray,
    decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    first_target: int,
    state: np.ndarray,
    scratch: np.ndarray,
    hidden_out: np.ndarray,
    log_probability: np.ndarray,
) -> None:
    """Log-probabilities of the next byte on 16 lanes.

    Args:
        mix: as long as the number of directions that share the lanes; lane l belongs to direction l % len(mix).
        packed, table: of ``pack_weights`` (directions interleaved) and ``build_table``.
        decoder: of ``pack_decoder``.
        tokens: uint8 [T + 1, 16].
        first_target: positions before it get no logits, and their rows of ``log_probability`` stay as they were.
        state: float32, hidden and cell rows of every block; zero at the start of a window, carried on otherwise.
        scratch: float32 workspace.
        hidden_out: float32 [T, d_E, 16] to receive the decoder's inputs, or [0, 0, 0].
        log_probability: float64 [T, 16], log p(byte t + 1 | bytes 0..t).
    """
    d, d_pad, embed, directions = sizes.width, sizes.width_pad, sizes.embed, len(mix)
    shared = (0,)
    residual, gates = 0, d_pad * LANES
    mlp = sizes.entry_floats * LANES
    normal = mlp + sizes.hidden_pad * LANES
    projected = normal + scratch_rows(sizes) * LANES
    logits = projected + scratch_rows(sizes) * LANES
    sums = logits + VOCABULARY * LANES
    entries = np.empty(LANES, np.int32)
    for t in range(tokens.shape[0] - 1):
        for lane in range(LANES):
            entries[lane] = (tokens[t, lane] * directions + lane % directions) * sizes.entry_floats
        gather_entries(shared, entries, 0, table, 0, scratch, residual, sizes.entry_floats // LANES)
        for block in range(sizes.depth):
            at = block_offsets(sizes, block)
            # A block's state: d rows of normalised input, d rows of hidden state right behind, then d_pad cell rows.
            inputs = block * 3 * d_pad * LANES
            hidden = inputs + d * LANES
            cell = inputs + 2 * d_pad * LANES
            if block == 0:
                for tile in range(4 * d_pad // TILE_ROWS):
                    weights = at.lstm + (tile * 2 * d + d) * TILE_ROWS
                    gemm_add(mix, packed, weights, state, hidden, scratch, gates + tile * TILE_ROWS * LANES, d)
            else:
                layer_norm(mix, scratch, residual, packed, at.lstm_norm, state, inputs, d)
                for tile in range(4 * d_pad // TILE_ROWS):
                    weights = at.lstm + tile * 2 * d * TILE_ROWS
                    gemm_set(mix, packed, weights, state, inputs, scratch, gates + tile * TILE_ROWS * LANES, 2 * d)
            lstm_cell(shared, scratch, gates, state, cell, state, hidden, scratch, residual, d, d_pad)
            layer_norm(mix, scratch, residual, packed, at.mlp_norm, scratch, normal, d)
            gemm_gelu(mix, packed, at.mlp_up, scratch, normal, scratch, mlp, sizes.hidden_pad // TILE_ROWS, d)
            gelu(shared, scratch, mlp + (sizes.hidden_pad - TILE_ROWS) * LANES, TILE_ROWS)
            for tile in range(d_pad // TILE_ROWS):
                weights = at.mlp_down + tile * sizes.hidden * TILE_ROWS
                output = residual + tile * TILE_ROWS * LANES
                gemm_add(mix, packed, weights, scratch, mlp, scratch, output, sizes.hidden)
        if t < first_target and hidden_out.shape[0] == 0:
            continue
        layer_norm(mix, scratch, residual, packed, sizes.final_norm, scratch, normal, d)
        source = normal
        if sizes.has_projections:
            source = projected
            for tile in range(sizes.embed_pad // TILE_ROWS):
                weights = sizes.project_out + tile * d * TILE_ROWS
                gemm_set(mix, packed, weights, scratch, normal, scratch, projected + tile * TILE_ROWS * LANES, d)
        if hidden_out.shape[0] > 0:
            for r in range(embed):
                for lane in range(LANES):
                    hidden_out[t, r, lane] = scratch[source + r * LANES + lane]
        if t < first_target:
            continue
        for tile in range(VOCABULARY // TILE_ROWS):
            weights = tile * embed * TILE_ROWS
            gemm_set(shared, decoder, weights, scratch, source, scratch, logits + tile * TILE_ROWS * LANES, embed)
        for lane in range(LANES):
            scratch[sums + 2 * LANES + lane] = scratch[logits + np.int64(tokens[t + 1, lane]) * LANES + lane]
        softmax_sums(shared, scratch, logits, scratch, sums, VOCABULARY)
        log_probabilities(shared, scratch, sums, log_probability, t * LANES)


@njit(nogil=True, inline="always")
@no_type_check
def scratch_rows(sizes: Sizes) -> int:
    return max(sizes.width_pad, sizes.embed_pad)
