"""What does one thread need to run wide experts layer by layer?  Weights of a few directions and a chunk of positions.

A position is one input byte of 16 lanes. Its record holds, in rows of 16 lanes: the residual stream [d_pad], then gates
of the LSTM [4 d_pad], inner units of the MLP [4 d_pad] or the decoder's inputs [d_E padded], whichever is longest, then
normalised inputs [d_pad]. Memory depends on the expert's shape alone:
long windows, large batches and many directions are read in more chunks.
"""

from dataclasses import dataclass

import numpy as np

from thinwire.kernels.lane_layout import LANES, VOCABULARY, Sizes, aligned_floats, directions_per_group

WEIGHTS_BYTES = 192 * 2**20
ACTIVATION_BYTES = 8 * 2**20
"""Budgets of one thread; one direction and one step are always held, however large.

Weights beside theta, table and buffers: 256 MiB in all for the widest expert of the paper. A small chunk of activations
stays in the last-level cache; from 2 to 16 MiB the speed is the same within 5%, with 1 or 48 MiB it is 10% lower.
"""
CACHED_WEIGHTS_BYTES = 6 * 2**20
"""How many bytes of weights one core reads from its caches without waiting, byte after byte.

Measured on two Zen 4 cores with 32 MiB of shared cache. Up to 4.7 MB (width 181; width 96 with four directions in the
lanes) reading all weights for every byte is 5 to 12% faster than layer by layer, at 8.4 MB 2 to 10%; at 17 MB it takes
1.2 to 1.7 times as long. Common servers have 2 to 4 MiB a core, so the limit stands near the lower end.
"""
GROUPS_AT_ONCE = 8
"""Groups of 16 lanes that take a step of the recurrence together, so that its weights are read once for 128 windows."""
FLOAT_BYTES = 4


def record_floats(sizes: Sizes) -> int:
    """Floats of one position."""
    return (sizes.record_normal + sizes.width_pad) * LANES


def directions_together(num_windows: int, *, sizes: Sizes) -> int:
    """How many directions share the lanes: as many as leave none idle, while their weights fit the budget."""
    together = directions_per_group(num_windows)
    one = FLOAT_BYTES * (sizes.packed_floats + VOCABULARY * sizes.entry_floats)
    while together > 1 and together * one > WEIGHTS_BYTES:
        together //= 2
    return together


def is_wide(sizes: Sizes, *, directions: int) -> bool:
    """Whether layer by layer is the faster way: the weights of the lanes' directions outgrow the cache."""
    return FLOAT_BYTES * directions * sizes.packed_floats > CACHED_WEIGHTS_BYTES


@dataclass(frozen=True)
class WideWorkspace:
    """float32 buffers of one thread.

    Attributes:
        groups: groups of 16 lanes that one pass reads.
        steps: input bytes that one chunk holds for each of the groups.
        log_probability: float64 [groups, T, 16].
    """

    groups: int
    steps: int
    flat: np.ndarray
    packed: np.ndarray
    table: np.ndarray
    state: np.ndarray
    activations: np.ndarray
    scratch: np.ndarray
    log_probability: np.ndarray

    @classmethod
    def for_sizes(cls, sizes: Sizes, *, num_groups: int, input_bytes: int, directions: int = 1) -> "WideWorkspace":
        groups = min(num_groups, GROUPS_AT_ONCE)
        step_floats = groups * record_floats(sizes)
        steps = min(input_bytes, max(1, ACTIVATION_BYTES // (FLOAT_BYTES * step_floats)))
        return cls(
            groups=groups,
            steps=steps,
            flat=aligned_floats(sizes.num_parameters),
            packed=aligned_floats(directions * sizes.packed_floats),
            table=aligned_floats(directions * VOCABULARY * sizes.entry_floats),
            state=aligned_floats(sizes.depth * groups * 2 * sizes.width_pad * LANES),
            activations=aligned_floats(steps * step_floats),
            scratch=aligned_floats(sizes.scratch_floats),
            log_probability=np.zeros((groups, input_bytes, LANES)),
        )
