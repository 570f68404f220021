"""One expert's forward pass over one, two or four texts: rows of its matrices in the lanes, not windows.

The packed weights and the table are those of ``lane_forward``, and so are the bits of every result.  A stream's state
is one row of floats, so texts may be put together anew at every call.
"""

from typing import NamedTuple, no_type_check

import numpy as np
from numba import njit

from thinwire.kernels.compiled import compiled
from thinwire.kernels.expert_shape import VOCABULARY
from thinwire.kernels.lane_forward import block_offsets
from thinwire.kernels.lane_layout import SCORE_ROWS, Sizes, aligned_floats, pad
from thinwire.kernels.lane_rows import LANES, ROWS_AT_ONCE, TILE_ROWS, gelu, log_probabilities, lstm_cell
from thinwire.kernels.routed_scores.stream_rows import copy_tiles, gemm_1, gemm_2, gemm_4, stream_norm, stream_softmax

STREAMS_TOGETHER = (4, 2, 1)
"""How many texts of one expert a pass may read: its weights are then loaded once for all of them."""
ROUND = LANES * ROWS_AT_ONCE
"""Pointwise steps treat this many numbers at a time; every buffer ends on such a boundary."""


class Rooms(NamedTuple):
    """Floats of one stream's [d], [4 d] and [d_E] rows, and where S streams' buffers begin in the scratch."""

    width: int
    hidden: int
    embed: int
    block: int
    gates: int
    normal: int
    mlp: int
    projected: int
    logits: int
    powers: int
    sums: int
    scores: int
    states: int
    floats: int


@njit(nogil=True, inline="always")
@no_type_check
def _up(count: int, multiple: int) -> int:
    return (count + multiple - 1) // multiple * multiple


@compiled
@no_type_check
def rooms_of(sizes: Sizes, num_streams: int) -> Rooms:
    """The scratch: residual stream, gates, normalised rows, inner units, projection, logits, their sums, states."""
    width, hidden, embed = _up(sizes.width_pad, LANES), _up(sizes.hidden_pad, LANES), _up(sizes.embed_pad, LANES)
    block = _up(num_streams * width, ROUND)
    gates = block
    normal = gates + 4 * block
    mlp = normal + block
    projected = mlp + _up(num_streams * hidden, ROUND)
    logits = projected + _up(num_streams * embed, ROUND)
    powers = logits + num_streams * VOCABULARY
    sums = powers + num_streams * VOCABULARY
    scores = sums + ROUND
    states = scores + _up(SCORE_ROWS * LANES, ROUND)
    floats = states + 2 * sizes.depth * block
    return Rooms(
        width, hidden, embed, block, gates, normal, mlp, projected, logits, powers, sums, scores, states, floats
    )


def state_floats(sizes: Sizes) -> int:
    """Floats of one stream's state: hidden and cell rows of every block."""
    return 2 * sizes.depth * pad(sizes.width_pad, LANES)


def stream_scratch(sizes: Sizes) -> np.ndarray:
    """float32 workspace of one thread, for as many streams as go together."""
    return aligned_floats(rooms_of(sizes, max(STREAMS_TOGETHER)).floats)


@njit(nogil=True)
@no_type_check
def _product(streams, packed, weights, tile_floats, scratch, x, x_stride, y, y_stride, num_terms, num_tiles, is_new):
    """y [S, rows] (+)= W x [S, num_terms], the tiles of W ``tile_floats`` apart."""
    tile = 0
    while num_tiles - tile >= 4:
        w, out = weights + tile * tile_floats, y + tile * TILE_ROWS
        gemm_4(
            streams, packed, w, scratch, x, scratch, out, num_terms, tile_floats, x_stride, y_stride, TILE_ROWS, is_new
        )
        tile += 4
    while num_tiles - tile >= 2:
        w, out = weights + tile * tile_floats, y + tile * TILE_ROWS
        gemm_2(
            streams, packed, w, scratch, x, scratch, out, num_terms, tile_floats, x_stride, y_stride, TILE_ROWS, is_new
        )
        tile += 2
    if num_tiles > tile:
        w, out = weights + tile * tile_floats, y + tile * TILE_ROWS
        gemm_1(
            streams, packed, w, scratch, x, scratch, out, num_terms, tile_floats, x_stride, y_stride, TILE_ROWS, is_new
        )


@njit(nogil=True)
@no_type_check
def _gate_products(streams, packed, weights, sizes, rooms, scratch, x, is_new):
    """gates (+)= half of the LSTM's matrix times x [S, d]: one tile of each of the four gates at a time."""
    d, per_tile = sizes.width, 2 * sizes.width * TILE_ROWS
    tiles = sizes.width_pad // TILE_ROWS
    for tile in range(tiles):
        w, out = weights + tile * per_tile, rooms.gates + tile * TILE_ROWS
        gemm_4(
            streams,
            packed,
            w,
            scratch,
            x,
            scratch,
            out,
            d,
            tiles * per_tile,
            rooms.width,
            rooms.width,
            rooms.block,
            is_new,
        )


