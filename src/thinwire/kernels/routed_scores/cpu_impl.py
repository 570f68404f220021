"""Inference on the CPU: requests (a window under one of its experts) grouped by expert.

Sixteen windows of an expert fill the lanes (``lane_forward``).  What is left over goes one to four windows at a time,
with rows of the expert's matrices in the lanes instead (``stream_forward``), so that no lane is idle.  Both give the
same bits, hence a score does not depend on the other requests.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_forward import build_table, forward_lanes, pack_weights
from thinwire.kernels.lane_layout import LANES, Sizes, lane_tokens, pack_decoder, sizes_of
from thinwire.kernels.lane_workspace import LaneWorkspace
from thinwire.kernels.routed_scores.resident import ONE, ResidentExperts
from thinwire.kernels.routed_scores.stream_forward import (
    STREAMS_TOGETHER,
    forward_streams,
    state_floats,
    stream_scratch,
)
from thinwire.kernels.threads import for_each
from thinwire.kernels.wide_windows import decoder_inputs as wide_decoder_inputs
from thinwire.kernels.wide_windows import read_windows
from thinwire.kernels.wide_workspace import WideWorkspace, is_wide

NO_HIDDEN = (0, 0, 0)
LANES_FROM = 14
"""From so many windows on, the lanes with some idle are faster than four windows at a time.

Measured at d = 32 on a Zen 4 core: 12.9 us a byte of 16 lanes; 1.8, 2.2 and 3.65 us for one, two and four windows.
"""
WIDE_WINDOWS = 4 * LANES


class _Task(NamedTuple):
    """Windows of one expert: rows and slots of the result they fill."""

    expert: int
    rows: np.ndarray
    slots: np.ndarray


def _tasks(experts: np.ndarray, *, most: int) -> list[_Task]:
    """Every (window, slot) once, grouped by expert, ``most`` at a time; the longer tasks first."""
    flat = experts.reshape(-1)
    order = np.argsort(flat, kind="stable")
    rows, slots = np.unravel_index(order, experts.shape)
    bounds = np.flatnonzero(np.diff(flat[order], prepend=-1, append=-1))
    tasks = []
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        for start in range(first, last, most):
            part = slice(start, min(start + most, last))
            tasks.append(_Task(int(flat[order[first]]), rows[part], slots[part]))
    return sorted(tasks, key=lambda task: -len(task.rows))


def routed_scores(
    thetas: np.ndarray,
    *,
    shape: ExpertShape,
    decoder: np.ndarray,
    windows: np.ndarray,
    experts: np.ndarray,
    first_target: int,
    threads: int,
    resident: ResidentExperts | None = None,
    finished: Callable[[int], None] | None = None,
) -> np.ndarray:
    """float64 [n, k, T - first_target]; arguments as in ``api``. ``decoder`` is [256, d_E] or one per expert."""
    thetas, decoder, windows, experts = (np.ascontiguousarray(array) for array in (thetas, decoder, windows, experts))
    scores = np.empty((*experts.shape, windows.shape[1] - 1 - first_target))
    if is_wide(sizes_of(shape), directions=1):
        _wide_scores(
            thetas, shape=shape, decoder=decoder, windows=windows, experts=experts, out=scores, threads=threads
        )
        return scores
    model = resident or ResidentExperts(thetas, shape=shape, decoder=decoder)
    model.load(np.unique(experts).tolist(), threads=threads)

    def run(task: _Task, work: "_Workspace") -> None:
        texts = windows[task.rows]
        by_window = work.read_lanes(task.expert, texts) if len(texts) >= LANES_FROM else work.read(task.expert, texts)
        scores[task.rows, task.slots] = by_window[:, first_target:]
        if finished:
            finished(len(texts))

    def workspace() -> "_Workspace":
        return _Workspace(model, input_bytes=windows.shape[1] - 1, first_target=first_target)

    for_each(_tasks(experts, most=LANES), run, make_workspace=workspace, threads=threads)
    return scores


class _Workspace:
    """One thread's buffers, and the two ways to read at most 16 windows of an expert."""

    def __init__(self, model: ResidentExperts, *, input_bytes: int, first_target: int) -> None:
        sizes = model.sizes
        self.model, self.first_target = model, first_target
        self.lanes = LaneWorkspace.for_sizes(sizes, input_bytes=input_bytes, directions=0)
        self.streams = stream_scratch(sizes)
        self.states = np.zeros((LANES, state_floats(sizes)), np.float32)
        self.no_hidden = np.empty(NO_HIDDEN, np.float32)

    def read_lanes(self, expert: int, texts: np.ndarray) -> np.ndarray:
        """float64 [n, T] of 1 to 16 windows, one a lane; columns before ``first_target`` mean nothing."""
        model, work = self.model, self.lanes
        weights = (ONE, model.packed[expert], model.tables[expert], model.decoder(expert), model.sizes)
        (tokens,) = lane_tokens(texts)
        work.state[:] = 0.0
        forward_lanes(
            *weights, tokens, self.first_target, work.state, work.scratch, self.no_hidden, work.log_probability
        )
        return work.log_probability[:, : len(texts)].T

    def read(self, expert: int, texts: np.ndarray) -> np.ndarray:
        """float64 [n, T] of a few windows; columns before ``first_target`` mean nothing."""
        model = self.model
        log_probability = np.empty((len(texts), texts.shape[1] - 1))
        self.states[:] = 0.0
        start = 0
        for count in STREAMS_TOGETHER:
            while len(texts) - start >= count:
                part = slice(start, start + count)
                forward_streams(
                    (0,) * count,
                    model.packed[expert],
                    model.tables[expert],
                    model.decoder(expert),
                    model.sizes,
                    texts[part],
                    self.first_target,
                    self.states[part],
                    self.streams,
                    log_probability[part],
                )
                start += count
        return log_probability


