"""How do numbers of 1, 2, 4 or 8 bits lie in bytes?  The first in the lowest bits, the last byte filled with zeros."""

import torch
from jaxtyping import UInt8
from torch import Tensor


def packed_size(count: int, *, bits: int) -> int:
    """Bytes for ``count`` numbers of ``bits`` bits."""
    return -(-count * bits // 8)


def pack_bits(numbers: UInt8[Tensor, "*batch n"], *, bits: int) -> UInt8[Tensor, "*batch m"]:
    """Packs the last axis; numbers are below 2^bits."""
    in_byte = 8 // bits
    numbers = torch.nn.functional.pad(numbers, (0, -numbers.shape[-1] % in_byte))
    numbers = numbers.unflatten(-1, (-1, in_byte))
    packed = torch.zeros_like(numbers[..., 0])
    for place in range(in_byte):
        packed |= numbers[..., place] << (place * bits)
    return packed


def unpack_bits(packed: UInt8[Tensor, "*batch m"], *, bits: int, count: int) -> UInt8[Tensor, "*batch n"]:
    """The first ``count`` numbers."""
    mask = (1 << bits) - 1
    numbers = torch.stack([(packed >> (place * bits)) & mask for place in range(8 // bits)], dim=-1)
    return numbers.flatten(-2)[..., :count]