@compiled
@no_type_check
def forward_streams(
    streams: tuple[int, ...],
    packed: np.ndarray,
    table: np.ndarray,
    decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    first_target: int,
    states: np.ndarray,
    scratch: np.ndarray,
    log_probability: np.ndarray,
) -> None:
    """Log-probabilities of the next byte on S texts.

    Args:
        streams: a tuple of S numbers; its length alone matters, and the compiler knows it.
        packed, table, decoder: as in ``forward_lanes``, one set of weights.
        tokens: uint8 [S, T + 1].
        first_target: positions before it get no logits, and their columns of ``log_probability`` stay as they were.
        states: float32 [S, state_floats], zero at the start of a window; carried on.
        scratch: of ``stream_scratch``. Afterwards its rows ``powers`` and ``sums`` hold, for the last position,
            exp(logit - top), top and the sum of the former (``rooms_of``).
        log_probability: float64 [S, T], log p(byte t + 1 | bytes 0..t).
    """
    num_streams, d, d_pad = len(streams), sizes.width, sizes.width_pad
    rooms = rooms_of(sizes, num_streams)
    width, block, one, scores = rooms.width, rooms.block, (0,), np.empty(LANES)
    for s in range(num_streams):
        for part in range(2 * sizes.depth):
            for r in range(width):
                scratch[rooms.states + part * block + s * width + r] = states[s, part * width + r]
    for t in range(tokens.shape[1] - 1):
        for s in range(num_streams):
            entry = np.int64(tokens[s, t]) * sizes.entry_floats
            for part in range(5):  # the residual stream's start, then block 1's input part of the four gates
                start, goal = entry + part * d_pad, part * block + s * width
                copy_tiles(one, table, start, scratch, goal, d_pad // TILE_ROWS)
        for number in range(sizes.depth):
            at = block_offsets(sizes, number)
            hidden = rooms.states + 2 * number * block
            if number > 0:
                stream_norm(streams, scratch, 0, packed, at.lstm_norm, scratch, rooms.normal, d, width)
                _gate_products(streams, packed, at.lstm, sizes, rooms, scratch, rooms.normal, 1)
            _gate_products(streams, packed, at.lstm + d * TILE_ROWS, sizes, rooms, scratch, hidden, 0)
            rows = (num_streams * width) // LANES
            lstm_cell(
                one, scratch, rooms.gates, scratch, hidden + block, scratch, hidden, scratch, 0, rows, block // LANES
            )
            stream_norm(streams, scratch, 0, packed, at.mlp_norm, scratch, rooms.normal, d, width)
            inner, outer = sizes.hidden_pad // TILE_ROWS, d_pad // TILE_ROWS
            _product(
                streams,
                packed,
                at.mlp_up,
                d * TILE_ROWS,
                scratch,
                rooms.normal,
                width,
                rooms.mlp,
                rooms.hidden,
                d,
                inner,
                1,
            )
            gelu(one, scratch, rooms.mlp, num_streams * rooms.hidden // LANES)
            down = sizes.hidden * TILE_ROWS
            _product(
                streams,
                packed,
                at.mlp_down,
                down,
                scratch,
                rooms.mlp,
                rooms.hidden,
                0,
                width,
                sizes.hidden,
                outer,
                0,
            )
        if t < first_target:
            continue
        stream_norm(streams, scratch, 0, packed, sizes.final_norm, scratch, rooms.normal, d, width)
        source, source_stride = rooms.normal, width
        if sizes.has_projections:
            source, source_stride = rooms.projected, rooms.embed
            tiles = sizes.embed_pad // TILE_ROWS
            _product(
                streams,
                packed,
                sizes.project_out,
                d * TILE_ROWS,
                scratch,
                rooms.normal,
                width,
                rooms.projected,
                rooms.embed,
                d,
                tiles,
                1,
            )
        embed, tiles = sizes.embed, VOCABULARY // TILE_ROWS
        per_tile = embed * TILE_ROWS
        _product(
            streams,
            decoder,
            0,
            per_tile,
            scratch,
            source,
            source_stride,
            rooms.logits,
            VOCABULARY,
            embed,
            tiles,
            1,
        )
        stream_softmax(
            streams, scratch, rooms.logits, scratch, rooms.powers, scratch, rooms.sums, VOCABULARY, VOCABULARY
        )
        for s in range(num_streams):
            scratch[rooms.scores + s] = scratch[rooms.sums + 2 * s]
            scratch[rooms.scores + LANES + s] = scratch[rooms.sums + 2 * s + 1]
            target = rooms.logits + s * VOCABULARY + np.int64(tokens[s, t + 1])
            scratch[rooms.scores + 2 * LANES + s] = scratch[target]
        log_probabilities(one, scratch, rooms.scores, scores, 0)
        for s in range(num_streams):
            log_probability[s, t] = scores[s]
    for s in range(num_streams):
        for part in range(2 * sizes.depth):
            for r in range(width):
                states[s, part * width + r] = scratch[rooms.states + part * block + s * width + r]
