"""What does one layer send, receive and keep?  Coded chunks to every rank that needs them, and gradients back (3.4).

Direct exchange: an owner sends each reader one message a layer, its chunks one after the other, keys before values;
over links that are thin between every two machines this uses all of them at once, where a ring uses one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.comm.group import Group, Pending, TensorSpec
from thinwire.kernels.partial_attention.api import Mask
from thinwire.subspaces.codecs.base import Codec, Coded
from thinwire.subspaces.full_attention import split_heads
from thinwire.subspaces.sequence import Layout, Slice
from thinwire.subspaces.turns import Intent, Turns

FORWARD_TAG, BACKWARD_TAG = "kv-forward", "kv-backward"


class CodecPair(NamedTuple):
    """One layer's codecs."""

    key: Codec
    value: Codec


class KeyValue(NamedTuple):
    """One chunk as it is read: coded keys and coded values."""

    key: Coded
    value: Coded

    def carriers(self) -> tuple[Tensor, ...]:
        return self.key.carriers + self.value.carriers


@dataclass(frozen=True)
class Place:
    """Where a pass runs: its group, how the sequence lies on it, and in which type it computes."""

    group: Group
    layout: Layout
    batch: int
    num_streams: int
    dtype: torch.dtype
    device: torch.device
    turns: Turns = field(default_factory=Turns)
    """Of the streams; a wait gives the turn away."""

    def wait(self, pending: Pending, *, then: Intent = "compute") -> tuple[Tensor, ...]:
        """What a message brings."""
        with self.turns.away(then=then):
            return pending.wait()


class Angles(NamedTuple):
    """RoPE's cosines and sines of some positions, [tokens, head_width] each; a pass makes them once for all layers."""

    cos: Tensor
    sin: Tensor

    def of(self, rows: slice) -> "Angles":
        return Angles(self.cos[rows], self.sin[rows])


