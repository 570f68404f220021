"""One wide expert's forward pass, layer by layer: each weight is read once for many positions.

A wide expert's weights exceed the cache, so that reading all of them for every byte, as ``lane_forward`` does, leaves
the arithmetic waiting. Here a chunk of input bytes passes each layer before the next begins. Only the LSTM's hidden
part is sequential, and there all groups of lanes take a step together. The tile, the pointwise steps and the order of
every sum are those of ``lane_forward``, so the bits are the same, whatever the chunks.

Legend: position t * groups + g is input byte t of lane group g; its record is described in ``wide_workspace``.
"""

from typing import no_type_check

import numpy as np

from thinwire.kernels.compiled import compiled
from thinwire.kernels.expert_shape import VOCABULARY
from thinwire.kernels.lane_forward import block_offsets
from thinwire.kernels.lane_layout import Sizes
from thinwire.kernels.lane_products import gemm_add, gemm_set
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

WEIGHTS_AT_ONCE = 256
"""Summed terms of a tile taken together, times directions: 16 KiB of weights stay in the first-level cache."""
POSITIONS_AT_ONCE = 16
"""Positions that a tile serves before the next tile: their inputs stay in the second-level cache."""


@compiled
@no_type_check
def gemm_positions(
    mix: tuple[int, ...],
    packed: np.ndarray,
    weights: int,
    tile_floats: int,
    num_tiles: int,
    x: np.ndarray,
    x_start: int,
    x_stride: int,
    y: np.ndarray,
    y_start: int,
    y_stride: int,
    count: int,
    terms: int,
    accumulate: int,
) -> None:
    """y_p = W x_p, or y_p += W x_p where ``accumulate``, for ``count`` positions p; sums over the terms in order."""
    terms_at_once = WEIGHTS_AT_ONCE // len(mix)
    for first in range(0, count, POSITIONS_AT_ONCE):
        last = min(first + POSITIONS_AT_ONCE, count)
        for tile in range(num_tiles):
            for term in range(0, terms, terms_at_once):
                num = min(terms_at_once, terms - term)
                w = weights + tile * tile_floats + term * TILE_ROWS
                for p in range(first, last):
                    source = x_start + p * x_stride + term * LANES
                    target = y_start + p * y_stride + tile * TILE_ROWS * LANES
                    if term > 0 or accumulate > 0:
                        gemm_add(mix, packed, w, x, source, y, target, num)
                    else:
                        gemm_set(mix, packed, w, x, source, y, target, num)


