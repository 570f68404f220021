"""What do all ranks do together?  Sums in rank order, broadcasts and small values, made of counted messages.

Every rank calls the same function in the same order for the same slot. A rank sends to its neighbours one after the
other beginning with the next one, so that at any time every receiver hears from one sender.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch

from thinwire.comm.group import Group, Pending, TensorSpec, spec_of

COLLECTIVE_SLOT = 1 << 20
"""Messages of the caller's own take lower slots."""
CONTROL = "control"
_LENGTH = (TensorSpec((1,), torch.int64),)


def sum_in_rank_order(
    group: Group,
    tensor: torch.Tensor,
    *,
    tag: str,
    wire: torch.dtype | None = None,
    slot: int = COLLECTIVE_SLOT,
) -> torch.Tensor:
    """The sum over all ranks, the same bits on every rank: each sums one piece in rank order and sends it to all.

    Args:
        tensor: [n], the same n on every rank.
        tag: what it is for, in the ledger.
        wire: how numbers travel, in both directions; None is the tensor's own type. Accumulates in float32, or in
            float64 where the tensor is float64, or in the tensor's own integers.
        slot: sums that run at the same time in different threads need different ones.

    Returns:
        [n], of the tensor's type. In a group of one it is a copy.

    Raises:
        PeerLostError: a rank is lost.
    """
    if group.size == 1:
        return tensor.clone()
    wire = wire or tensor.dtype
    pieces = piece_lengths(tensor.numel(), size=group.size)
    own = pieces[group.rank]
    gathered = {peer: _expect(group, own, wire, source=peer, slot=slot, tag=tag) for peer in peers_after(group)}
    parts = tensor.detach().to(wire).split(pieces)
    for peer in peers_after(group):
        group.send([parts[peer]], to=peer, slot=slot, tag=tag)
    sums = {peer: _expect(group, pieces[peer], wire, source=peer, slot=slot, tag=tag) for peer in peers_after(group)}
    total = torch.zeros(own, dtype=accumulator(tensor.dtype), device=tensor.device)
    for rank in range(group.size):
        # choice: this rank's share is rounded to the wire type as well, so that the sum does not depend on who sums.
        share = parts[rank] if rank == group.rank else gathered[rank].wait()[0]
        total += share.to(total)
    rounded = total.to(wire)
    for peer in peers_after(group):
        group.send([rounded], to=peer, slot=slot, tag=tag)
    summed = [rounded if rank == group.rank else sums[rank].wait()[0] for rank in range(group.size)]
    return torch.cat([part.to(tensor) for part in summed])


def sum_bytes(num_elements: int, *, size: int, wire: torch.dtype) -> int:
    """What all ranks together send for one sum: 2 (m - 1) n numbers."""
    return 2 * (size - 1) * num_elements * wire.itemsize


def broadcast(
    group: Group, tensors: Sequence[torch.Tensor], *, root: int, tag: str, slot: int = COLLECTIVE_SLOT
) -> list[torch.Tensor]:
    """The root's tensors on every rank.

    Args:
        tensors: the root's; other ranks give tensors of the same shapes and types.
        root: who has them.

    Raises:
        PeerLostError: a rank is lost.
    """
    if group.size == 1 or group.rank == root:
        for peer in peers_after(group):
            group.send(tensors, to=peer, slot=slot, tag=tag)
        return list(tensors)
    specs = [spec_of(tensor) for tensor in tensors]
    return list(group.receive(specs, source=root, slot=slot, tag=tag).wait())


def gather_json(group: Group, value: Any, *, tag: str = CONTROL, slot: int = COLLECTIVE_SLOT) -> list[Any]:
    """Every rank's value on every rank, in rank order.

    Args:
        value: what JSON can hold; floats come back with the same bits.

    Raises:
        PeerLostError: a rank is lost.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = {peer: group.receive(_LENGTH, source=peer, slot=slot, tag=tag) for peer in peers_after(group)}
    for peer in peers_after(group):
        group.send([torch.tensor([text.numel()])], to=peer, slot=slot, tag=tag)
        group.send([text], to=peer, slot=slot, tag=tag)
    texts: dict[int, Pending] = {}
    for peer, length in lengths.items():
        texts[peer] = _expect(group, int(length.wait()[0]), torch.uint8, source=peer, slot=slot, tag=tag)
    values = {peer: json.loads(texts[peer].wait()[0].cpu().numpy().tobytes()) for peer in texts}
    return [json.loads(json.dumps(value)) if rank == group.rank else values[rank] for rank in range(group.size)]


def gather_in_rank_order(
    group: Group, tensor: torch.Tensor, *, lengths: Sequence[int], tag: str, slot: int = COLLECTIVE_SLOT
) -> torch.Tensor:
    """Every rank's numbers on every rank, one behind the other in rank order.

    Args:
        tensor: [n], of the same type on every rank.
        lengths: n of every rank, known to all.
        tag: what it is for, in the ledger.

    Raises:
        PeerLostError: a rank is lost.
    """
    coming = {
        peer: _expect(group, lengths[peer], tensor.dtype, source=peer, slot=slot, tag=tag)
        for peer in peers_after(group)
    }
    for peer in peers_after(group):
        group.send([tensor], to=peer, slot=slot, tag=tag)
    return torch.cat([tensor if rank == group.rank else coming[rank].wait()[0] for rank in range(group.size)])


def gather_bytes(num_elements: int, *, size: int, dtype: torch.dtype) -> int:
    """What all ranks together send so that each has the ``num_elements`` numbers of all."""
    return (size - 1) * num_elements * dtype.itemsize


def barrier(group: Group, *, slot: int = COLLECTIVE_SLOT) -> None:
    """Return when every rank has come here.

    Raises:
        PeerLostError: a rank is lost.
    """
    arrivals = [_expect(group, 1, torch.uint8, source=peer, slot=slot, tag=CONTROL) for peer in peers_after(group)]
    for peer in peers_after(group):
        group.send([torch.zeros(1, dtype=torch.uint8)], to=peer, slot=slot, tag=CONTROL)
    for arrival in arrivals:
        arrival.wait()


def peers_after(group: Group) -> list[int]:
    """The other ranks, beginning with the next: the order in which to send."""
    return [(group.rank + distance) % group.size for distance in range(1, group.size)]


def piece_lengths(num_elements: int, *, size: int) -> list[int]:
    """Nearly equal pieces, one for each rank; the first ones are longer by one where it does not divide."""
    least, longer = divmod(num_elements, size)
    return [least + (rank < longer) for rank in range(size)]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type sums are made in."""
    if not dtype.is_floating_point:
        return dtype
    return torch.float64 if dtype == torch.float64 else torch.float32


def _expect(group: Group, length: int, dtype: torch.dtype, *, source: int, slot: int, tag: str) -> Pending:
    return group.receive([TensorSpec((length,), dtype)], source=source, slot=slot, tag=tag)