@dataclass
class Exchange:
    """What one layer of one stream sends, receives and keeps."""

    place: Place
    codecs: CodecPair
    angles: Angles
    slot: int
    arriving: dict[int, Pending]
    chunks: dict[int, KeyValue] = field(default_factory=dict)
    returning: dict[int, Pending] = field(default_factory=dict)

    @property
    def own_slices(self) -> tuple[Slice, ...]:
        return self.place.layout.slices(self.place.group.rank)

    def others(self) -> list[int]:
        """The other ranks in a circle that begins behind this one, so that not all wait for the same link."""
        rank, size = self.place.group.rank, self.place.group.size
        return [(rank + step) % size for step in range(1, size)]

    def received_from(self, owner: int) -> tuple[int, ...]:
        return self.place.layout.sent(owner=owner, reader=self.place.group.rank)

    def sent_to(self, reader: int) -> tuple[int, ...]:
        return self.place.layout.sent(owner=self.place.group.rank, reader=reader)

    def send_own(self, coded: dict[int, KeyValue]) -> None:
        """Pack, send to every reader, and keep what a reader would see."""
        packed = {c: (self.codecs.key.pack(kv.key), self.codecs.value.pack(kv.value)) for c, kv in coded.items()}
        for reader in self.others():
            parts = [tensor for chunk in self.sent_to(reader) for side in packed[chunk] for tensor in side]
            if parts:
                self.place.group.send(parts, to=reader, slot=self.slot, tag=FORWARD_TAG)
        for chunk, (key, value) in packed.items():
            self.chunks[chunk] = self._unpack(key, value, chunk)

    def receive_from(self, owner: int) -> tuple[int, ...]:
        """Wait for an owner's chunks; returns their numbers."""
        numbers = self.received_from(owner)
        if numbers and owner in self.arriving:
            wire = list(self.place.wait(self.arriving.pop(owner)))
            for chunk in numbers:
                tokens = self.place.layout.length(chunk)
                num_key = len(self.codecs.key.wire_specs(batch=self.place.batch, tokens=tokens))
                num_value = len(self.codecs.value.wire_specs(batch=self.place.batch, tokens=tokens))
                self.chunks[chunk] = self._unpack(wire[:num_key], wire[num_key : num_key + num_value], chunk)
                del wire[: num_key + num_value]
        return numbers

    def _unpack(self, key: Sequence[Tensor], value: Sequence[Tensor], chunk: int) -> KeyValue:
        tokens, dtype = self.place.layout.length(chunk), self.place.dtype
        return KeyValue(
            self.codecs.key.unpack(key, tokens=tokens, dtype=dtype),
            self.codecs.value.unpack(value, tokens=tokens, dtype=dtype),
        )

    def expect_gradients(self) -> None:
        """Post the receives of the gradients that readers will return, before the own chunks leave.

        gloo tells a reader so on the connection that the own chunks take: told later, it would hold its gradients back
        until they, and another stream's, had passed.
        """
        for reader in self.others():
            specs = [spec for chunk in self.sent_to(reader) for spec in self._gradient_specs(chunk)]
            if specs:
                self.returning[reader] = self.place.group.receive(
                    specs, source=reader, slot=self.slot + 1, tag=BACKWARD_TAG
                )

    def return_gradients(self, owner: int, gradients: dict[int, tuple[Tensor, ...]]) -> None:
        """Send an owner the gradients of what it sent."""
        parts: list[Tensor] = []
        for chunk in self.received_from(owner):
            specs = self._gradient_specs(chunk)
            parts += [g.to(spec.dtype) for g, spec in zip(gradients.pop(chunk), specs, strict=True)]
        if parts:
            self.place.group.send(parts, to=owner, slot=self.slot + 1, tag=BACKWARD_TAG)

    def sum_gradients(self, own: Sequence[Tensor]) -> list[Tensor]:
        """Own and returned gradients of the own carriers, summed in the order of the ranks, at least in FP32."""
        by_rank = {self.place.group.rank: self._by_chunk(own, [piece.chunk for piece in self.own_slices])}
        for reader, pending in self.returning.items():
            by_rank[reader] = self._by_chunk(self.place.wait(pending, then="send"), self.sent_to(reader))
        found: list[Tensor] = []
        for piece in self.own_slices:
            parts = [by_rank[rank][piece.chunk] for rank in sorted(by_rank) if piece.chunk in by_rank[rank]]
            for mine, carrier in zip(zip(*parts, strict=True), self.chunks[piece.chunk].carriers(), strict=True):
                total = mine[0].to(sum_type(carrier.dtype))
                for part in mine[1:]:
                    total = total + part
                found.append(total.to(carrier.dtype))
        return found

    def _by_chunk(self, gradients: Sequence[Tensor], chunks: Sequence[int]) -> dict[int, list[Tensor]]:
        """Cut a flat list of carriers' gradients at the chunks' borders."""
        found, first = {}, 0
        for chunk in chunks:
            count = len(self.chunks[chunk].carriers())
            found[chunk] = list(gradients[first : first + count])
            first += count
        return found

    def _gradient_specs(self, chunk: int) -> tuple[TensorSpec, ...]:
        size = {"batch": self.place.batch, "tokens": self.place.layout.length(chunk)}
        return self.codecs.key.gradient_specs(**size) + self.codecs.value.gradient_specs(**size)

    def decode(self, carriers: KeyValue) -> tuple[Tensor, Tensor]:
        """Keys before RoPE and values of one chunk, [b, kv_heads, tokens, head_width]."""
        width = self.angles.cos.shape[-1]
        key = split_heads(self.codecs.key.decode(carriers.key), head_width=width)
        return key, split_heads(self.codecs.value.decode(carriers.value), head_width=width)

    def chunk_angles(self, chunk: int) -> Angles:
        """Of the sender's positions."""
        return self.angles.of(slice(self.place.layout.bounds[chunk], self.place.layout.bounds[chunk + 1]))

    def query_angles(self) -> Angles:
        """Of the own rows."""
        own = [self.chunk_angles(piece.chunk) for piece in self.own_slices]
        return Angles(torch.cat([each.cos for each in own]), torch.cat([each.sin for each in own]))

    def blocks(self, chunk: int) -> list[tuple[int, int, Mask]]:
        """(first query row, last, mask) of a chunk's readers here: its own rows, and all rows of later chunks."""
        slices = self.own_slices
        found: list[tuple[int, int, Mask]] = [
            (piece.first, piece.first + piece.tokens, "causal") for piece in slices if piece.chunk == chunk
        ]
        later = [piece.first for piece in slices if piece.chunk > chunk]
        if later:
            found.append((later[0], slices[-1].first + slices[-1].tokens, "full"))
        return found


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """What sums of such numbers are made in."""
    return dtype if dtype == torch.float64 else torch.float32
