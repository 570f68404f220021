"""The addresses and shapes on which every implementation is compared; the benchmark uses the last."""

from typing import NamedTuple

from thinwire.kernels.expert_shape import ExpertShape


class ProbeCase(NamedTuple):
    name: str
    shape: ExpertShape
    direction: int
    update: int
    accumulation: int


CASES = (
    ProbeCase("first address", ExpertShape(width=8, embed_width=8), 0, 0, 0),
    ProbeCase("one block", ExpertShape(width=2, depth=1, embed_width=2), 1, 7, 0),
    ProbeCase("size no multiple of 64", ExpertShape(width=5, depth=3, embed_width=3), 3, 1, 2),
    ProbeCase("largest address", ExpertShape(width=4, depth=1, embed_width=4), 2**32 - 1, 2**32 - 1, 2**32 - 1),
    ProbeCase("paper, d = 32", ExpertShape(width=32), 63, 4_160_000, 15),
)
