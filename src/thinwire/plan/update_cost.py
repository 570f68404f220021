"""What does one expert's update cost on this machine?  A few short timed forwards, and the law that fits the kernels.

A signed direction costs a fixed time (its probe, its packed weights) and a time for every input byte of its batch. Both
depend on how many of the 16 lanes a batch fills, so they are measured at a few batch sizes for each shape.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch

from thinwire.base.seeds import numpy_generator, stream_key
from thinwire.kernels.dispatch import device_for
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_layout import sizes_of
from thinwire.kernels.lane_workspace import LaneWorkspace
from thinwire.kernels.sign_probe.api import ProbeAddress, weighted_probe_sum
from thinwire.kernels.wide_workspace import WideWorkspace, directions_together, is_wide
from thinwire.soma.budget import Setting
from thinwire.soma.theory import FORWARDS_PER_DIRECTION

LANES = 16
BATCHES = (1, 4, 16, 64)
REPEATS = 5
LONG_BYTES, LONG_OPERATIONS = 192, 3e9
"""A timed call reads at most so many bytes of each window, fewer where the expert is wide."""
STATE_COPIES = 5
"""theta, its successor, Adam's two moments and the gradient."""
PROCESS_BYTES = 440_000_000
"""choice: a worker with Python, PyTorch, Numba and its kernels loaded; its peak was 436 MB on Linux."""


class BatchCost(NamedTuple):
    """Of one signed direction on a batch, in device-seconds.

    Attributes:
        batch: windows.
        fixed: whatever the length of the windows.
        per_byte: for one more byte in every window.
    """

    batch: int
    fixed: float
    per_byte: float


@dataclass(frozen=True)
class UpdateCost:
    """Of one expert of one shape.

    Attributes:
        batches: measured, batch sizes rising.
        per_direction: device-seconds for a direction's part of the gradient.
    """

    batches: tuple[BatchCost, ...]
    per_direction: float

    @classmethod
    def at_speed(cls, byte_forwards_per_s: float) -> "UpdateCost":
        """As if a byte always took equally long in batches that fill the lanes: of a machine that is not at hand."""
        return cls(
            (BatchCost(1, 0.0, 1 / byte_forwards_per_s), BatchCost(LANES, 0.0, LANES / byte_forwards_per_s)), 0.0
        )

    def seconds(self, setting: Setting, *, window_bytes: int) -> float:
        """Device-seconds of one expert's update; ``setting.num_experts`` does not matter."""
        fixed, per_byte = self._of_batch(setting.batch)
        signed = setting.directions * FORWARDS_PER_DIRECTION[setting.difference]
        forwards = signed * (fixed + window_bytes * per_byte)
        return setting.accumulation * (forwards + setting.directions * self.per_direction)

    def _of_batch(self, batch: int) -> tuple[float, float]:
        """Fixed cost and cost of a byte of one signed direction.

        choice: a straight line between measured batches and in proportion past the largest, where the batch is rounded
        up as the kernels round it: to a power of two, past 16 to a multiple of 16. So cost never falls where B rises.
        """
        filled = 1 << (batch - 1).bit_length() if batch <= LANES else LANES * -(-batch // LANES)
        sizes, last = [one.batch for one in self.batches], self.batches[-1]
        if filled >= last.batch:
            return last.fixed, last.per_byte * filled / last.batch
        place = bisect_right(sizes, filled)
        low, high = self.batches[place - 1], self.batches[place]
        part = (filled - low.batch) / (high.batch - low.batch)
        return low.fixed + part * (high.fixed - low.fixed), low.per_byte + part * (high.per_byte - low.per_byte)


def measure_update_cost(
    shape: ExpertShape, *, implementation: str = "auto", clock: Callable[[], float] = time.perf_counter
) -> UpdateCost:
    """Time one thread (or the GPU) on random bytes; the fastest of five calls, after one that compiles.

    choice: the fastest, because a cost is a difference of two times, and other work on the machine only adds to them.
    """
    generator = numpy_generator(0, "plan", shape.width)
    device = device_for(implementation)
    theta = torch.from_numpy(generator.uniform(-0.1, 0.1, shape.num_parameters).astype("float32")).to(device)
    decoder = torch.from_numpy(generator.standard_normal((256, shape.embed_width)).astype("float32")).to(device)
    address = ProbeAddress(stream_key(0, "plan"), 0)

    def forward_seconds(batch: int, input_bytes: int, directions: int) -> float:
        windows = torch.from_numpy(generator.integers(0, 256, (batch, input_bytes + 1), dtype="uint8"))

        def call() -> Any:
            return expert_losses(
                theta,
                shape=shape,
                decoder=decoder,
                windows=windows,
                address=address,
                directions=range(directions),
                epsilon=1e-3,
                signs=(1,),
                implementation=implementation,
                threads=1,
            )

        return _fastest_seconds(call, clock) / directions

    costs: list[BatchCost] = []
    for batch in BATCHES:
        directions = max(1, LANES // batch)
        lanes = max(batch, LANES)
        long = int(min(LONG_BYTES, max(4, LONG_OPERATIONS // (lanes * shape.operations_per_byte))))
        short = max(1, long // 4)
        low, high = (forward_seconds(batch, length, directions) for length in (short, long))
        per_byte = max(high - low, 0.05 * high) / (long - short)
        costs.append(BatchCost(batch, max(low - short * per_byte, 0.0), per_byte))
    together = 2 * LANES
    weights = np.ones(together)
    gradient = _fastest_seconds(lambda: weighted_probe_sum(weights, address=address, shape=shape), clock)
    return UpdateCost(_never_falling(costs), gradient / together)


def _fastest_seconds(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    call()
    spent = []
    for _ in range(REPEATS):
        started = clock()
        call()
        spent.append(clock() - started)
    return min(spent)


def _never_falling(costs: Sequence[BatchCost]) -> tuple[BatchCost, ...]:
    """Noise of the clock must not make a larger batch cheaper."""
    found: list[BatchCost] = []
    for one in costs:
        before = found[-1] if found else one
        found.append(BatchCost(one.batch, max(one.fixed, before.fixed), max(one.per_byte, before.per_byte)))
    return tuple(found)


def expert_memory_bytes(shape: ExpertShape, *, batch: int, window_bytes: int) -> int:
    """Of a worker that trains one expert on one CPU thread: weights, moments and the kernel's buffers.

    Does not grow with n_pert: probes are never stored. The text is mapped, not read.
    """
    sizes = sizes_of(shape)
    together = directions_together(batch, sizes=sizes)
    work: LaneWorkspace | WideWorkspace
    if is_wide(sizes, directions=together):
        groups = -(-batch // (LANES // together))
        work = WideWorkspace.for_sizes(sizes, num_groups=groups, input_bytes=window_bytes, directions=together)
    else:
        work = LaneWorkspace.for_sizes(sizes, input_bytes=window_bytes, directions=together)
    buffers = sum(value.nbytes for field in fields(work) if isinstance(value := getattr(work, field.name), np.ndarray))
    state = 4 * STATE_COPIES * (shape.num_parameters + shape.num_decoder_parameters)
    return PROCESS_BYTES + state + buffers
