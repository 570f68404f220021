"""What would backpropagation say of every window?  The mean and spread of exact gradients that estimates are judged by.

The laboratory's reference (section 7, appendices F.1, G and K): autograd through the reference forward, in the dtype of
the weights. Windows are read in chunks, and only moments are kept, so memory grows neither with their number nor with
M times it.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.model import Expert

CHUNK_BYTES = 192 * 2**20
SAVED_PER_BYTE = (16, 160, 1024)
"""Values that backpropagation of one window keeps of one byte: so many times the width squared (what each step adds to
the recurrent weights' gradients), so many times the width, and for the logits. Fitted to peaks at widths 8 to 64."""
ORDINARY_DENSITY, GAIN_DENSITY = 0.5, 1.0


class GradientMoments(NamedTuple):
    """Exact gradients of single windows, summed up.

    Attributes:
        mean: float64 [M]; the gradient of the windows' mean loss.
        variance: float64 [M]; of one window's gradient, unbiased, coordinate by coordinate (sum: sigma^2 of Eq. 17).
            Not a number where there is one window only.
        num_windows: how many.
        loss_nats_per_byte: their mean loss.
    """

    mean: np.ndarray
    variance: np.ndarray
    num_windows: int
    loss_nats_per_byte: float


def probe_density(shape: ExpertShape) -> Float64[np.ndarray, " M"]:
    """q_j, the probability that probe coordinate j is not 0: gains 1, ordinary weights 1/2 (appendix E).

    An estimate's mean is ``q * g`` up to O(eps^2), g the exact gradient: nothing is rescaled.
    """
    q = np.full(shape.num_parameters, ORDINARY_DENSITY)
    for slot in shape.slots:
        if slot.is_gain:
            q[slot.start : slot.stop] = GAIN_DENSITY
    return q


def windows_per_chunk(shape: ExpertShape, *, window_bytes: int, value_bytes: int) -> int:
    """Windows that backpropagation can hold at once in ``CHUNK_BYTES``."""
    times_square, times_width, logits = SAVED_PER_BYTE
    per_byte = times_square * shape.width**2 + times_width * shape.width + logits
    kept = window_bytes * per_byte + 2 * shape.num_parameters
    return max(1, CHUNK_BYTES // (kept * value_bytes))


def window_gradients(
    expert: Expert, *, shape: ExpertShape, windows: UInt8[Tensor, "B T1"]
) -> tuple[Float[Tensor, "B M"], Float[Tensor, " B"]]:
    """Gradient and loss of each window, together in memory: for a chunk of windows.

    The dtype is the expert's; the decoder is held fixed, as in the body's estimates.
    """

    def loss(theta: Tensor, window: Tensor) -> Tensor:
        return reference.mean_loss(theta[None], shape=shape, decoder=expert.decoder, windows=window[None])[0]

    each = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0))
    gradients, losses = each(expert.theta.detach(), windows)
    return gradients, losses


def gradient_moments(expert: Expert, *, shape: ExpertShape, windows: UInt8[Tensor, "B T1"]) -> GradientMoments:
    """Mean and spread of the windows' exact gradients, gathered in float64 whatever the expert's dtype.

    Raises:
        ValueError: no window.
    """
    if not len(windows):
        raise ValueError("moments of no window")
    value_bytes = expert.theta.element_size()
    size = windows_per_chunk(shape, window_bytes=windows.shape[1] - 1, value_bytes=value_bytes)
    mean = np.zeros(shape.num_parameters)
    squares = np.zeros(shape.num_parameters)
    count, total_loss = 0, 0.0
    for chunk in windows.split(size):
        gradients, losses = window_gradients(expert, shape=shape, windows=chunk)
        values = gradients.double().numpy()
        new_count, chunk_mean = count + len(chunk), values.mean(axis=0)
        apart = chunk_mean - mean
        squares += ((values - chunk_mean) ** 2).sum(axis=0) + apart**2 * (count * len(chunk) / new_count)
        mean += apart * (len(chunk) / new_count)
        total_loss += float(losses.sum())
        count = new_count
    variance = squares / (count - 1) if count > 1 else np.full_like(squares, np.nan)
    return GradientMoments(mean, variance, count, total_loss / count)


def merged(first: GradientMoments, second: GradientMoments) -> GradientMoments:
    """The moments of both sets of windows together (at least two in each)."""
    n, m = first.num_windows, second.num_windows
    apart = second.mean - first.mean
    squares = (n - 1) * first.variance + (m - 1) * second.variance + apart**2 * (n * m / (n + m))
    loss = (n * first.loss_nats_per_byte + m * second.loss_nats_per_byte) / (n + m)
    return GradientMoments(first.mean + apart * (m / (n + m)), squares / (n + m - 1), n + m, loss)
