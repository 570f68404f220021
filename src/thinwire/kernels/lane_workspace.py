"""What does one thread need to run experts on lanes?  Buffers whose size depends on neither directions nor batch."""

from dataclasses import dataclass

import numpy as np

from thinwire.kernels.lane_layout import Sizes, aligned_floats


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
    def for_sizes(cls, sizes: Sizes, *, input_bytes: int) -> "LaneWorkspace":
        return cls(
            flat=aligned_floats(sizes.num_parameters),
            packed=aligned_floats(sizes.packed_floats),
            table=aligned_floats(sizes.table_floats),
            state=aligned_floats(sizes.state_floats),
            scratch=aligned_floats(sizes.scratch_floats),
            log_probability=np.zeros((input_bytes, 16)),
        )
