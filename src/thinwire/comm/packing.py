"""How do several tensors become one message?  Their bytes one after the other, nothing between them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


class TensorSpec(NamedTuple):
    """What the receiver has to know beforehand."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype)


def pack(tensors: Sequence[torch.Tensor], *, header: torch.Tensor | None = None) -> torch.Tensor:
    """A uint8 copy of all bytes, on the device of the tensors; later changes of the tensors do not reach it."""
    parts = [] if header is None else [header]
    parts += [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    if len(parts) == 1:
        return parts[0].clone()
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def unpack(buffer: torch.Tensor, specs: Sequence[TensorSpec], *, start: int = 0) -> tuple[torch.Tensor, ...]:
    """The tensors of a packed message that begins at byte ``start``; they share the buffer where alignment allows."""
    tensors = []
    for spec in specs:
        part = buffer[start : start + spec.num_bytes]
        if part.storage_offset() % spec.dtype.itemsize:
            part = part.clone()
        tensors.append(part.view(spec.dtype).reshape(spec.shape))
        start += spec.num_bytes
    return tuple(tensors)
