"""What does context parallelism send without a codec?  K and V themselves (section 2.1)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.comm.packing import TensorSpec
from thinwire.subspaces.codecs.base import Codec, Coded, project


class PlainCodec(Codec):
    """Carriers: (z [b, t, w],)."""

    def encode(self, hidden: Tensor, weight: Tensor, *, theta: Tensor | None) -> Coded:  # noqa: ARG002
        return Coded((project(hidden, weight),))

    def pack(self, coded: Coded) -> tuple[Tensor, ...]:
        return (coded.carriers[0].detach().to(self.wire),)

    def unpack(self, wire: Sequence[Tensor], *, tokens: int, dtype: torch.dtype) -> Coded:  # noqa: ARG002
        return Coded((wire[0].detach().to(dtype, copy=True),))

    def decode(self, coded: Coded) -> Tensor:
        return coded.carriers[0]

    def wire_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec((batch, tokens, self.width), self.wire),)

    def gradient_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        return self.wire_specs(batch=batch, tokens=tokens)
