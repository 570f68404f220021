"""Inference on the CPU: requests grouped by expert, 16 windows at a time, weights packed once per expert."""

from typing import NamedTuple

import numpy as np

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_forward import build_table, forward_lanes, logits_offset, pack_weights
from thinwire.kernels.lane_layout import LANES, Sizes, lane_tokens, pack_decoder, sizes_of
from thinwire.kernels.lane_workspace import LaneWorkspace
from thinwire.kernels.threads import for_each
from thinwire.kernels.wide_windows import decoder_inputs as wide_decoder_inputs
from thinwire.kernels.wide_windows import read_windows
from thinwire.kernels.wide_workspace import WideWorkspace, is_wide

NO_HIDDEN = (0, 0, 0)
ONE = (0,)
"""One set of weights in all lanes."""
WINDOWS_PER_TASK = 4 * LANES


class _Task(NamedTuple):
    """Windows of one expert: rows and slots of the result they fill."""

    expert: int
    rows: np.ndarray
    slots: np.ndarray


def _tasks(experts: np.ndarray) -> list[_Task]:
    """Every (window, slot) once, grouped by expert, in pieces small enough to share among threads."""
    tasks = []
    for expert in np.unique(experts):
        rows, slots = np.nonzero(experts == expert)
        for start in range(0, len(rows), WINDOWS_PER_TASK):
            part = slice(start, start + WINDOWS_PER_TASK)
            tasks.append(_Task(int(expert), rows[part], slots[part]))
    return tasks


def _load(theta: np.ndarray, packed_decoder: np.ndarray, sizes: Sizes, work: LaneWorkspace) -> None:
    pack_weights(theta, sizes, work.packed[::1])
    build_table(ONE, work.packed, packed_decoder, sizes, work.table, work.scratch)


def routed_scores(
    thetas: np.ndarray,
    *,
    shape: ExpertShape,
    decoder: np.ndarray,
    windows: np.ndarray,
    experts: np.ndarray,
    first_target: int,
    threads: int,
) -> np.ndarray:
    """float64 [n, k, T - first_target]; arguments as in ``api``. ``decoder`` is [256, d_E] or one per expert."""
    sizes = sizes_of(shape)
    length = windows.shape[1] - 1
    decoders = decoder if decoder.ndim == 3 else decoder[None]
    packed_decoders = [pack_decoder(one, sizes=sizes) for one in decoders]
    scores = np.empty((*experts.shape, length - first_target))
    no_hidden = np.empty(NO_HIDDEN, np.float32)

    def run(task: _Task, work: LaneWorkspace | WideWorkspace) -> None:
        packed_decoder = packed_decoders[task.expert if len(packed_decoders) > 1 else 0]
        if isinstance(work, WideWorkspace):
            tokens = lane_tokens(windows[task.rows])
            theta = thetas[task.expert]
            by_lane = read_windows(theta, packed_decoder=packed_decoder, sizes=sizes, tokens=tokens, work=work)
            scores[task.rows, task.slots] = by_lane[: len(task.rows), first_target:]
            return
        _load(thetas[task.expert], packed_decoder, sizes, work)
        for group, tokens in enumerate(lane_tokens(windows[task.rows])):
            work.state[:] = 0.0
            forward_lanes(
                ONE,
                work.packed,
                work.table,
                packed_decoder,
                sizes,
                tokens,
                work.state,
                work.scratch,
                no_hidden,
                work.log_probability,
            )
            rows, slots = (part[group * LANES : (group + 1) * LANES] for part in (task.rows, task.slots))
            scores[rows, slots] = work.log_probability[first_target:, : len(rows)].T

    def workspace() -> LaneWorkspace | WideWorkspace:
        if is_wide(sizes, directions=1):
            return WideWorkspace.for_sizes(sizes, num_groups=WINDOWS_PER_TASK // LANES, input_bytes=length)
        return LaneWorkspace.for_sizes(sizes, input_bytes=length)

    for_each(_tasks(experts), run, make_workspace=workspace, threads=threads)
    return scores


def decoder_inputs(
    theta: np.ndarray, *, shape: ExpertShape, decoder: np.ndarray, windows: np.ndarray, threads: int
) -> np.ndarray:
    """float32 [B, T, d_E]: h at every position of windows [B, T + 1]."""
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


class ByteStepper:
    """One expert read a byte at a time: its state lives in the lanes, one stream in lane 0."""

    def __init__(self, theta: np.ndarray, *, shape: ExpertShape, decoder: np.ndarray) -> None:
        self.sizes = sizes_of(shape)
        self.decoder = pack_decoder(decoder, sizes=self.sizes)
        self.work = LaneWorkspace.for_sizes(self.sizes, input_bytes=1)
        self.no_hidden = np.empty(NO_HIDDEN, np.float32)
        _load(np.ascontiguousarray(theta), self.decoder, self.sizes, self.work)

    def read(self, text: np.ndarray) -> np.ndarray:
        """Advance over uint8 [n >= 1] bytes; returns float64 [256], log p(next byte). Raises ValueError for none."""
        if len(text) == 0:
            raise ValueError("no byte to read")
        tokens = np.zeros((len(text) + 1, LANES), np.uint8)
        tokens[:-1] = text[:, None]
        work = self.work
        log_probability = np.empty((len(text), LANES))
        forward_lanes(
            ONE,
            work.packed,
            work.table,
            self.decoder,
            self.sizes,
            tokens,
            work.state,
            work.scratch,
            self.no_hidden,
            log_probability,
        )
        start = logits_offset(self.sizes)
        logits = work.scratch[start : start + 256 * LANES : LANES].astype(np.float64)
        logits -= logits.max()
        return logits - np.log(np.exp(logits).sum())

    def reset(self) -> None:
        """Back to the zero state of a window's start."""
        self.work.state[:] = 0.0
