"""How does a query meet keys that lie on other machines?  Context-parallel attention by direct exchange (section 3.4).

``begin`` encodes the own chunks and sends them to every rank that holds a later chunk; ``finish`` attends to the own
chunks while the others travel, then to each rank's chunks, and merges by online softmax, so that memory stays O(n_i).
Backward is exact in the dimensions that travelled: a reader returns the gradients of what it received, the owner sums
them in rank order. What was received is kept for the backward pass instead of being sent again.

The own chunks pass through the codec as well: every reader sees the same keys, and the model is one function whatever
the number of ranks. Compression comes before RoPE, which the reader applies with the sender's positions.

The order of all sums is fixed (own chunks, then ranks in a circle), never the order of arrival: the same run gives the
same bits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.kernels.partial_attention.api import (
    Partial,
    merge,
    partial_attention,
    partial_attention_backward,
)
from thinwire.subspaces.codecs.base import Coded
from thinwire.subspaces.config import CodecConfig, LlamaConfig
from thinwire.subspaces.exchange import FORWARD_TAG, Angles, CodecPair, Exchange, KeyValue, Place, sum_type
from thinwire.subspaces.full_attention import join_heads, split_heads
from thinwire.subspaces.llama import apply_rope, rope_angles
from thinwire.subspaces.sequence import Slice
from thinwire.subspaces.theta import (
    Handover,
    LayerHeads,
    RotationHeads,
    ThetaAddress,
    draw,
    is_learned,
    predict,
    shift_by_one_chunk,
)


class _Send(torch.autograd.Function):
    """Carriers as encoded -> carriers as every reader sees them; backward waits for the readers' gradients."""

    @staticmethod
    def forward(ctx, exchange: Exchange, coded: dict[int, KeyValue], *carriers: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]  # noqa: ARG004
        ctx.exchange = exchange
        if any(ctx.needs_input_grad):
            exchange.expect_gradients()
        exchange.send_own(coded)
        exchange.place.turns.between()
        # Aliases: were the exchange to hold tensors of the graph that holds it, neither would ever be freed.
        return tuple(t.detach() for piece in exchange.own_slices for t in exchange.chunks[piece.chunk].carriers())

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        return (None, None, *ctx.exchange.sum_gradients(gradients))


