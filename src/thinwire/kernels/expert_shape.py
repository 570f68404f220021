"""Where does each weight of an expert lie?  Theta is one flat vector; this is its map (appendix C).

Order: block by block the LSTM's gain, its input and hidden weights (gates i, f, g, o), the MLP's gain, up and down
weights; then the last gain; then, where ``width != embed_width``, the projections in and out.  The tied matrix E is
not part of theta: it is never perturbed.
"""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass

VOCABULARY = 256
LAYER_NORM_EPSILON = 1e-5
NUM_GATES = 4
MLP_FACTOR = 4


@dataclass(frozen=True)
class TensorSlot:
    """One tensor inside theta.

    Attributes:
        name: dotted name, e.g. ``blocks.0.lstm_input``.
        start: first coordinate in theta.
        shape: rows, columns; a gain has one dimension.
    """

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def is_gain(self) -> bool:
        """Normalisation gains are always perturbed; other weights with probability 1/2 (appendix E)."""
        return len(self.shape) == 1


def end_to_end(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[TensorSlot, ...]:
    """Named tensors one behind the other in a flat vector, without gaps."""
    slots, start = [], 0
    for name, shape in shapes:
        slots.append(TensorSlot(name, start, shape))
        start = slots[-1].stop
    return tuple(slots)


def require_counts(**counts: int) -> None:
    """Raises ValueError for one that is no whole number of at least 1."""
    for name, count in counts.items():
        try:
            is_count = operator.index(count) >= 1
        except TypeError:
            is_count = False
        if not is_count:
            raise ValueError(f"{name} is a whole number of at least 1, not {count!r}")


@dataclass(frozen=True)
class ExpertShape:
    """The sizes of one expert: d_t, D and d_E of appendix C. Raises ValueError where one is no whole number >= 1."""

    width: int
    depth: int = 2
    embed_width: int = 32

    def __post_init__(self) -> None:
        require_counts(width=self.width, depth=self.depth, embed_width=self.embed_width)

    @property
    def has_projections(self) -> bool:
        return self.width != self.embed_width

    @property
    def slots(self) -> tuple[TensorSlot, ...]:
        """Every tensor of theta, in order, without gaps."""
        d, hidden = self.width, MLP_FACTOR * self.width
        shapes: list[tuple[str, tuple[int, ...]]] = []
        for block in range(self.depth):
            shapes += [
                (f"blocks.{block}.lstm_norm", (d,)),
                (f"blocks.{block}.lstm_input", (NUM_GATES * d, d)),
                (f"blocks.{block}.lstm_hidden", (NUM_GATES * d, d)),
                (f"blocks.{block}.mlp_norm", (d,)),
                (f"blocks.{block}.mlp_up", (hidden, d)),
                (f"blocks.{block}.mlp_down", (d, hidden)),
            ]
        shapes.append(("norm", (d,)))
        if self.has_projections:
            shapes += [("project_in", (d, self.embed_width)), ("project_out", (self.embed_width, d))]
        return end_to_end(shapes)

    @property
    def num_parameters(self) -> int:
        """M_body = 16 D d^2 + (2D + 1) d, plus 2 d_E d with projections: the perturbed coordinates."""
        return self.slots[-1].stop

    @property
    def num_decoder_parameters(self) -> int:
        """256 d_E, the tied embedding and decoder."""
        return VOCABULARY * self.embed_width

    @property
    def operations_per_byte(self) -> int:
        """F_N of Eq. (21): LSTMs, MLPs, projections and decoder, a multiply-add counted as two operations."""
        matrices = sum(slot.size for slot in self.slots if not slot.is_gain)
        return 2 * (matrices + self.num_decoder_parameters)
