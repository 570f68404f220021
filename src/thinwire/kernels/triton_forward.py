"""How does one program of a GPU read a tile of windows with one set of weights?  The time loop, fused.

One program (a CTA) holds ROWS windows and walks all their bytes.  Everything a step needs stays on the chip: states and
activations in registers, weights as right factors [d, d] loaded before the loop (RESIDENT: Triton keeps them in shared
memory for wgmma, in registers for the smaller matrix instructions).  An expert too large for that has its tiles read
again from the program's copy at every step, out of the L2 cache.  With four gates and four quarters of the MLP as
separate products of [ROWS, d] by [d, d], gates of one unit meet in one thread, an activation is at once the next left
factor, and a row's sums (norms, softmax) lie within a quarter warp: almost nothing is exchanged between warps.

The first block's input is E[byte], which takes 256 values, so its norm and its projection by the LSTM's input weights
are a table of 256 rows per set of weights (1/8 of the body's work saved, exactly): float32 [256, 5 PADDED], the gates
i, f, g, o and the residual x itself.  A program writes its table before the loop and gathers ROWS rows of it a step; it
lies in the L2 cache.

Arithmetic, d = 32, D = 2: weights in the loop 28,672 + 8,192 (decoder) floats = 147 KB of the 227 KB of an H100's or
H200's shared memory, either as FP32 or as two halves each (``fp16x3``); ``tf32x3`` would need twice that.  A step of
64 windows is 64 x 36,864 = 2.36M multiply-adds: 18,432 cycles of one SM's FP32 units, 3,456 of its matrix unit at
``fp16x3`` (2,048 half-precision multiply-adds a cycle, three products), and about 74,000 special functions (exp,
reciprocal; 16 a cycle) = 4,600 cycles.
"""

from typing import no_type_check

import triton
import triton.language as tl

from thinwire.kernels import expert_shape
from thinwire.kernels.triton_parts import factor, gelu, layer_norm, product, sigmoid, tanh, transposed_tile

VOCABULARY = tl.constexpr(expert_shape.VOCABULARY)
VOCABULARY_TILE = tl.constexpr(64)
ENTRY = tl.constexpr(5)


