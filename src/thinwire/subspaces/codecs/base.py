"""What must every codec do?  Turn a chunk into what travels, read it back, and say the bytes before any are sent.

One codec stands for the keys or the values of one layer.  A chunk's owner encodes and packs; every reader, the owner
included, unpacks and decodes, so that all of them see the same keys.  The backward pass returns the gradients of the
carriers; the owner sums them and goes on through ``encode``.

Legend: b sequences, t tokens of the chunk, d residual stream, w = d_kv.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinwire.comm.packing import TensorSpec


class Coded(NamedTuple):
    """A chunk between ``encode`` and ``decode``.

    Attributes:
        carriers: what gradients flow through, in the order of ``gradient_specs``.
        extra: what else is needed to decode.
    """

    carriers: tuple[Tensor, ...]
    extra: tuple[Tensor, ...] = ()


class Codec(ABC):
    """Keys or values of one layer.

    Args:
        width: w = d_kv.
        wire: how a number travels.
    """

    needs_theta: bool = False
    """Whether ``encode`` wants a theta, which then travels too."""

    def __init__(self, *, width: int, wire: torch.dtype) -> None:
        self.width, self.wire = width, wire

    @abstractmethod
    def encode(
        self, hidden: Float[Tensor, "b t d"], weight: Float[Tensor, "w d"], *, theta: Float[Tensor, "b k"] | None
    ) -> Coded:
        """What the owner of a chunk makes of it, with the graph to ``hidden``, ``weight`` and ``theta``.

        Args:
            hidden: the normed input of the attention, one chunk of each sequence.
            weight: of K or V, as ``nn.Linear`` holds it.
            theta: one rotation a sequence, squashed already; None where the codec does not need it.
        """

    @abstractmethod
    def pack(self, coded: Coded) -> tuple[Tensor, ...]:
        """What travels, as ``wire_specs`` says; without a graph."""

    @abstractmethod
    def unpack(self, wire: Sequence[Tensor], *, tokens: int, dtype: torch.dtype) -> Coded:
        """A reader's copy: new carriers without a graph, in ``dtype`` (theta in float32 at least)."""

    @abstractmethod
    def decode(self, coded: Coded) -> Float[Tensor, "b t w"]:
        """Keys before RoPE, or values; differentiable with respect to the carriers."""

    @abstractmethod
    def wire_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        """What ``pack`` gives."""

    @abstractmethod
    def gradient_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        """What travels back: the gradient of each carrier."""

    def wire_bytes(self, *, batch: int, tokens: int) -> int:
        """Bytes of one chunk on its way to one reader."""
        return sum(spec.num_bytes for spec in self.wire_specs(batch=batch, tokens=tokens))

    def gradient_bytes(self, *, batch: int, tokens: int) -> int:
        """Bytes of one chunk's gradient on its way back from one reader."""
        return sum(spec.num_bytes for spec in self.gradient_specs(batch=batch, tokens=tokens))


def project(hidden: Float[Tensor, "b t d"], weight: Float[Tensor, "w d"]) -> Float[Tensor, "b t w"]:
    """Z = X B, in the dtype of X."""
    return hidden @ weight.mT.to(hidden.dtype)