class _Attend(torch.autograd.Function):
    """Queries and own carriers -> attention output; the other ranks' chunks arrive beside autograd."""

    @staticmethod
    def forward(ctx, exchange: Exchange, query: Tensor, *own: Tensor) -> Tensor:  # type: ignore[no-untyped-def]  # noqa: ARG004
        total = _attend_to_all(exchange, query)
        ctx.exchange = exchange
        ctx.save_for_backward(query, total.out, total.lse)
        return total.out.to(query.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        exchange: Exchange = ctx.exchange
        query, out, lse = ctx.saved_tensors
        saved = _Saved(query, out.to(query.dtype), lse, gradient.contiguous())
        query_gradient = torch.zeros_like(query, dtype=sum_type(query.dtype))
        # Others' chunks first: their gradients travel while the own chunks are worked on.
        for owner in exchange.others():
            numbers = exchange.received_from(owner)
            found = {chunk: _chunk_backward(exchange, chunk, saved, query_gradient) for chunk in numbers}
            exchange.return_gradients(owner, found)
        own: list[Tensor] = []
        for piece in exchange.own_slices:
            own += _chunk_backward(exchange, piece.chunk, saved, query_gradient)
        exchange.chunks = {piece.chunk: exchange.chunks[piece.chunk] for piece in exchange.own_slices}
        return (None, query_gradient.to(query.dtype), *own)


class Started(NamedTuple):
    """A layer whose own chunks are on their way, and their carriers in the graph."""

    exchange: Exchange
    own: tuple[Tensor, ...]


class _Saved(NamedTuple):
    query: Tensor
    out: Tensor
    lse: Tensor
    gradient: Tensor


def _attend_to_all(exchange: Exchange, query: Tensor) -> Partial:
    shape, wide = query.shape, sum_type(query.dtype)
    out = torch.zeros(shape, dtype=wide, device=query.device)
    lse = torch.full(shape[:3], -torch.inf, dtype=wide, device=query.device)
    own = [piece.chunk for piece in exchange.own_slices]
    for owner in [exchange.place.group.rank, *exchange.others()]:
        for chunk in own if owner == exchange.place.group.rank else exchange.receive_from(owner):
            before, value = exchange.decode(exchange.chunks[chunk])
            key = apply_rope(before, *exchange.chunk_angles(chunk))
            for first, last, mask in exchange.blocks(chunk):
                block = partial_attention(query[:, :, first:last], key, value, mask=mask)
                rows = Partial(out[:, :, first:last], lse[:, :, first:last])
                exchange.place.turns.between()
                merged = merge(rows, Partial(block.out.to(wide), block.lse.to(wide)))
                out[:, :, first:last], lse[:, :, first:last] = merged.out, merged.lse
    return Partial(out, lse)


def _chunk_backward(exchange: Exchange, chunk: int, saved: _Saved, query_gradient: Tensor) -> tuple[Tensor, ...]:
    """Adds the chunk's part to the queries' gradient; returns the gradients of the chunk's carriers."""
    with torch.enable_grad():
        leaves = KeyValue(
            *(
                Coded(tuple(t.detach().requires_grad_(True) for t in side.carriers), side.extra)
                for side in exchange.chunks[chunk]
            )
        )
        before, value = exchange.decode(leaves)
    cos, sin = exchange.chunk_angles(chunk)
    key, value_seen = apply_rope(before.detach(), cos, sin), value.detach()
    wide = query_gradient.dtype
    key_gradient, value_gradient = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
    for first, last, mask in exchange.blocks(chunk):
        dq, dk, dv = partial_attention_backward(
            saved.gradient[:, :, first:last],
            saved.query[:, :, first:last],
            key,
            value_seen,
            out=saved.out[:, :, first:last],
            lse=saved.lse[:, :, first:last],
            mask=mask,
        )
        query_gradient[:, :, first:last].add_(dq)
        key_gradient += dk
        value_gradient += dv
        exchange.place.turns.between()
    carriers = leaves.carriers()
    unturned = apply_rope(key_gradient, cos, -sin).to(key.dtype)  # the transpose of a turn turns back
    found = torch.autograd.grad(
        (before, value), carriers, (unturned, value_gradient.to(value.dtype)), allow_unused=True
    )
    return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(found, carriers, strict=True))


