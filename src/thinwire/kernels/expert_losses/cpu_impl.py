"""Losses of theta +- eps z_j on the CPU: a fused pass per (direction, sign), a window a lane, threads by direction.

Numba's cache of this file holds the compiled forward pass too; see ``lane_forward`` on when to remove it.
"""

from collections.abc import Sequence
from typing import no_type_check

import numpy as np
from numba import njit

from thinwire.base.seeds import StreamKey
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_forward import build_table, forward_lanes, pack_weights
from thinwire.kernels.lane_layout import Sizes, lane_tokens, pack_decoder, sizes_of
from thinwire.kernels.lane_workspace import LaneWorkspace
from thinwire.kernels.sign_probe.cpu_impl import perturb
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.threads import for_each


@njit(cache=True, nogil=True)
@no_type_check
def _mean_loss(
    flat: np.ndarray,
    decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    num_windows: int,
    packed: np.ndarray,
    table: np.ndarray,
    state: np.ndarray,
    scratch: np.ndarray,
    log_probability: np.ndarray,
) -> float:
    """Mean cross entropy of windows [groups, T + 1, 16], summed in FP64 lane by lane."""
    no_hidden = np.empty((0, 0, 0), np.float32)
    pack_weights(flat, sizes, packed)
    build_table(packed, decoder, sizes, table, scratch)
    total = 0.0
    length = tokens.shape[1] - 1
    for group in range(tokens.shape[0]):
        state[:] = 0.0
        forward_lanes(packed, table, decoder, sizes, tokens[group], state, scratch, no_hidden, log_probability)
        for lane in range(min(16, num_windows - group * 16)):
            window = 0.0
            for t in range(length):
                window += log_probability[t, lane]
            total += window
    return -total / (num_windows * length)


def expert_losses(
    theta: np.ndarray,
    *,
    shape: ExpertShape,
    decoder: np.ndarray,
    windows: np.ndarray,
    key: StreamKey,
    update: int,
    accumulation: int,
    directions: range,
    epsilon: float,
    signs: Sequence[int],
    threads: int,
) -> np.ndarray:
    """float64 [n, S]; arguments as in ``api``. A direction is one task, so threads never share a sum."""
    sizes = sizes_of(shape)
    always, packed_decoder, tokens = gain_words(shape), pack_decoder(decoder, sizes=sizes), lane_tokens(windows)
    losses = np.empty((len(directions), len(signs)))

    def run(index: int, work: LaneWorkspace) -> None:
        for column, sign in enumerate(signs):
            step = np.float32(sign) * np.float32(epsilon)
            direction = directions[index]
            perturb(theta, always, key.low, key.high, direction, update, accumulation, step, work.flat)
            losses[index, column] = _mean_loss(
                work.flat,
                packed_decoder,
                sizes,
                tokens,
                len(windows),
                work.packed,
                work.table,
                work.state,
                work.scratch,
                work.log_probability,
            )

    def workspace() -> LaneWorkspace:
        return LaneWorkspace.for_sizes(sizes, input_bytes=windows.shape[1] - 1)

    for_each(range(len(directions)), run, make_workspace=workspace, threads=threads)
    return losses
