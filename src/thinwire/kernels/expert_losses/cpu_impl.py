"""Losses of theta +- eps z_j on the CPU: a fused pass; the lanes hold windows of one or more directions.

A narrow expert stays in the cache and is read once a byte (``lane_forward``); a wide one goes layer by layer
(``wide_forward``). Both give the same bits.
"""

from collections.abc import Sequence
from typing import no_type_check

import numpy as np

from thinwire.base.seeds import StreamKey
from thinwire.kernels.compiled import compiled
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_forward import build_table, forward_lanes, pack_weights
from thinwire.kernels.lane_layout import LANES, Sizes, lane_tokens, pack_decoder, sizes_of
from thinwire.kernels.lane_workspace import LaneWorkspace
from thinwire.kernels.sign_probe.cpu_impl import perturb
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.threads import for_each
from thinwire.kernels.wide_forward import forward_wide
from thinwire.kernels.wide_workspace import WideWorkspace, directions_together, is_wide


@compiled
@no_type_check
def _add_losses(directions: int, num_windows: int, log_probability: np.ndarray, losses: np.ndarray) -> None:
    """losses -= log p [T, 16] of the group's first ``num_windows`` windows, summed in FP64 by window."""
    for window in range(min(LANES // directions, num_windows)):
        for direction in range(directions):
            total = 0.0
            for t in range(log_probability.shape[0]):
                total += log_probability[t, window * directions + direction]
            losses[direction] -= total


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
    """Mean cross entropy of windows [groups, T + 1, 16] for each direction in the lanes."""
    no_hidden = np.empty((0, 0, 0), np.float32)
    build_table(mix, packed, decoder, sizes, table, scratch)
    losses[:] = 0.0
    per_group = LANES // len(mix)
    for group in range(tokens.shape[0]):
        state[:] = 0.0
        forward_lanes(mix, packed, table, decoder, sizes, tokens[group], 0, state, scratch, no_hidden, log_probability)
        _add_losses(len(mix), num_windows - group * per_group, log_probability, losses)
    losses /= num_windows * (tokens.shape[1] - 1)


@compiled
@no_type_check
def _mean_losses_wide(
    mix: tuple[int, ...],
    decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    num_windows: int,
    groups: int,
    steps: int,
    packed: np.ndarray,
    table: np.ndarray,
    state: np.ndarray,
    activations: np.ndarray,
    scratch: np.ndarray,
    log_probability: np.ndarray,
    losses: np.ndarray,
) -> None:
    """As ``_mean_losses``, ``groups`` groups of lanes and ``steps`` input bytes at a time."""
    no_hidden = np.empty((0, 0, 0, 0), np.float32)
    build_table(mix, packed, decoder, sizes, table, scratch)
    losses[:] = 0.0
    per_group = LANES // len(mix)
    for first in range(0, tokens.shape[0], groups):
        some = tokens[first : first + groups]
        forward_wide(
            mix,
            packed,
            table,
            decoder,
            sizes,
            some,
            0,
            steps,
            state,
            activations,
            scratch,
            no_hidden,
            log_probability,
        )
        for group in range(some.shape[0]):
            _add_losses(len(mix), num_windows - (first + group) * per_group, log_probability[group], losses)
    losses /= num_windows * (tokens.shape[1] - 1)


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
    theta, decoder, windows = (np.ascontiguousarray(array) for array in (theta, decoder, windows))
    sizes, num_windows, input_bytes = sizes_of(shape), len(windows), windows.shape[1] - 1
    together = directions_together(num_windows, sizes=sizes)
    wide = is_wide(sizes, directions=together)
    always, packed_decoder = gain_words(shape), pack_decoder(decoder, sizes=sizes)
    tokens = lane_tokens(windows, directions=together)
    signed = [(direction, sign) for direction in directions for sign in signs]
    losses = np.empty(len(signed))
    mix = (0,) * together

    def workspace() -> LaneWorkspace | WideWorkspace:
        if wide:
            return WideWorkspace.for_sizes(sizes, num_groups=len(tokens), input_bytes=input_bytes, directions=together)
        return LaneWorkspace.for_sizes(sizes, input_bytes=input_bytes, directions=together)

    def run(first: int, work: LaneWorkspace | WideWorkspace) -> None:
        some = signed[first : first + together]
        for lane in range(together):
            direction, sign = some[min(lane, len(some) - 1)]
            step = np.float32(sign) * np.float32(epsilon)
            perturb(theta, always, key.low, key.high, direction, update, accumulation, step, work.flat)
            pack_weights(work.flat, sizes, work.packed[lane::together])
        means = np.empty(together)
        inputs = (mix, packed_decoder, sizes, tokens, num_windows)
        weights = (work.packed, work.table, work.state)
        if isinstance(work, WideWorkspace):
            chunk = (work.groups, work.steps)
            _mean_losses_wide(*inputs, *chunk, *weights, work.activations, work.scratch, work.log_probability, means)
        else:
            _mean_losses(*inputs, *weights, work.scratch, work.log_probability, means)
        losses[first : first + len(some)] = means[: len(some)]

    for_each(range(0, len(signed), together), run, make_workspace=workspace, threads=threads)
    return losses.reshape(-1, len(signs))
