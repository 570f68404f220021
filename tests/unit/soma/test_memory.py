"""Does memory grow with the number of directions?  It must not: probes are rebuilt, never stored."""

import subprocess
import sys

# Peak resident memory of a process of its own sees every kind of array, torch's and NumPy's alike.
UPDATE = """
import resource, sys
import torch
from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.soma.model import initial_expert
from thinwire.soma.spsa import estimate

shape = ExpertShape(width=32)
expert = initial_expert(shape, seed=1)
windows = torch.zeros((16, 3), dtype=torch.uint8)

def update(directions):
    def losses(address):
        return expert_losses(
            expert.theta, shape=shape, decoder=expert.decoder, windows=windows, address=address,
            directions=range(directions), epsilon=1e-3,
        )
    estimate(losses, addresses=[ProbeAddress(stream_key(1, "probe", 0), 1)], shape=shape, epsilon=1e-3,
             difference="central")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

few = update(4)
print(update(1024) - few, 1024 * shape.num_parameters)
"""


def test_peak_memory_of_an_update_does_not_grow_with_directions() -> None:
    done = subprocess.run([sys.executable, "-c", UPDATE], capture_output=True, text=True, check=True)
    growth, stored_as_int8 = map(int, done.stdout.split())
    assert stored_as_int8 > 33_000_000  # the least that stored probes would add
    assert growth < 8_000_000
