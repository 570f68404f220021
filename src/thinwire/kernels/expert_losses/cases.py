"""The shapes on which every implementation is compared with FP64, and those that the benchmark times."""

from typing import Literal, NamedTuple

import numpy as np

from thinwire.base.seeds import numpy_generator
from thinwire.kernels.expert_shape import ExpertShape


class LossCase(NamedTuple):
    """One comparison.

    Attributes:
        weights: ``usual``: near initialisation; ``extreme``: gains and weights so large that every gate saturates.
        text: ``mixed`` random bytes; ``constant``: all bytes equal.
    """

    name: str
    shape: ExpertShape
    batch: int
    input_bytes: int
    num_directions: int
    epsilon: float = 1e-3
    weights: Literal["usual", "extreme"] = "usual"
    text: Literal["mixed", "constant"] = "mixed"


CASES = (
    LossCase("one byte, one window, one direction", ExpertShape(width=8, embed_width=8), 1, 1, 1),
    LossCase("odd batch", ExpertShape(width=16, embed_width=16), 5, 12, 3),
    LossCase("batch past one lane group", ExpertShape(width=16, embed_width=16), 17, 9, 2),
    LossCase("eight directions share the lanes", ExpertShape(width=16, embed_width=16), 2, 9, 5),
    LossCase("width no multiple of the lanes", ExpertShape(width=7, depth=3, embed_width=7), 6, 11, 2),
    LossCase("projections", ExpertShape(width=12, depth=1, embed_width=20), 4, 10, 2),
    LossCase("all bytes equal", ExpertShape(width=16, embed_width=16), 4, 16, 2, text="constant"),
    LossCase("extreme weights", ExpertShape(width=16, embed_width=16), 4, 16, 2, weights="extreme"),
    LossCase("paper, d = 32, small batch", ExpertShape(width=32), 16, 64, 2),
    LossCase("small radius", ExpertShape(width=32), 16, 32, 2, epsilon=1e-5),
)

# Experts whose weights exceed a core's cache; kept apart because FP64 and interpreted kernels take long over them.
WIDE_CASES = (
    LossCase("wide, one byte, one window, one direction", ExpertShape(width=509), 1, 1, 1),
    LossCase("wide, odd batch", ExpertShape(width=181), 5, 7, 3),
    LossCase("wide, batch past four lane groups", ExpertShape(width=70), 67, 5, 1),
    LossCase("wide, no projections", ExpertShape(width=70, embed_width=70), 17, 6, 2),
    LossCase("wide, projections, four directions share the lanes", ExpertShape(width=70), 3, 9, 5),
    LossCase("wide, decoder wider than four widths", ExpertShape(width=16, embed_width=96), 5, 6, 2),
    LossCase("wide, all bytes equal", ExpertShape(width=70, depth=3), 4, 12, 2, text="constant"),
    LossCase("wide, extreme weights", ExpertShape(width=181), 6, 8, 2, weights="extreme"),
    LossCase("paper, d = 509, small batch", ExpertShape(width=509), 16, 4, 1),
)

# The paper's update (appendix E), and many directions on few windows, where our own recipe spends its forwards.
BENCH_CASES = (
    LossCase("d = 32, T = 1,024, 64 directions x 64 windows", ExpertShape(width=32), 64, 1024, 64),
    LossCase("d = 32, T = 1,024, 1,024 directions x 16 windows", ExpertShape(width=32), 16, 1024, 1024),
    LossCase("d = 32, T = 1,024, 1,024 directions x 8 windows", ExpertShape(width=32), 8, 1024, 1024),
    LossCase("d = 32, T = 1,024, 1,024 directions x 4 windows", ExpertShape(width=32), 4, 1024, 1024),
)

# The paper's wide experts at its batch. One direction and short windows: a round of all three takes some 15 seconds, an
# update of 64 directions at 1,024 bytes a quarter of an hour. The time loop is the same; what each direction costs once
# (probe, packing, table) has a larger share here than in training.
WIDE_BENCH_CASES = (
    LossCase("d = 181, T = 192, 1 direction x 64 windows", ExpertShape(width=181), 64, 192, 1),
    LossCase("d = 361, T = 64, 1 direction x 64 windows", ExpertShape(width=361), 64, 64, 1),
    LossCase("d = 509, T = 48, 1 direction x 64 windows", ExpertShape(width=509), 64, 48, 1),
)


class LossInputs(NamedTuple):
    """float64 theta [M] and decoder [256, d_E]; uint8 windows [B, T + 1]. Exactly representable in float32."""

    theta: np.ndarray
    decoder: np.ndarray
    windows: np.ndarray


def inputs_for(case: LossCase) -> LossInputs:
    """The case's numbers, the same on every machine."""
    generator = numpy_generator(0, f"case {case.name}")
    scale = 20.0 if case.weights == "extreme" else 1.0
    theta = scale * generator.uniform(-1, 1, case.shape.num_parameters) / np.sqrt(case.shape.width)
    for slot in case.shape.slots:
        if slot.is_gain:
            theta[slot.start : slot.stop] = scale * (1 + 0.1 * generator.standard_normal(slot.size))
    decoder = 0.3 * generator.standard_normal((256, case.shape.embed_width))
    windows = generator.integers(0, 256, (case.batch, case.input_bytes + 1), dtype=np.uint8)
    if case.text == "constant":
        windows[:] = 101
    return LossInputs(theta.astype(np.float32).astype(float), decoder.astype(np.float32).astype(float), windows)
