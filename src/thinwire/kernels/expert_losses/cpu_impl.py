"""Losses of theta +- eps z_j on the CPU: a fused pass; the lanes hold windows of one or more directions."""

from collections.abc import Sequence
from typing import no_type_check

import numpy as np

from thinwire.base.seeds import StreamKey
from thinwire.kernels.compiled import compiled
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_forward import build_table, forward_lanes, pack_weights
from thinwire.kernels.lane_layout import Sizes, directions_per_group, lane_tokens, pack_decoder, sizes_of
from thinwire.kernels.lane_workspace import LaneWorkspace
from thinwire.kernels.sign_probe.cpu_impl import perturb
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.threads import for_each


@compiled
@no_type_check
def _mean_losses(
    mix: tuple[int, ...],
    decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    num_windows: int,
    packed: np.ndarray,
    table: np.ndarray,
    state: np.ndarray,
    scratch: np.ndarray,
    log_probability: np.ndarray,
    losses: np.ndarray,
) -> None:
    """Mean cross entropy of windows [groups, T + 1, 16] for each direction in the lanes, summed in FP64 by window."""
    no_hidden = np.empty((0, 0, 0), np.float32)
    directions = len(mix)
    build_table(mix, packed, decoder, sizes, table, scratch)
    losses[:] = 0.0
    length = tokens.shape[1] - 1
    per_group = 16 // directions
    for group in range(tokens.shape[0]):
        state[:] = 0.0
        forward_lanes(mix, packed, table, decoder, sizes, tokens[group], state, scratch, no_hidden, log_probability)
        for window in range(min(per_group, num_windows - group * per_group)):
            for direction in range(directions):
                total = 0.0
                for t in range(length):
                    total += log_probability[t, window * directions + direction]
                losses[direction] -= total
    losses /= num_windows * length


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
    """float64 [n, S]; arguments as in ``api``. A task is as many signed directions as share the lanes.

    Lanes never mix, so the result does not depend on which directions share them, nor on the threads.
    """
    sizes = sizes_of(shape)
    together = directions_per_group(len(windows))
    always, packed_decoder = gain_words(shape), pack_decoder(decoder, sizes=sizes)
    tokens = lane_tokens(windows, directions=together)
    signed = [(direction, sign) for direction in directions for sign in signs]
    losses = np.empty(len(signed))
    mix = (0,) * together

    def run(first: int, work: LaneWorkspace) -> None:
        some = signed[first : first + together]
        for lane in range(together):
            direction, sign = some[min(lane, len(some) - 1)]
            step = np.float32(sign) * np.float32(epsilon)
            perturb(theta, always, key.low, key.high, direction, update, accumulation, step, work.flat)
            pack_weights(work.flat, sizes, work.packed[lane::together])
        means = np.empty(together)
        _mean_losses(
            mix,
            packed_decoder,
            sizes,
            tokens,
            len(windows),
            work.packed,
            work.table,
            work.state,
            work.scratch,
            work.log_probability,
            means,
        )
        losses[first : first + len(some)] = means[: len(some)]

    def workspace() -> LaneWorkspace:
        return LaneWorkspace.for_sizes(sizes, input_bytes=windows.shape[1] - 1, directions=together)

    for_each(range(0, len(signed), together), run, make_workspace=workspace, threads=threads)
    return losses.reshape(-1, len(signs))
