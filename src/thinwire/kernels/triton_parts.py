"""What are the Triton kernels made of?  Perturbed copies, weight tiles, exact products, and the pointwise functions.

Written so that the same code runs on a GPU and in Triton's interpreter.  Kernels see an expert as constants: WIDTH and
EMBED are the true sizes, PADDED and EMBED_PADDED the next powers of two of at least 16 (the least that a matrix unit
takes).  Padded rows and columns of weights are zero, so padded units stay zero.

PRECISION names how a product of float32 matrices is made (sums are always FP32):

- ``ieee``: FP32 multiply-adds, no matrix unit.
- ``tf32``: each factor rounded to 11 significant bits, one matrix product.  At eps = 1e-5 a weight of 0.18 has a TF32
  spacing of 1.2e-4, so most perturbations vanish and the rest jump twelvefold: fit for scoring, not for directional
  derivatives.
- ``tf32x3``: each factor as the sum of two TF32 numbers, three products: about 22 bits.
- ``fp16x3``: each factor as the sum of two halves, the lower one scaled by 2^11, three products: about 22 bits at
  twice the rate of ``tf32x3``, and the two halves of a weight take no more room than the weight.  Factors beyond
  65,504 overflow to a loss that is no number.
"""

from collections.abc import Sequence
from typing import no_type_check

import numpy as np
import torch
import triton
import triton.language as tl

from thinwire.kernels.expert_shape import LAYER_NORM_EPSILON

EPSILON = tl.constexpr(LAYER_NORM_EPSILON)
LOW_SCALE = tl.constexpr(2048.0)
INVERSE_SQRT_2 = tl.constexpr(0.7071067811865476)
PER_BLOCK = tl.constexpr(64)
PER_WORD = tl.constexpr(16)


def device_of_triton() -> torch.device:
    """Where kernels run whose inputs are no tensors yet: the GPU, or the CPU in the interpreter."""
    return torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")


def int64_on(values: np.ndarray | Sequence[int], *, device: torch.device) -> torch.Tensor:
    """32-bit words as int64: every GPU and every version of Triton reads those alike."""
    return torch.from_numpy(np.asarray(values).astype(np.int64)).to(device)


@triton.jit
@no_type_check
def signs_of(words, always):
    """float32 [n, 16]: the coordinates of words [n]; bit 2k is active, bit 2k + 1 the sign."""
    shifts = (2 * tl.arange(0, PER_WORD)).to(tl.uint32)
    pairs = (words | always)[:, None] >> shifts[None, :]
    active = (pairs & 1).to(tl.float32)
    return tl.where((pairs & 2) != 0, -active, active)


@triton.jit
@no_type_check
def probe_words(address, direction, blocks):
    """Four uint32 [n]: Philox of the counters (block, direction, update, accumulation); address is int64 [4]."""
    key_low, key_high = tl.load(address).to(tl.uint32), tl.load(address + 1).to(tl.uint32)
    update, accumulation = tl.load(address + 2).to(tl.uint32), tl.load(address + 3).to(tl.uint32)
    return tl.philox_impl(blocks.to(tl.uint32), direction.to(tl.uint32), update, accumulation, key_low, key_high)


@triton.jit
@no_type_check
def store_perturbed(theta, always, address, direction, step, copy, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """copy = theta + step z_direction, rounded once (a step times 0 or +-1 is exact)."""
    within = tl.arange(0, PER_WORD)[None, :]
    for first in range(0, tl.cdiv(SIZE, PER_BLOCK), BLOCKS):
        blocks = first + tl.arange(0, BLOCKS)
        words = probe_words(address, direction, blocks)
        for part in tl.static_range(4):
            places = blocks[:, None] * PER_BLOCK + part * PER_WORD + within
            gains = tl.load(always + blocks * 4 + part, mask=blocks * PER_BLOCK < SIZE, other=0).to(tl.uint32)
            weights = tl.load(theta + places, mask=places < SIZE, other=0.0)
            tl.store(copy + places, weights + step * signs_of(words[part], gains), mask=places < SIZE)


@triton.jit
@no_type_check
def transposed_tile(
    matrix, row_stride, NUM_ROWS: tl.constexpr, NUM_COLUMNS: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """float32 [K, N]: a matrix [NUM_ROWS, NUM_COLUMNS] as the right factor of ``x W^T``, zero where padded."""
    k, n = tl.arange(0, K)[:, None], tl.arange(0, N)[None, :]
    return tl.load(matrix + n * row_stride + k, mask=(k < NUM_COLUMNS) & (n < NUM_ROWS), other=0.0)


@triton.jit
@no_type_check
def factor(w, PRECISION: tl.constexpr):
    """A right factor as ``product`` wants it: made once, used at every step."""
    if PRECISION == "fp16x3":
        high = w.to(tl.float16)
        return high, ((w - high.to(tl.float32)) * LOW_SCALE).to(tl.float16)
    else:  # noqa: RET505 (Triton wants both branches)
        return w, w


@triton.jit
@no_type_check
def product(a, w, total, PRECISION: tl.constexpr):
    """total + a w; a is float32 [M, K], w a ``factor`` [K, N]."""
    if PRECISION == "fp16x3":
        high = a.to(tl.float16)
        low = ((a - high.to(tl.float32)) * LOW_SCALE).to(tl.float16)
        cross = tl.dot(high, w[1])
        cross = tl.dot(low, w[0], cross)
        return tl.dot(high, w[0], total) + cross * (1.0 / LOW_SCALE)
    else:  # noqa: RET505 (Triton wants both branches)
        return tl.dot(a, w[0], total, input_precision=PRECISION)


@triton.jit
@no_type_check
def layer_norm(x, gain, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows of x [M, PADDED] over their WIDTH columns; the padded columns of x and of gain [PADDED] are zero.

    NaN where the variance is infinite, as on the CPU.
    """
    centred = x - (tl.sum(x, axis=1) / WIDTH)[:, None]
    if WIDTH != PADDED:
        centred = tl.where((tl.arange(0, PADDED) < WIDTH)[None, :], centred, 0.0)
    variance = tl.sum(centred * centred, axis=1) / WIDTH
    scale = 1.0 / tl.sqrt_rn(variance + EPSILON) + 0.0 * variance
    return centred * scale[:, None] * gain[None, :]


@triton.jit
@no_type_check
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
@no_type_check
def tanh(x):
    """Near zero the odd polynomial of Cephes (``tanhf``, relative error 1e-7), so that no digit is cancelled."""
    z = x * x
    series = ((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1
    series = (series * z - 3.33332819422e-1) * z * x + x
    return tl.where(tl.abs(x) < 0.625, series, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
@no_type_check
def gelu(x):
    """Exact, by the error function (appendix C)."""
    return 0.5 * x * (1.0 + tl.erf(x * INVERSE_SQRT_2))
