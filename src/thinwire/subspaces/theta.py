"""How far does each chunk turn its basis?  theta = psi(mean of a chunk's keys or values), section 3.4.

Where theta comes from the chunk before, its owner computes it and sends k scalars to the chunk's owner; the gradients
go back the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from thinwire.base.seeds import draw_words, stream_key
from thinwire.comm.group import Group, Pending, TensorSpec
from thinwire.subspaces.config import LEARNED_SOURCES, CodecConfig, ThetaSource
from thinwire.subspaces.rotation import squash
from thinwire.subspaces.sequence import Layout
from thinwire.subspaces.turns import Turns


class LayerHeads(nn.Module):
    """psi of one layer, for keys and for values: a linear map to k scalars, zero at the start."""

    def __init__(self, *, width: int, generators: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, generators)
        self.value = nn.Linear(width, generators)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class RotationHeads(nn.Module):
    """psi of all layers; dropped when the model is unplugged."""

    def __init__(self, *, layers: int, width: int, generators: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LayerHeads(width=width, generators=generators) for _ in range(layers))


@dataclass(frozen=True)
class ThetaAddress:
    """Where a random theta is drawn from: the run's seed and the step; another sequence has another number."""

    seed: int
    step: int
    first_sequence: int


def predict(
    heads: LayerHeads, chunks: Sequence[Float[Tensor, "b _ d"]], *, key: Tensor, value: Tensor, theta_max: float
) -> list[Float[Tensor, "b two k"]]:
    """theta of each chunk for keys (row 0) and values (row 1); the mean is taken before the linear projection.

    In the precision of the weights also where the model computes in less: every reader turns its frames by it.
    """
    if not chunks:
        return []
    with torch.autocast(chunks[0].device.type, enabled=False):
        # All chunks at once: each use of a whole weight costs a gradient of its size.
        means = torch.stack([hidden.to(key.dtype).mean(dim=1) for hidden in chunks])
        sides = [heads.key(functional.linear(means, key)), heads.value(functional.linear(means, value))]
        return list(squash(torch.stack(sides, dim=2), theta_max).unbind(dim=0))


def draw(
    codec: CodecConfig, *, address: ThetaAddress, layer: int, chunk: int, batch: int, like: Tensor
) -> Float[Tensor, "b two k"]:
    """Uniform in (-theta_max, theta_max), for the ablation of the learned rotation.

    choice: drawn anew for every step, sequence, layer and chunk; the paper says "random rotation" and no more.
    """
    count = 2 * codec.generators
    key = stream_key(address.seed, "theta-random", layer)
    rows = [draw_words(key, count, c1=chunk, c2=address.step, c3=address.first_sequence + row) for row in range(batch)]
    unit = torch.tensor([[int(word) for word in row] for row in rows], dtype=torch.float64) / 2.0**31 - 1.0
    return (codec.theta_max * unit).view(batch, 2, codec.generators).to(like)


@dataclass(frozen=True)
class Handover:
    """What passes between chunks of one layer and stream: theta of chunk c goes to the owner of chunk c + 1.

    All thetas are rounded to ``wire``, those that stay on a rank as well, so that the number of ranks changes nothing.
    """

    group: Group
    layout: Layout
    slot: int
    wire: torch.dtype
    turns: Turns

    def outgoing(self, reader: int) -> list[int]:
        """Own rows whose theta ``reader`` needs."""
        return self._rows(self.group.rank, reader, of="giver")

    def incoming(self, owner: int) -> list[int]:
        """Own rows that get their theta from ``owner``."""
        return self._rows(owner, self.group.rank, of="taker")

    def _rows(self, giver: int, taker: int, *, of: str) -> list[int]:
        owners, rows = self.layout.owners, {}
        for rank in {giver, taker}:
            rows[rank] = {c: row for row, c in enumerate(c for c, owner in enumerate(owners) if owner == rank)}
        pairs = [c for c in range(len(owners) - 1) if owners[c] == giver and owners[c + 1] == taker]
        return [rows[giver][c] if of == "giver" else rows[taker][c + 1] for c in pairs]

    def exchange(self, rows_of: Float[Tensor, "b rows two k"], *, backward: bool) -> Float[Tensor, "b rows two k"]:
        """Give every row's theta (or gradient) to its neighbour's owner; rows that get none are zero."""
        given, taken = (self.incoming, self.outgoing) if backward else (self.outgoing, self.incoming)
        others = [rank for rank in range(self.group.size) if rank != self.group.rank]
        slot = 2 * self.slot + backward
        wired = rows_of.to(self.wire)
        batch, _, sides, count = rows_of.shape
        arriving: dict[int, Pending] = {
            rank: self.group.receive(
                [TensorSpec((batch, len(taken(rank)), sides, count), self.wire)],
                source=rank,
                slot=slot,
                tag="theta",
            )
            for rank in others
            if taken(rank)
        }
        for rank in others:
            if given(rank):
                self.group.send([wired[:, given(rank)]], to=rank, slot=slot, tag="theta")
        result = torch.zeros_like(wired)
        own = self.group.rank
        result[:, taken(own)] = wired[:, given(own)]
        for rank, pending in arriving.items():
            with self.turns.away():
                (found,) = pending.wait()
            result[:, taken(rank)] = found
        return result.to(rows_of)


class _FromPreviousChunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_of: Tensor, handover: Handover) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.handover = handover
        return handover.exchange(rows_of, backward=False)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return ctx.handover.exchange(gradient.contiguous(), backward=True), None


def shift_by_one_chunk(thetas: Sequence[Float[Tensor, "b two k"]], *, handover: Handover) -> list[Tensor]:
    """theta of each own chunk's predecessor; zero for the first chunk of the sequence."""
    shifted = _FromPreviousChunk.apply(torch.stack(list(thetas), dim=1), handover)
    return list(shifted.unbind(dim=1))


def is_learned(source: ThetaSource) -> bool:
    """Whether theta comes from psi."""
    return source in LEARNED_SOURCES