@compiled
@no_type_check
def _embed(
    num_directions: int,
    table: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    first: int,
    steps: int,
    activations: np.ndarray,
    record: int,
) -> None:
    """The residual stream and the first block's input part of the gates, read from the table of 256 bytes."""
    shared = (0,)
    groups = tokens.shape[0]
    entries = np.empty(LANES, np.int32)
    for t in range(steps):
        for g in range(groups):
            for lane in range(LANES):
                entry = tokens[g, first + t, lane] * num_directions + lane % num_directions
                entries[lane] = entry * sizes.entry_floats
            at = (t * groups + g) * record
            gather_entries(shared, entries, 0, table, 0, activations, at, sizes.entry_floats // LANES)


@compiled
@no_type_check
def _lstm(
    mix: tuple[int, ...],
    packed: np.ndarray,
    sizes: Sizes,
    block: int,
    groups: int,
    steps: int,
    state: np.ndarray,
    activations: np.ndarray,
    record: int,
) -> None:
    """Residual += LSTM(layer norm of the residual); the first block's input part is there already."""
    shared = (0,)
    d, d_pad = sizes.width, sizes.width_pad
    at = block_offsets(sizes, block)
    gates, normal = d_pad * LANES, sizes.record_normal * LANES
    tiles, tile_floats = 4 * d_pad // TILE_ROWS, 2 * d * TILE_ROWS
    positions = steps * groups
    a = activations
    if block > 0:
        for p in range(positions):
            layer_norm(mix, a, p * record, packed, at.lstm_norm, a, p * record + normal, d)
        gemm_positions(mix, packed, at.lstm, tile_floats, tiles, a, normal, record, a, gates, record, positions, d, 0)
    hidden_weights = at.lstm + d * TILE_ROWS
    stride = 2 * d_pad * LANES
    start = block * groups * stride
    for t in range(steps):
        step = t * groups * record
        gemm_positions(
            mix, packed, hidden_weights, tile_floats, tiles, state, start, stride, a, step + gates, record, groups, d, 1
        )
        for g in range(groups):
            hidden, residual = start + g * stride, step + g * record
            cell = hidden + d_pad * LANES
            lstm_cell(shared, a, residual + gates, state, cell, state, hidden, a, residual, d, d_pad)


@compiled
@no_type_check
def _mlp(
    mix: tuple[int, ...],
    packed: np.ndarray,
    sizes: Sizes,
    block: int,
    positions: int,
    activations: np.ndarray,
    record: int,
) -> None:
    """Residual += MLP(layer norm of the residual); inner units take the place of the gates."""
    shared = (0,)
    d, hidden = sizes.width, sizes.hidden
    at = block_offsets(sizes, block)
    inner, normal = sizes.width_pad * LANES, sizes.record_normal * LANES
    up_tiles, down_tiles = sizes.hidden_pad // TILE_ROWS, sizes.width_pad // TILE_ROWS
    a = activations
    for p in range(positions):
        layer_norm(mix, a, p * record, packed, at.mlp_norm, a, p * record + normal, d)
    gemm_positions(
        mix, packed, at.mlp_up, d * TILE_ROWS, up_tiles, a, normal, record, a, inner, record, positions, d, 0
    )
    for p in range(positions):
        gelu(shared, a, p * record + inner, hidden)
    gemm_positions(
        mix, packed, at.mlp_down, hidden * TILE_ROWS, down_tiles, a, inner, record, a, 0, record, positions, hidden, 1
    )


@compiled
@no_type_check
def _decode(
    mix: tuple[int, ...],
    packed: np.ndarray,
    decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    first: int,
    steps: int,
    first_target: int,
    activations: np.ndarray,
    record: int,
    scratch: np.ndarray,
    hidden_out: np.ndarray,
    log_probability: np.ndarray,
) -> None:
    """Last norm, projection, logits of one position at a time in ``scratch``, log-probability of the next byte."""
    shared = (0,)
    d, embed, groups = sizes.width, sizes.embed, tokens.shape[0]
    positions, sums = steps * groups, VOCABULARY * LANES
    a, source = activations, sizes.record_normal * LANES
    for p in range(positions):
        layer_norm(mix, a, p * record, packed, sizes.final_norm, a, p * record + source, d)
    if sizes.has_projections:
        normal, source = source, sizes.width_pad * LANES
        tiles = sizes.embed_pad // TILE_ROWS
        gemm_positions(
            mix, packed, sizes.project_out, d * TILE_ROWS, tiles, a, normal, record, a, source, record, positions, d, 0
        )
    for p in range(positions):
        t, g, h = first + p // groups, p % groups, p * record + source
        if hidden_out.shape[0] > 0:
            for r in range(embed):
                for lane in range(LANES):
                    hidden_out[g, t, r, lane] = a[h + r * LANES + lane]
        if t < first_target:
            continue
        for tile in range(VOCABULARY // TILE_ROWS):
            gemm_set(shared, decoder, tile * embed * TILE_ROWS, a, h, scratch, tile * TILE_ROWS * LANES, embed)
        for lane in range(LANES):
            scratch[sums + 2 * LANES + lane] = scratch[np.int64(tokens[g, t + 1, lane]) * LANES + lane]
        softmax_sums(shared, scratch, 0, scratch, sums, VOCABULARY)
        log_probabilities(shared, scratch, sums, log_probability, (g * log_probability.shape[1] + t) * LANES)


@compiled
@no_type_check
def forward_wide(
    mix: tuple[int, ...],
    packed: np.ndarray,
    table: np.ndarray,
    decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    first_target: int,
    steps: int,
    state: np.ndarray,
    activations: np.ndarray,
    scratch: np.ndarray,
    hidden_out: np.ndarray,
    log_probability: np.ndarray,
) -> None:
    """Log-probabilities of the next byte on groups of 16 lanes, from a zero state.

    Args:
        mix: as long as the number of directions that share the lanes; lane l belongs to direction l % len(mix).
        packed, table: of ``pack_weights`` (directions interleaved) and ``build_table``.
        decoder: of ``pack_decoder``.
        tokens: uint8 [groups, T + 1, 16], no more groups than the workspace was made for.
        first_target: positions before it get no logits, and their rows of ``log_probability`` stay as they were.
        steps: input bytes a chunk.
        state, activations, scratch: float32 workspace (``WideWorkspace``).
        hidden_out: float32 [groups, T, d_E, 16] to receive the decoder's inputs, or [0, 0, 0, 0].
        log_probability: float64 [groups, T, 16], log p(byte t + 1 | bytes 0..t).
    """
    groups, length = tokens.shape[0], tokens.shape[1] - 1
    record = (sizes.record_normal + sizes.width_pad) * LANES
    state[:] = 0.0
    for first in range(0, length, steps):
        num = min(steps, length - first)
        _embed(len(mix), table, sizes, tokens, first, num, activations, record)
        for block in range(sizes.depth):
            _lstm(mix, packed, sizes, block, groups, num, state, activations, record)
            _mlp(mix, packed, sizes, block, num * groups, activations, record)
        if first + num <= first_target and hidden_out.shape[0] == 0:
            continue
        _decode(
            mix,
            packed,
            decoder,
            sizes,
            tokens,
            first,
            num,
            first_target,
            activations,
            record,
            scratch,
            hidden_out,
            log_probability,
        )
