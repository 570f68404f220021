"""What if K and V travel in few bits?  The paper's baseline by quantisation (section 5.5).

choice: a scale and an offset in BF16 for each group of neighbouring entries of one token, rounding to nearest: the
paper only says "4-bit". The gradient passes straight through the rounding and travels back unquantised, because 4-bit
gradients would make a weaker baseline; its bytes are counted as they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.comm.packing import TensorSpec
from thinwire.subspaces.codecs.base import Codec, Coded, project
from thinwire.subspaces.codecs.bits import pack_bits, packed_size, unpack_bits


class QuantisedCodec(Codec):
    """Carriers: (z [b, t, w],), exact before ``pack`` and rounded after ``unpack``.

    Args:
        width: w = d_kv.
        wire: how a gradient travels.
        bits: of an entry, 2, 4 or 8.
        group: neighbouring entries that share scale and offset; divides w.

    Raises:
        ValueError: bits or group are none of these.
    """

    def __init__(self, *, width: int, wire: torch.dtype, bits: int, group: int) -> None:
        super().__init__(width=width, wire=wire)
        if bits not in (2, 4, 8):
            raise ValueError(f"bits must be 2, 4 or 8, not {bits}")
        if group < 1 or width % group:
            raise ValueError(f"a group of {group} does not divide d_kv = {width}")
        self.bits, self.group = bits, group

    def encode(self, hidden: Tensor, weight: Tensor, *, theta: Tensor | None) -> Coded:  # noqa: ARG002
        return Coded((project(hidden, weight),))

    def pack(self, coded: Coded) -> tuple[Tensor, ...]:
        """(codes [b, bytes], scales and offsets [b, t, w / group, 2]); a NaN makes its whole group NaN."""
        z = coded.carriers[0].detach()
        z = z.to(torch.promote_types(z.dtype, torch.float32)).unflatten(-1, (-1, self.group))
        levels = (1 << self.bits) - 1
        offset = z.amin(-1).to(torch.bfloat16)
        scale = ((z.amax(-1) - offset) / levels).to(torch.bfloat16)
        step = torch.where(scale > 0, scale, 1.0).to(z.dtype)  # a constant group has the code 0
        codes = ((z - offset[..., None]) / step[..., None]).round().nan_to_num(0.0).clamp(0, levels)
        return pack_bits(codes.to(torch.uint8).flatten(1), bits=self.bits), torch.stack([scale, offset], dim=-1)

    def unpack(self, wire: Sequence[Tensor], *, tokens: int, dtype: torch.dtype) -> Coded:
        packed, ranges = wire
        codes = unpack_bits(packed, bits=self.bits, count=tokens * self.width)
        scale, offset = ranges.to(torch.promote_types(dtype, torch.float32))[..., None].unbind(-2)
        grouped = codes.unflatten(1, (tokens, -1, self.group)).to(scale.dtype)
        return Coded(((offset + scale * grouped).flatten(-2).to(dtype),))

    def decode(self, coded: Coded) -> Tensor:
        return coded.carriers[0]

    def wire_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        codes = packed_size(tokens * self.width, bits=self.bits)
        return (
            TensorSpec((batch, codes), torch.uint8),
            TensorSpec((batch, tokens, self.width // self.group, 2), torch.bfloat16),
        )

    def gradient_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec((batch, tokens, self.width), self.wire),)
