"""How many bytes does a step put on the wires?  Closed forms for any model, codec, layout and number of ranks (3.4).

They follow the code message by message: ``exchange`` (keys, values and their gradients), ``theta`` (the rotation handed
from chunk to chunk) and ``averaging`` (gradients or weights), so that a run's ledger equals them exactly.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int64

from thinwire.comm.collectives import piece_lengths
from thinwire.subspaces.codecs.base import Codec
from thinwire.subspaces.codecs.make import WIRE_DTYPES, make_codec
from thinwire.subspaces.config import CodecConfig, SubspacesConfig
from thinwire.subspaces.schedule import Phase, codec_in_force, has_heads
from thinwire.subspaces.sequence import Layout, make_layout

Exchange = Literal["needed", "all_gather"]
"""needed: a chunk goes to the ranks that hold a later one; all_gather: to every rank, as in the paper."""
Bytes = Int64[np.ndarray, "ranks ranks"]
"""Row: the rank that sends; column: the rank that receives."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of one update, [from, to].

    Attributes:
        kv_forward: coded keys and values (and theta with them), all layers.
        kv_backward: their gradients on the way back.
        theta_forward, theta_backward: theta handed to the next chunk's owner (``theta_source`` previous_chunk).
        sync: one sum over all weights; ``sync_every`` steps lie between two.
        sync_every: 1 where gradients are summed at each step.
    """

    kv_forward: Bytes
    kv_backward: Bytes
    theta_forward: Bytes
    theta_backward: Bytes
    sync: Bytes
    sync_every: int

    @property
    def num_ranks(self) -> int:
        return len(self.sync)

    @property
    def sync_bytes_per_step(self) -> float:
        """Of all ranks together, on average."""
        return int(self.sync.sum()) / self.sync_every

    @property
    def exchange_bytes(self) -> int:
        """Everything but the synchronisation, of all ranks together."""
        return sum(int(part.sum()) for part in self.exchanges())

    def exchanges(self) -> tuple[Bytes, Bytes, Bytes, Bytes]:
        """What one pass waits for after the other; directions never run at the same time."""
        return self.kv_forward, self.theta_forward, self.kv_backward, self.theta_backward

    def by_tag(self) -> dict[str, int]:
        """Bytes sent by all ranks, under the tags of the ledger; ``sync`` is one whole sum."""
        return {
            "kv-forward": int(self.kv_forward.sum()),
            "kv-backward": int(self.kv_backward.sum()),
            "theta": int(self.theta_forward.sum() + self.theta_backward.sum()),
            "sync": int(self.sync.sum()),
        }


def step_traffic(
    config: SubspacesConfig,
    *,
    vocab_size: int,
    num_ranks: int | None = None,
    phase: Phase = "compressed",
    exchange: Exchange = "needed",
    shift: int = 0,
) -> Traffic:
    """What one update sends.

    Args:
        config: model, sequence, codec and synchronisation.
        vocab_size: of the tokenizer; only the synchronisation depends on it.
        num_ranks: instead of the configuration's.
        phase: which codec is in force; the warm-up exchanges nothing but weights.
        exchange: who receives a chunk.
        shift: how far the ranks have moved over the chunks.

    Raises:
        ValueError: more ranks than chunks.
    """
    size, ranks = config.sequence, num_ranks or config.launch.ranks
    layout = make_layout(num_tokens=size.tokens, num_chunks=size.chunks, num_ranks=ranks, order=size.order, shift=shift)
    codec = codec_in_force(config.codec, phase)
    passes = size.streams * size.accumulation
    pairs = [_codecs(codec, config, layer) for layer in range(config.model.layers)]
    if phase == "warm-up":
        pairs = []
    lengths = {layout.length(chunk) for chunk in range(layout.num_chunks)}
    there = {n: sum(one.wire_bytes(batch=size.batch, tokens=n) for pair in pairs for one in pair) for n in lengths}
    back = {n: sum(one.gradient_bytes(batch=size.batch, tokens=n) for pair in pairs for one in pair) for n in lengths}
    forward, backward = np.zeros((2, ranks, ranks), np.int64)
    for chunk, owner in enumerate(layout.owners):
        readers = layout.readers(chunk) if exchange == "needed" else tuple(set(range(ranks)) - {owner})
        for reader in readers:
            forward[owner, reader] += passes * there[layout.length(chunk)]
            backward[reader, owner] += passes * back[layout.length(chunk)]
    turning = sum(any(one.needs_theta for one in pair) for pair in pairs)
    theta = passes * turning * _handover(codec, layout, num_ranks=ranks, batch=size.batch)
    return Traffic(
        forward,
        backward,
        theta,
        theta.T.copy(),
        sync_bytes(num_parameters(config, vocab_size=vocab_size, phase=phase), config=config, num_ranks=ranks),
        config.sync.every,
    )


def sync_bytes(count: int, *, config: SubspacesConfig, num_ranks: int) -> Bytes:
    """One sum of ``count`` numbers over the ranks: shares to who sums them, and the sums to all."""
    pieces = np.array(piece_lengths(count, size=num_ranks), np.int64)
    sent = (pieces[:, None] + pieces[None, :]) * WIRE_DTYPES[config.sync.wire].itemsize
    np.fill_diagonal(sent, 0)
    return sent


def num_parameters(config: SubspacesConfig, *, vocab_size: int, phase: Phase = "plain") -> int:
    """Weights that are trained and synchronised; rotation heads count while theta is learned."""
    model, codec = config.model, config.codec
    query_width, kv_width = model.heads * model.head_width, model.kv_width
    block = model.width * (2 * query_width + 2 * kv_width + 3 * model.hidden + 2)
    embeddings = vocab_size * model.width * (1 if model.tied else 2)
    heads = 2 * codec.generators * (kv_width + 1) if has_heads(codec, phase) else 0
    return embeddings + model.width + model.layers * (block + heads)


def _codecs(codec: CodecConfig, config: SubspacesConfig, layer: int) -> tuple[Codec, Codec]:
    """Keys' and values', without bases: they only tell bytes."""
    key, value = (
        make_codec(codec, side=side, layer=layer, model=config.model, seed=config.seed, basis=None)
        for side in ("key", "value")
    )
    return key, value


def _handover(codec: CodecConfig, layout: Layout, *, num_ranks: int, batch: int) -> Bytes:
    """theta of one layer, for keys and values, from each chunk's owner to the next chunk's."""
    sent = np.zeros((num_ranks, num_ranks), np.int64)
    if codec.theta_source == "previous_chunk":
        number = 8 if codec.wire == "float64" else 4
        for owner, following in zip(layout.owners, layout.owners[1:], strict=False):
            if owner != following:
                sent[owner, following] += batch * 2 * codec.generators * number
    return sent