@triton.jit
@no_type_check
def gain_at(copy, start, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    return tl.load(copy + start + columns, mask=columns < WIDTH, other=0.0)


@triton.jit
@no_type_check
def block_start(block: tl.constexpr, WIDTH: tl.constexpr):
    """First weight of a block (``ExpertShape.slots``): norm, input, hidden, norm, up, down."""
    return block * (16 * WIDTH * WIDTH + 2 * WIDTH)


@triton.jit
@no_type_check
def build_table(
    copy,
    decoder,
    table,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    EMBED: tl.constexpr,
    PADDED: tl.constexpr,
    EMBED_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """table [256, 5 PADDED]: the first block's gates before the recurrent part, and its input x, for every byte."""
    columns, embed_columns = tl.arange(0, PADDED)[None, :], tl.arange(0, EMBED_PADDED)[None, :]
    gain = gain_at(copy, 0, WIDTH, PADDED)
    for first in range(0, VOCABULARY, ROWS):
        bytes_ = (first + tl.arange(0, ROWS))[:, None]
        x = tl.load(decoder + bytes_ * EMBED + embed_columns, mask=embed_columns < EMBED, other=0.0)
        if WIDTH != EMBED:
            project_in = copy + block_start(DEPTH, WIDTH) + WIDTH
            weight = factor(transposed_tile(project_in, EMBED, WIDTH, EMBED, PADDED, EMBED_PADDED), PRECISION)
            x = product(x, weight, tl.zeros((ROWS, PADDED), tl.float32), PRECISION)
        entries = table + bytes_ * (ENTRY * PADDED) + columns
        tl.store(entries + 4 * PADDED, x)
        normal = layer_norm(x, gain, WIDTH, PADDED)
        for gate in tl.static_range(4):
            rows = copy + WIDTH + gate * WIDTH * WIDTH
            weight = factor(transposed_tile(rows, WIDTH, WIDTH, WIDTH, PADDED, PADDED), PRECISION)
            tl.store(entries + gate * PADDED, product(normal, weight, tl.zeros((ROWS, PADDED), tl.float32), PRECISION))


@triton.jit
@no_type_check
def square_factors(matrix, stride, step, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr):
    """Four [d, d] factors whose first weights lie ``step`` apart: the gates of a projection, or quarters of the MLP."""
    one = factor(transposed_tile(matrix, stride, WIDTH, WIDTH, PADDED, PADDED), PRECISION)
    two = factor(transposed_tile(matrix + step, stride, WIDTH, WIDTH, PADDED, PADDED), PRECISION)
    three = factor(transposed_tile(matrix + 2 * step, stride, WIDTH, WIDTH, PADDED, PADDED), PRECISION)
    four = factor(transposed_tile(matrix + 3 * step, stride, WIDTH, WIDTH, PADDED, PADDED), PRECISION)
    return one, two, three, four


@triton.jit
@no_type_check
def load_block(copy, block: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr):
    """The resident factors of one block: hidden, up, down, input; the first block's input is in the table instead."""
    SQUARE: tl.constexpr = WIDTH * WIDTH
    start = copy + block_start(block, WIDTH)
    hidden = square_factors(start + WIDTH + 4 * SQUARE, WIDTH, SQUARE, WIDTH, PADDED, PRECISION)
    up = square_factors(start + 2 * WIDTH + 8 * SQUARE, WIDTH, SQUARE, WIDTH, PADDED, PRECISION)
    down = square_factors(start + 2 * WIDTH + 12 * SQUARE, 4 * WIDTH, WIDTH, WIDTH, PADDED, PRECISION)
    if block == 0:
        return hidden, up, down
    else:  # noqa: RET505 (Triton wants both branches)
        inputs = square_factors(start + WIDTH, WIDTH, SQUARE, WIDTH, PADDED, PRECISION)
        return hidden, up, down, inputs


@triton.jit
@no_type_check
def add_product(
    a,
    kept,
    KIND: tl.constexpr,
    part: tl.constexpr,
    matrix,
    stride,
    step,
    total,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """total + a w, where w is part 0..3 of a block's weights of one kind, resident or read again from the copy."""
    if RESIDENT:
        return product(a, kept[KIND][part], total, PRECISION)
    else:  # noqa: RET505 (Triton wants both branches)
        tile = transposed_tile(matrix + part * step, stride, WIDTH, WIDTH, PADDED, PADDED)
        return product(a, factor(tile, PRECISION), total, PRECISION)


@triton.jit
@no_type_check
def lstm(
    x,
    h,
    cell,
    gates,
    start,
    kept,
    block: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """The next (h, cell). ``gates`` holds the first block's input part; a later block adds its own."""
    SQUARE: tl.constexpr = WIDTH * WIDTH
    matrix, i, f, g, o = start + WIDTH, gates[0], gates[1], gates[2], gates[3]
    if block > 0:
        normal = layer_norm(x, gain_at(start, 0, WIDTH, PADDED), WIDTH, PADDED)
        zero = tl.zeros_like(x)
        i = add_product(normal, kept, 3, 0, matrix, WIDTH, SQUARE, zero, WIDTH, PADDED, PRECISION, RESIDENT)
        f = add_product(normal, kept, 3, 1, matrix, WIDTH, SQUARE, zero, WIDTH, PADDED, PRECISION, RESIDENT)
        g = add_product(normal, kept, 3, 2, matrix, WIDTH, SQUARE, zero, WIDTH, PADDED, PRECISION, RESIDENT)
        o = add_product(normal, kept, 3, 3, matrix, WIDTH, SQUARE, zero, WIDTH, PADDED, PRECISION, RESIDENT)
    matrix += 4 * SQUARE
    i = add_product(h, kept, 0, 0, matrix, WIDTH, SQUARE, i, WIDTH, PADDED, PRECISION, RESIDENT)
    f = add_product(h, kept, 0, 1, matrix, WIDTH, SQUARE, f, WIDTH, PADDED, PRECISION, RESIDENT)
    g = add_product(h, kept, 0, 2, matrix, WIDTH, SQUARE, g, WIDTH, PADDED, PRECISION, RESIDENT)
    o = add_product(h, kept, 0, 3, matrix, WIDTH, SQUARE, o, WIDTH, PADDED, PRECISION, RESIDENT)
    cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(cell), cell


@triton.jit
@no_type_check
def mlp(
    x,
    start,
    kept,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """x plus the MLP's output, a quarter of the inner units at a time."""
    SQUARE: tl.constexpr = WIDTH * WIDTH
    up = start + 2 * WIDTH + 8 * SQUARE
    down = up + 4 * SQUARE
    normal = layer_norm(x, gain_at(start, WIDTH + 8 * SQUARE, WIDTH, PADDED), WIDTH, PADDED)
    zero = tl.zeros_like(x)
    for quarter in tl.static_range(4):
        inner = gelu(add_product(normal, kept, 1, quarter, up, WIDTH, SQUARE, zero, WIDTH, PADDED, PRECISION, RESIDENT))
        x = add_product(inner, kept, 2, quarter, down, 4 * WIDTH, WIDTH, x, WIDTH, PADDED, PRECISION, RESIDENT)
    return x


@triton.jit
@no_type_check
def target_log_probability(
    h,
    decoder,
    kept,
    targets,
    EMBED: tl.constexpr,
    EMBED_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """float32 [ROWS]: log softmax(h E^T) at the targets; the vocabulary in tiles, the maximum carried along."""
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    chosen = tl.zeros((ROWS,), tl.float32)
    zero = tl.zeros((ROWS, VOCABULARY_TILE), tl.float32)
    for tile in tl.static_range(VOCABULARY // VOCABULARY_TILE):
        if RESIDENT:
            logits = product(h, kept[tile], zero, PRECISION)
        else:
            logits = product(h, decoder_factor(decoder, tile, EMBED, EMBED_PADDED, PRECISION), zero, PRECISION)
        bytes_ = tile * VOCABULARY_TILE + tl.arange(0, VOCABULARY_TILE)
        chosen += tl.sum(tl.where(bytes_[None, :] == targets[:, None], logits, 0.0), axis=1)
        now = tl.maximum(largest, tl.max(logits, axis=1))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(logits - now[:, None]), axis=1)
        largest = now
    return chosen - largest - tl.log(total)


@triton.jit
@no_type_check
def decoder_factor(
    decoder, tile: tl.constexpr, EMBED: tl.constexpr, EMBED_PADDED: tl.constexpr, PRECISION: tl.constexpr
):
    """Factor [EMBED_PADDED, 64] of one tile of E's rows."""
    rows = decoder + tile * VOCABULARY_TILE * EMBED
    return factor(transposed_tile(rows, EMBED, VOCABULARY_TILE, EMBED, VOCABULARY_TILE, EMBED_PADDED), PRECISION)


@triton.jit
@no_type_check
def read_windows(
    copy,
    decoder,
    table,
    windows,
    first_bytes,
    is_window,
    length,
    scores,
    first_scores,
    first_target,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    EMBED: tl.constexpr,
    PADDED: tl.constexpr,
    EMBED_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
    KEEP: tl.constexpr,
):
    """float64 [ROWS]: the sum of log p(next byte) over a window, from a zero state; KEEP also stores something a byte.

    ``first_bytes`` int64 [ROWS]: where each window begins in ``windows``; ``is_window`` masks the tile's rest.
    KEEP ``scores``: float32 log p of targets from ``first_target`` on; ``hidden``: the decoder's input, EMBED floats.
    """
    columns = tl.arange(0, PADDED)[None, :]
    embed_columns = tl.arange(0, EMBED_PADDED)[None, :]
    kept_blocks, kept_tiles, hidden, cells = (), (), (), ()
    for block in tl.static_range(DEPTH):
        if RESIDENT:
            kept_blocks = kept_blocks + (load_block(copy, block, WIDTH, PADDED, PRECISION),)  # noqa: RUF005
        else:
            kept_blocks = kept_blocks + (0,)  # noqa: RUF005
        hidden = hidden + (tl.zeros((ROWS, PADDED), tl.float32),)  # noqa: RUF005
        cells = cells + (tl.zeros((ROWS, PADDED), tl.float32),)  # noqa: RUF005
    if RESIDENT:
        for tile in tl.static_range(VOCABULARY // VOCABULARY_TILE):
            kept_tiles = kept_tiles + (decoder_factor(decoder, tile, EMBED, EMBED_PADDED, PRECISION),)  # noqa: RUF005
    total = tl.zeros((ROWS,), tl.float64)
    tokens = tl.load(windows + first_bytes, mask=is_window, other=0).to(tl.int32)
    for t in range(length):
        # Always zero, but the compiler cannot know: else it would load streamed weights before the loop, all at once.
        here = t >> 30
        weights, matrix = copy + here, decoder + here
        targets = tl.load(windows + first_bytes + t + 1, mask=is_window, other=0).to(tl.int32)
        entries = table + tokens[:, None] * (ENTRY * PADDED) + columns
        gates = (
            tl.load(entries),
            tl.load(entries + PADDED),
            tl.load(entries + 2 * PADDED),
            tl.load(entries + 3 * PADDED),
        )
        x = tl.load(entries + 4 * PADDED)
        new_hidden, new_cells = (), ()
        for block in tl.static_range(DEPTH):
            start, kept = weights + block_start(block, WIDTH), kept_blocks[block]
            h, cell = lstm(
                x, hidden[block], cells[block], gates, start, kept, block, WIDTH, PADDED, PRECISION, RESIDENT
            )
            new_hidden, new_cells = new_hidden + (h,), new_cells + (cell,)  # noqa: RUF005
            x = mlp(x + h, start, kept, WIDTH, PADDED, PRECISION, RESIDENT)
        hidden, cells = new_hidden, new_cells
        last = weights + block_start(DEPTH, WIDTH)
        h = layer_norm(x, gain_at(last, 0, WIDTH, PADDED), WIDTH, PADDED)
        if WIDTH != EMBED:
            output = transposed_tile(last + WIDTH + WIDTH * EMBED, WIDTH, EMBED, WIDTH, EMBED_PADDED, PADDED)
            h = product(h, factor(output, PRECISION), tl.zeros((ROWS, EMBED_PADDED), tl.float32), PRECISION)
        if KEEP == "hidden":
            places = scores + (first_scores + t)[:, None] * EMBED + embed_columns
            tl.store(places, h, mask=is_window[:, None] & (embed_columns < EMBED))
        else:
            log_probability = target_log_probability(
                h, matrix, kept_tiles, targets, EMBED, EMBED_PADDED, ROWS, PRECISION, RESIDENT
            )
            total += log_probability.to(tl.float64)
            if KEEP == "scores":
                places = scores + first_scores + t - first_target
                tl.store(places, log_probability, mask=is_window & (t >= first_target))
        tokens = targets
    return total
