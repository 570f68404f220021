"""How fast does this machine evaluate an expert?  One short measurement, for ``doctor`` and for estimates of time."""

import statistics
import time
from typing import NamedTuple

import torch

from thinwire.base.seeds import numpy_generator, stream_key
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape, require_counts
from thinwire.kernels.sign_probe.api import ProbeAddress


class Throughput(NamedTuple):
    """Median over repeats; operations counted as in Eq. (21). The first call compiles what is not on disk."""

    byte_forwards_per_s: float
    flops_per_s: float
    first_call_seconds: float


def measure(
    *,
    threads: int,
    width: int = 32,
    batch: int = 16,
    input_bytes: int = 256,
    directions: int = 16,
    implementation: str = "auto",
    repeats: int = 5,
) -> Throughput:
    """Time ``expert_losses`` on random bytes, both signs, after a first call.

    Raises:
        UserError: where the named implementation cannot run here.
        ValueError: where a count is less than 1.
    """
    require_counts(threads=threads, batch=batch, input_bytes=input_bytes, directions=directions, repeats=repeats)
    shape = ExpertShape(width=width)
    generator = numpy_generator(0, "throughput")
    theta = torch.from_numpy(generator.uniform(-0.1, 0.1, shape.num_parameters).astype("float32"))
    decoder = torch.from_numpy(generator.standard_normal((256, shape.embed_width)).astype("float32"))
    windows = torch.from_numpy(generator.integers(0, 256, (batch, input_bytes + 1), dtype="uint8"))
    address = ProbeAddress(stream_key(0, "throughput"), 0)

    def seconds(num_directions: int) -> float:
        started = time.perf_counter()
        expert_losses(
            theta,
            shape=shape,
            decoder=decoder,
            windows=windows,
            address=address,
            directions=range(num_directions),
            epsilon=1e-3,
            implementation=implementation,
            threads=threads,
        )
        return time.perf_counter() - started

    first_call = seconds(1)
    elapsed = statistics.median(seconds(directions) for _ in range(repeats))
    byte_forwards = 2 * directions * batch * input_bytes / elapsed
    return Throughput(byte_forwards, byte_forwards * shape.operations_per_byte, first_call)
