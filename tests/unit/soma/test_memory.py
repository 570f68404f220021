"""Does memory grow with the number of directions?  It must not: probes are rebuilt, never stored."""

import tracemalloc

import torch

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.soma.config import ModelConfig
from thinwire.soma.model import initial_expert, shape_of
from thinwire.soma.spsa import estimate


def _peak_bytes(shape: ExpertShape, *, directions: int) -> int:
    expert = initial_expert(shape, seed=1)
    windows = torch.zeros((4, 9), dtype=torch.uint8)
    address = ProbeAddress(stream_key(1, "probe", 0), 1)

    def losses(one: ProbeAddress) -> torch.Tensor:
        return expert_losses(
            expert.theta,
            shape=shape,
            decoder=expert.decoder,
            windows=windows,
            address=one,
            directions=range(directions),
            epsilon=1e-3,
        )

    tracemalloc.start()
    estimate(losses, addresses=[address], shape=shape, epsilon=1e-3, difference="central")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_peak_memory_of_an_update_does_not_grow_with_directions() -> None:
    shape = shape_of(ModelConfig(width=16, embed_width=16))
    _peak_bytes(shape, directions=2)  # compiles
    few, many = _peak_bytes(shape, directions=4), _peak_bytes(shape, directions=256)
    stored_probes = 252 * shape.num_parameters
    assert stored_probes > 2_000_000  # what int8 probes alone would add
    assert many - few < 100_000