class ContextAttention:
    """``Attend`` over the ranks of a group, for one training or scoring pass.

    Args:
        place: the group, the layout on it, the batch and the types.
        model: head counts and RoPE.
        codecs: one pair a layer.
        codec: settings of theta.
        heads: psi, where theta is learned.
        address: where random thetas are drawn.

    Attributes:
        thetas: (layer, stream) -> what turned the basis of each own chunk, [b, 2, k], learned or drawn.
    """

    def __init__(
        self,
        place: Place,
        *,
        model: LlamaConfig,
        codecs: Sequence[CodecPair],
        codec: CodecConfig,
        heads: RotationHeads | None = None,
        address: ThetaAddress | None = None,
    ) -> None:
        self.place, self.model, self.codecs, self.codec = place, model, codecs, codec
        self.heads, self.address = heads, address
        self.thetas: dict[tuple[int, int], list[Tensor]] = {}
        positions = torch.arange(place.layout.num_tokens, device=place.device)
        self._angles = Angles(
            *rope_angles(positions, head_width=model.head_width, base=model.rope_base, dtype=place.dtype)
        )
        # Every receive of the pass is posted now: gloo moves nothing before both ends are ready, and what will be
        # received is kept for the backward pass anyway.
        self._posted = {
            (layer, stream): self._exchange(layer, stream)
            for layer in range(model.layers)
            for stream in range(place.num_streams)
        }
        self._handovers = {at: self._handover(*at) for at in self._posted} if self._hands_over() else {}

    def _slot(self, layer: int, stream: int) -> int:
        return 4 * (layer * self.place.num_streams + stream)

    def _hands_over(self) -> bool:
        return self.codec.theta_source == "previous_chunk" and self.heads is not None

    def _needs_theta(self, layer: int) -> bool:
        return self.codecs[layer].key.needs_theta or self.codecs[layer].value.needs_theta

    def _handover(self, layer: int, stream: int) -> Handover:
        place = self.place
        wire = torch.float64 if self.codec.wire == "float64" else torch.float32
        slot = self._slot(layer, stream) // 2 + 1
        made = Handover(place.group, place.layout, slot=slot, wire=wire, turns=place.turns)
        if self._needs_theta(layer):
            made.expect(batch=place.batch, generators=self.codec.generators, way="forward")
        return made

    def _exchange(self, layer: int, stream: int) -> Exchange:
        place, pair = self.place, self.codecs[layer]
        exchange = Exchange(place, pair, self._angles, self._slot(layer, stream), {})
        for owner in exchange.others():
            specs = []
            for chunk in exchange.received_from(owner):
                size = {"batch": place.batch, "tokens": place.layout.length(chunk)}
                specs += [*pair.key.wire_specs(**size), *pair.value.wire_specs(**size)]
            if specs:
                exchange.arriving[owner] = place.group.receive(specs, source=owner, slot=exchange.slot, tag=FORWARD_TAG)
        return exchange

    def begin(self, layer: int, stream: int, *, hidden: Tensor, key: Tensor, value: Tensor) -> Started:
        """Encode the own chunks and send them on their way."""
        self.place.turns.between()
        exchange, pair = self._posted.pop((layer, stream)), self.codecs[layer]
        pieces = exchange.own_slices
        rows = [hidden[:, piece.first : piece.first + piece.tokens] for piece in pieces]
        thetas = self._thetas(layer, stream, rows, pieces, key=key, value=value)
        coded = {
            piece.chunk: KeyValue(
                pair.key.encode(x, key, theta=theta[:, 0] if pair.key.needs_theta and theta is not None else None),
                pair.value.encode(
                    x, value, theta=theta[:, 1] if pair.value.needs_theta and theta is not None else None
                ),
            )
            for piece, x, theta in zip(pieces, rows, thetas, strict=True)
        }
        carriers = [t for piece in pieces for t in coded[piece.chunk].carriers()]
        return Started(exchange, _Send.apply(exchange, coded, *carriers))

    def finish(self, begun: Started, *, query: Tensor) -> Tensor:
        """Attend to the own chunks, then to the others' as they come."""
        turned = apply_rope(split_heads(query, head_width=self.model.head_width), *begun.exchange.query_angles())
        return join_heads(_Attend.apply(begun.exchange, turned, *begun.own))

    def _thetas(
        self, layer: int, stream: int, rows: list[Tensor], pieces: tuple[Slice, ...], *, key: Tensor, value: Tensor
    ) -> list[Tensor | None]:
        """theta of every own chunk, [b, 2, k]; None where the codecs take none."""
        if not self._needs_theta(layer):
            return [None] * len(rows)
        if not is_learned(self.codec.theta_source):
            assert self.address is not None
            first = self.address.first_sequence + stream * self.place.batch
            address = ThetaAddress(self.address.seed, self.address.step, first)
            drawn = [
                draw(self.codec, address=address, layer=layer, chunk=s.chunk, batch=self.place.batch, like=rows[0])
                for s in pieces
            ]
            self.thetas[layer, stream] = drawn
            return list(drawn)
        assert self.heads is not None
        heads = self.heads.layers[layer]
        assert isinstance(heads, LayerHeads)
        thetas = predict(heads, rows, key=key, value=value, theta_max=self.codec.theta_max)
        if self.codec.theta_source == "previous_chunk":
            thetas = shift_by_one_chunk(thetas, handover=self._handovers.pop((layer, stream)))
        self.thetas[layer, stream] = [theta.detach() for theta in thetas]
        return list(thetas)


class OneStream:
    """``Attend`` of one of the streams, for a pass that holds no other."""

    def __init__(self, attend: ContextAttention, stream: int) -> None:
        self._attend, self._stream = attend, stream

    def begin(self, layer: int, stream: int, *, hidden: Tensor, key: Tensor, value: Tensor) -> Started:  # noqa: ARG002
        return self._attend.begin(layer, self._stream, hidden=hidden, key=key, value=value)

    def finish(self, begun: Started, *, query: Tensor) -> Tensor:
        return self._attend.finish(begun, query=query)
