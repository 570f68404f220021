"""Where do an expert's weights lie once packed for the lanes?  Tiles of R rows, so that one pointer walks a GEMM.

A matrix W [O, K] becomes ceil(O/R) tiles; tile t holds W[t R + r, k] at ``k R + r`` and zeros past row O.  Gates keep
their four blocks apart: each is padded to whole tiles.  Legend: d width, R tile rows, a padded size ends in ``_pad``.
"""

from typing import NamedTuple

import numpy as np

from thinwire.kernels.expert_shape import MLP_FACTOR, NUM_GATES, VOCABULARY, ExpertShape
from thinwire.kernels.lane_rows import LANES, TILE_ROWS

CACHE_LINE_FLOATS = 16
SCORE_ROWS = 3
"""Behind a position's logits: their maximum, the sum of exp(logit - maximum), the target's logit."""


class Sizes(NamedTuple):
    """Every size the compiled code needs, as plain integers (Numba reads a named tuple by field).

    Attributes:
        record_normal: the row of a position's record where normalised inputs begin (``wide_workspace``).
    """

    width: int
    width_pad: int
    hidden: int
    hidden_pad: int
    embed: int
    embed_pad: int
    depth: int
    has_projections: int
    num_parameters: int
    gain_pad: int
    block_floats: int
    final_norm: int
    project_out: int
    project_in: int
    packed_floats: int
    entry_floats: int
    state_floats: int
    scratch_floats: int
    record_normal: int


class BlockOffsets(NamedTuple):
    """Offsets of one block inside the packed weights."""

    lstm_norm: int
    lstm: int
    mlp_norm: int
    mlp_up: int
    mlp_down: int


def pad(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def sizes_of(shape: ExpertShape) -> Sizes:
    """The padded sizes of ``shape`` on this machine."""
    d, hidden, embed = shape.width, MLP_FACTOR * shape.width, shape.embed_width
    d_pad, hidden_pad, embed_pad = (pad(n, TILE_ROWS) for n in (d, hidden, embed))
    gain_pad = pad(d, CACHE_LINE_FLOATS)
    block = 2 * gain_pad + NUM_GATES * d_pad * 2 * d + hidden_pad * d + d_pad * hidden
    final_norm = shape.depth * block
    project_out = final_norm + gain_pad
    project_in = project_out + embed_pad * d
    entry = pad((1 + NUM_GATES) * d_pad, LANES)
    state = shape.depth * (2 * d_pad + d_pad) * LANES
    rows = entry + hidden_pad + 2 * max(d_pad, embed_pad) + VOCABULARY + SCORE_ROWS
    return Sizes(
        width=d,
        width_pad=d_pad,
        hidden=hidden,
        hidden_pad=hidden_pad,
        embed=embed,
        embed_pad=embed_pad,
        depth=shape.depth,
        has_projections=int(shape.has_projections),
        num_parameters=shape.num_parameters,
        gain_pad=gain_pad,
        block_floats=block,
        final_norm=final_norm,
        project_out=project_out,
        project_in=project_in,
        packed_floats=pad(project_in + d_pad * embed, CACHE_LINE_FLOATS),
        entry_floats=entry,
        state_floats=pad(state, CACHE_LINE_FLOATS),
        scratch_floats=rows * LANES,
        record_normal=max(entry, d_pad + embed_pad),
    )


def aligned_floats(count: int) -> np.ndarray:
    """float32 [count] of zeros that starts on a cache line, so that no vector load straddles two."""
    raw = np.zeros(count + CACHE_LINE_FLOATS, np.float32)
    start = (-raw.ctypes.data // 4) % CACHE_LINE_FLOATS
    return raw[start : start + count]


def pack_decoder(decoder: np.ndarray, *, sizes: Sizes) -> np.ndarray:
    """E [256, d_E] as tiles for the output GEMM, followed by E itself for the input table."""
    packed = aligned_floats(2 * VOCABULARY * sizes.embed)
    half = VOCABULARY * sizes.embed
    packed[:half] = decoder.reshape(-1, TILE_ROWS, sizes.embed).transpose(0, 2, 1).ravel()
    packed[half:] = decoder.ravel()
    return packed


def directions_per_group(num_windows: int) -> int:
    """How many directions share the 16 lanes, so that a batch smaller than 16 leaves none idle."""
    directions = 1
    while 2 * directions * num_windows <= LANES:
        directions *= 2
    return directions


def lane_tokens(windows: np.ndarray, *, directions: int = 1) -> np.ndarray:
    """uint8 [B, T + 1] -> uint8 [groups, T + 1, 16]: lane w * directions + j reads window w for direction j.

    Lanes past B repeat the last window.
    """
    num_windows, length = windows.shape
    per_group = LANES // directions
    padded = np.concatenate([windows, np.repeat(windows[-1:], -num_windows % per_group, axis=0)])
    lanes = np.repeat(padded, directions, axis=0)
    return np.ascontiguousarray(lanes.reshape(-1, LANES, length).transpose(0, 2, 1))
