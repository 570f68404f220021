"""The shapes and rules on which every implementation is compared, and the ones that are timed."""

from typing import NamedTuple

import numpy as np

from thinwire.kernels.eggroll.shape import EggrollRules, EggrollShape

PAPER_WIDTHS = {20: 39_540, 29: 76_125, 58: 273_354, 118: 1_065_894, 339: 8_456_355}
"""Parameters of each width of appendix D.1."""


class EggrollCase(NamedTuple):
    name: str
    shape: EggrollShape
    rules: EggrollRules = EggrollRules()
    first_pair: int = 0
    num_pairs: int = 3
    streams: int = 2
    input_bytes: int = 8


class EggrollInputs(NamedTuple):
    """float32 [M] weights, uint8 [S, T + 1] windows with a few ends of documents, float32 [S, L, d] state."""

    theta: np.ndarray
    windows: np.ndarray
    state: np.ndarray


CASES = (
    EggrollCase("one pair, one byte", EggrollShape(width=8, depth=1), num_pairs=1, streams=1, input_bytes=1),
    EggrollCase("width 20", EggrollShape(width=20), num_pairs=5),
    EggrollCase("width no multiple of four, far pair", EggrollShape(width=29, depth=2), first_pair=2**20 - 3),
    EggrollCase("more pairs than lanes", EggrollShape(width=5, depth=2), num_pairs=37, streams=7),
    EggrollCase("sigmoid, tanh", EggrollShape(width=12, depth=3), EggrollRules(activation="sigmoid_tanh"), num_pairs=4),
    EggrollCase("softmax of base 2", EggrollShape(width=9, depth=2), EggrollRules(softmax="base_2")),
    EggrollCase("documents ignored", EggrollShape(width=9, depth=2), EggrollRules(document_end="ignore")),
    EggrollCase("large sigma", EggrollShape(width=16, depth=2), EggrollRules(sigma_shift=0), num_pairs=20),
)


def inputs_for(case: EggrollCase) -> EggrollInputs:
    """The same for every implementation; gains near 1, biases near 0, so that none hides."""
    generator = np.random.Generator(np.random.Philox(case.shape.width))
    theta = generator.standard_normal(case.shape.num_parameters).astype(np.float32)
    for slot in case.shape.slots:
        if len(slot.shape) == 1:
            theta[slot.start : slot.stop] = ("norm" in slot.name) + 0.2 * theta[slot.start : slot.stop]
    windows = generator.integers(0, 256, (case.streams, case.input_bytes + 1), dtype=np.uint8)
    windows[-1, case.input_bytes // 2] = 0
    state = generator.standard_normal((case.streams, case.shape.depth, case.shape.width)).astype(np.float32)
    return EggrollInputs(theta, windows, state)
