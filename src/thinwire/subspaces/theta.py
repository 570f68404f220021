"""How far does each chunk turn its basis?  theta = psi(mean of a chunk's keys or values), section 3.4.

Where theta comes from the chunk before, its owner computes it and sends k scalars to the chunk's owner; the gradients
go back the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

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


Way = Literal["forward", "backward"]


@dataclass(frozen=True)
class Handover:
    """What passes between chunks of one layer and stream: theta of chunk c goes to the owner of chunk c + 1.

    All thetas are rounded to ``wire``, those that stay on a rank as well, so that the number of ranks changes nothing.
    They take the express lane: a rank can encode nothing before its thetas are here, and keys and values of the layer
    before, or of another stream, would stand in their way.
    """

    group: Group
    layout: Layout
    slot: int
    wire: torch.dtype
    turns: Turns
    arriving: dict[Way, dict[int, Pending]] = field(default_factory=dict)

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

    def expect(self, *, batch: int, generators: int, way: Way) -> None:
        """Post the receives of a pass, so that no neighbour waits for the word that it may send."""
        taken = self.outgoing if way == "backward" else self.incoming
        self.arriving[way] = {
            rank: self.group.receive(
                [TensorSpec((batch, len(taken(rank)), 2, generators), self.wire)],
                source=rank,
                slot=self._slot_of(way),
                tag="theta",
                lane="express",
            )
            for rank in self._others()
            if taken(rank)
        }

    def _others(self) -> list[int]:
        return [rank for rank in range(self.group.size) if rank != self.group.rank]

    def _slot_of(self, way: Way) -> int:
        return 2 * self.slot + (way == "backward")

    def exchange(self, rows_of: Float[Tensor, "b rows two k"], *, way: Way) -> Float[Tensor, "b rows two k"]:
        """Give every row's theta (or gradient) to its neighbour's owner; rows that get none are zero."""
        given, taken = (self.incoming, self.outgoing) if way == "backward" else (self.outgoing, self.incoming)
        wired = rows_of.to(self.wire)
        if way not in self.arriving:
            self.expect(batch=rows_of.shape[0], generators=rows_of.shape[-1], way=way)
        for rank in self._others():
            if given(rank):
                rows = [wired[:, given(rank)]]
                self.group.send(rows, to=rank, slot=self._slot_of(way), tag="theta", lane="express")
        result = torch.zeros_like(wired)
        own = self.group.rank
        result[:, taken(own)] = wired[:, given(own)]
        for rank, pending in self.arriving.pop(way).items():
            with self.turns.away(then="send" if way == "forward" else "compute"):
                (found,) = pending.wait()
            result[:, taken(rank)] = found
        return result.to(rows_of)


class _FromPreviousChunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_of: Tensor, handover: Handover) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.handover = handover
        if any(ctx.needs_input_grad):
            handover.expect(batch=rows_of.shape[0], generators=rows_of.shape[-1], way="backward")
        return handover.exchange(rows_of, way="forward")

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return ctx.handover.exchange(gradient.contiguous(), way="backward"), None


def shift_by_one_chunk(thetas: Sequence[Float[Tensor, "b two k"]], *, handover: Handover) -> list[Tensor]:
    """theta of each own chunk's predecessor; zero for the first chunk of the sequence."""
    shifted = _FromPreviousChunk.apply(torch.stack(list(thetas), dim=1), handover)
    return list(shifted.unbind(dim=1))


def is_learned(source: ThetaSource) -> bool:
    """Whether theta comes from psi."""
    return source in LEARNED_SOURCES
