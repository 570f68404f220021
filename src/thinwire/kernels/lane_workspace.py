"""What does one thread need to run experts on lanes?  Buffers for as many directions as share the lanes."""

from dataclasses import dataclass

import numpy as np

from thinwire.kernels.lane_layout import LANES, VOCABULARY, Sizes, aligned_floats


@dataclass(frozen=True)
class LaneWorkspace:
    """float32 buffers of one thread; ``log_probability`` is float64 [T, 16]."""

    flat: np.ndarray
    packed: np.ndarray
    table: np.ndarray
    state: np.ndarray
    scratch: np.ndarray
    log_probability: np.ndarray

    @classmethod
    def for_sizes(cls, sizes: Sizes, *, input_bytes: int, directions: int = 1) -> "LaneWorkspace":
        return cls(
            flat=aligned_floats(sizes.num_parameters),
            packed=aligned_floats(directions * sizes.packed_floats),
            table=aligned_floats(directions * VOCABULARY * sizes.entry_floats),
            state=aligned_floats(sizes.state_floats),
            scratch=aligned_floats(sizes.scratch_floats),
            log_probability=np.zeros((input_bytes, LANES)),
        )
