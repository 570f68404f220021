"""Where does each weight of EGGROLL's network lie, and which normals perturb it?  Theta is flat; this is its map.

The network in real units (EGGROLL; appendix D.1): embedding, six layers of a gated recurrent unit and a two-matrix
MLP without activation, last norm, untied head: 72 d^2 + 537 d parameters.

Noise of a pair: a matrix [O, K] takes a [O] and b [K], perturbed by sigma s a b^T; a vector takes two normals a
coordinate, perturbed by their product. Every one of these runs of normals begins a new Philox block.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from thinwire.kernels.expert_shape import MLP_FACTOR, VOCABULARY, TensorSlot, end_to_end, require_counts

LIMIT = 127 / 16
"""Every product, gate and candidate is clipped to +-LIMIT: what eight bits with four of fraction hold."""
SMALLEST_SCALE = 1 / 16
"""A norm divides by the mean size of its input, but by no less than this."""
NORMALS_PER_BLOCK = 8
LAYER_MATRICES = ("forget_input", "candidate_input", "forget_hidden", "candidate_hidden", "mlp_up", "mlp_down")
LAYER_VECTORS = ("recurrent_norm", "forget_bias", "candidate_bias", "mlp_norm")


@dataclass(frozen=True)
class EggrollRules:
    """What public sources leave unsettled, each with its default, and the recorded settings of appendix D.1."""

    sigma_shift: int = 4
    """sigma = 2^-sigma_shift."""
    alpha: float = 0.01
    """The part of the weights that moves where the fitness signs are random."""
    float_step: float = 0.01
    """How far a weight moves."""
    activation: Literal["clip", "sigmoid_tanh"] = "clip"
    # choice: the integer network's linear gate G = (16 f + 127) / 256, as the real-units form is given; else sigmoid
    # and tanh of the unclipped sums.
    softmax: Literal["natural", "base_2"] = "natural"
    # choice: natural, since losses are compared in nats; base_2 takes p = 2^y / sum 2^y (losses are nats either way).
    state: Literal["carried", "reset"] = "carried"
    # choice: the training text is read on as a stream, 100 bytes an update; windows are scored from a zero state.
    document_end: Literal["reset", "ignore"] = "reset"
    # choice: byte 0 ends a document of the corpus, so the state is zeroed before it is read.
    threshold: Literal["real", "whole"] = "real"
    # choice: Z is real here; whole rounds the threshold to the nearest integer, as counts would have it.

    @property
    def sigma(self) -> float:
        return 2.0**-self.sigma_shift


class NormalRun(NamedTuple):
    """One run of a pair's normals.

    Attributes:
        tensor: name of the slot that it perturbs.
        size: normals.
        first_block: of its first eight normals in the pair's Philox counter.
        start: place among the pair's normals, without gaps.
    """

    tensor: str
    size: int
    first_block: int
    start: int


@dataclass(frozen=True)
class EggrollShape:
    """The sizes of one network. Raises ValueError where one is no whole number of at least 1."""

    width: int
    depth: int = 6

    def __post_init__(self) -> None:
        require_counts(width=self.width, depth=self.depth)

    @property
    def slots(self) -> tuple[TensorSlot, ...]:
        """Every tensor of theta, in order, without gaps."""
        d, hidden = self.width, MLP_FACTOR * self.width
        shapes: list[tuple[str, tuple[int, ...]]] = [("embedding", (VOCABULARY, d))]
        for layer in range(self.depth):
            sizes = {"mlp_up": (hidden, d), "mlp_down": (d, hidden)}
            shapes += [(f"layers.{layer}.{name}", (d,)) for name in LAYER_VECTORS]
            shapes += [(f"layers.{layer}.{name}", sizes.get(name, (d, d))) for name in LAYER_MATRICES]
        shapes += [("norm", (d,)), ("head", (VOCABULARY, d))]
        return end_to_end(shapes)

    @property
    def num_parameters(self) -> int:
        """72 d^2 + 537 d at depth 6."""
        return self.slots[-1].stop

    @property
    def normal_runs(self) -> tuple[NormalRun, ...]:
        """Two runs a tensor, in the order of the slots: a and b of a matrix, both factors of a vector."""
        runs: list[NormalRun] = []
        block = start = 0
        for slot in self.slots:
            for size in slot.shape if len(slot.shape) == 2 else 2 * slot.shape:
                runs.append(NormalRun(slot.name, size, block, start))
                block += -(-size // NORMALS_PER_BLOCK)
                start += size
        return tuple(runs)

    @property
    def num_normals(self) -> int:
        """Normals of one pair."""
        last = self.normal_runs[-1]
        return last.start + last.size

    @property
    def operations_per_byte(self) -> int:
        """Of the unperturbed forward, a multiply-add counted as two; the embedding is a look-up."""
        matrices = sum(slot.size for slot in self.slots if len(slot.shape) == 2 and slot.name != "embedding")
        return 2 * matrices


def divisor(fan_in: int) -> int:
    """floor(sqrt(fan_in)), what a product is divided by."""
    return math.isqrt(fan_in)