def _wide_scores(
    thetas: np.ndarray,
    *,
    shape: ExpertShape,
    decoder: np.ndarray,
    windows: np.ndarray,
    experts: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> None:
    """Fill ``out`` [n, k, S] with experts too large for the cache: layer by layer, packed once for 64 windows."""
    sizes, length = sizes_of(shape), windows.shape[1] - 1
    first_target = length - out.shape[2]
    decoders = [pack_decoder(one, sizes=sizes) for one in (decoder if decoder.ndim == 3 else decoder[None])]

    def run(task: _Task, work: WideWorkspace) -> None:
        by_lane = read_windows(
            thetas[task.expert],
            packed_decoder=decoders[task.expert if len(decoders) > 1 else 0],
            sizes=sizes,
            tokens=lane_tokens(windows[task.rows]),
            work=work,
            first_target=first_target,
        )
        out[task.rows, task.slots] = by_lane[: len(task.rows), first_target:]

    def workspace() -> WideWorkspace:
        return WideWorkspace.for_sizes(sizes, num_groups=WIDE_WINDOWS // LANES, input_bytes=length)

    for_each(_tasks(experts, most=WIDE_WINDOWS), run, make_workspace=workspace, threads=threads)


def _load(theta: np.ndarray, packed_decoder: np.ndarray, sizes: Sizes, work: LaneWorkspace) -> None:
    pack_weights(theta, sizes, work.packed[::1])
    build_table(ONE, work.packed, packed_decoder, sizes, work.table, work.scratch)


def decoder_inputs(
    theta: np.ndarray, *, shape: ExpertShape, decoder: np.ndarray, windows: np.ndarray, threads: int
) -> np.ndarray:
    """float32 [B, T, d_E]: h at every position of windows [B, T + 1]."""
    theta, decoder, windows = (np.ascontiguousarray(array) for array in (theta, decoder, windows))
    sizes = sizes_of(shape)
    if is_wide(sizes, directions=1):
        packed_decoder = pack_decoder(decoder, sizes=sizes)
        return wide_decoder_inputs(theta, sizes=sizes, packed_decoder=packed_decoder, windows=windows, threads=threads)
    packed_decoder, tokens = pack_decoder(decoder, sizes=sizes), lane_tokens(windows)
    num_windows, length = len(windows), windows.shape[1] - 1
    hidden = np.empty((len(tokens), length, shape.embed_width, LANES), np.float32)

    def run(group: int, work: LaneWorkspace) -> None:
        _load(theta, packed_decoder, sizes, work)
        work.state[:] = 0.0
        forward_lanes(
            ONE,
            work.packed,
            work.table,
            packed_decoder,
            sizes,
            tokens[group],
            length,
            work.state,
            work.scratch,
            hidden[group],
            work.log_probability,
        )

    def workspace() -> LaneWorkspace:
        return LaneWorkspace.for_sizes(sizes, input_bytes=length)

    for_each(range(len(tokens)), run, make_workspace=workspace, threads=threads)
    by_window = hidden.transpose(0, 3, 1, 2).reshape(-1, length, shape.embed_width)
    return np.ascontiguousarray(by_window[:num_windows])
