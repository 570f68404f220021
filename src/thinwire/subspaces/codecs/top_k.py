"""What if only the largest entries of K and V travel?  The paper's baseline by sparsification (section 5.5).

choice: the largest of a whole chunk of one sequence, keys and values apart; the paper does not say over what. Where
they lie travels as one bit an entry: at one entry in ten that is less than an index each. The backward pass is exact,
and only entries that travelled have a gradient.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.comm.packing import TensorSpec
from thinwire.subspaces.codecs.base import Codec, Coded, project
from thinwire.subspaces.codecs.bits import pack_bits, packed_size, unpack_bits


class TopKCodec(Codec):
    """Carriers: (values [b, kept],) in the order of the entries; extra: (bool [b, t, w], true where one was kept).

    Args:
        width: w = d_kv.
        wire: how a value travels.
        keep_fraction: part of a chunk's entries that travels; at least one does.
    """

    def __init__(self, *, width: int, wire: torch.dtype, keep_fraction: float) -> None:
        super().__init__(width=width, wire=wire)
        self.keep_fraction = keep_fraction

    def num_kept(self, *, tokens: int) -> int:
        """Entries of a chunk that travel."""
        return max(1, round(self.keep_fraction * tokens * self.width))

    def encode(self, hidden: Tensor, weight: Tensor, *, theta: Tensor | None) -> Coded:  # noqa: ARG002
        z = project(hidden, weight)
        entries = z.flatten(1)
        largest = entries.detach().abs().topk(self.num_kept(tokens=z.shape[1]), dim=-1, sorted=False).indices
        kept = torch.zeros_like(entries, dtype=torch.bool).scatter_(1, largest, True)
        return Coded((entries[kept].unflatten(0, (len(z), -1)),), (kept.view(z.shape),))

    def pack(self, coded: Coded) -> tuple[Tensor, ...]:
        values, kept = coded.carriers[0], coded.extra[0]
        return values.detach().to(self.wire), pack_bits(kept.flatten(1).to(torch.uint8), bits=1)

    def unpack(self, wire: Sequence[Tensor], *, tokens: int, dtype: torch.dtype) -> Coded:
        values, bitmap = wire
        kept = unpack_bits(bitmap, bits=1, count=tokens * self.width).bool()
        return Coded((values.detach().to(dtype, copy=True),), (kept.unflatten(1, (tokens, self.width)),))

    def decode(self, coded: Coded) -> Tensor:
        values, kept = coded.carriers[0], coded.extra[0]
        return torch.zeros(kept.shape, dtype=values.dtype, device=values.device).masked_scatter(kept, values)

    def wire_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        bitmap = packed_size(tokens * self.width, bits=1)
        return (*self.gradient_specs(batch=batch, tokens=tokens), TensorSpec((batch, bitmap), torch.uint8))

    def gradient_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec((batch, self.num_kept(tokens=tokens)), self.wire),)
