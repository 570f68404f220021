"""Which small runs does a test compare, and how does one rank compute its share of one?

A case names everything; weights and tokens follow from it, so that every process makes the same ones.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from dense_reference import DenseAttention, loss_and_gradients
from torch import Tensor

from thinwire.base.seeds import numpy_generator
from thinwire.comm.group import Group
from thinwire.subspaces.attention import ContextAttention
from thinwire.subspaces.basis import random_basis
from thinwire.subspaces.codecs.make import codec_rank
from thinwire.subspaces.config import (
    ChunkOrder,
    CodecConfig,
    LlamaConfig,
    SequenceConfig,
    SubspacesConfig,
)
from thinwire.subspaces.exchange import Place
from thinwire.subspaces.replica import SIDES, Replica
from thinwire.subspaces.schedule import Phase
from thinwire.subspaces.sequence import Layout, make_layout
from thinwire.subspaces.theta import ThetaAddress

VOCABULARY, STEP, SEED = 97, 5, 3
PLAIN = CodecConfig(kind="plain", wire="float64")


@dataclass(frozen=True)
class Case:
    """One comparison; 2 layers, d = 24, 4 query heads of 6."""

    name: str
    codec: CodecConfig = PLAIN
    order: ChunkOrder = "zigzag"
    kv_heads: int = 2
    tokens: int = 29
    chunks: int = 6
    batch: int = 1
    streams: int = 1
    accumulation: int = 1
    shift: int = 0
    dtype: torch.dtype = torch.float64
    mixed: bool = False
    heads: Literal["drawn", "zero", "constant"] = "drawn"
    """psi: zero has theta = 0; constant has the same theta for every chunk."""
    changed_token: int | None = None
    """Position of a token that is another one than in the same case without it."""

    @property
    def config(self) -> SubspacesConfig:
        model = LlamaConfig(
            layers=2, width=24, heads=4, kv_heads=self.kv_heads, head_width=6, hidden=20, rope_base=100.0, tied=False
        )
        sequence = SequenceConfig(
            tokens=self.tokens,
            chunks=self.chunks,
            order=self.order,
            batch=self.batch,
            streams=self.streams,
            accumulation=self.accumulation,
        )
        return SubspacesConfig(seed=SEED, model=model, sequence=sequence, codec=self.codec)

    @property
    def phase(self) -> Phase:
        return "plain" if self.codec.kind == "plain" else "compressed"

    def layout(self, ranks: int) -> Layout:
        return make_layout(
            num_tokens=self.tokens, num_chunks=self.chunks, num_ranks=ranks, order=self.order, shift=self.shift
        )

    def sequences(self) -> Tensor:
        """int64 [accumulation, streams, batch, tokens + 1]."""
        shape = (self.accumulation, self.streams, self.batch, self.tokens + 1)
        drawn = torch.from_numpy(numpy_generator(SEED, "case tokens").integers(0, VOCABULARY, shape))
        if self.changed_token is not None:
            drawn[..., self.changed_token] = (drawn[..., self.changed_token] + 1) % VOCABULARY
        return drawn

    def in_dtype(self, dtype: torch.dtype) -> "Case":
        return replace(self, dtype=dtype)


def make_replica(case: Case) -> Replica:
    """Weights large enough that attention is far from uniform, and heads that turn the frames."""
    replica = Replica(case.config, vocab_size=VOCABULARY)
    if case.codec.kind == "subspace":
        replica.bases = {
            (layer, side): random_basis(
                SEED,
                layer=layer,
                side=side,
                width=case.config.model.kv_width,
                rank=codec_rank(case.codec, side=side, model=case.config.model),
            ).to(case.dtype)
            for layer in range(2)
            for side in SIDES
        }
    if replica.needs_heads(case.phase):
        replica.add_heads()
    generator = numpy_generator(SEED, "case weights")
    with torch.no_grad():
        for name, parameter in replica.named_parameters():
            drawn = torch.from_numpy(generator.standard_normal(tuple(parameter.shape)))
            scale = 1.0 if "embed" in name else 0.3
            parameter.copy_(1.0 + 0.2 * drawn if "norm" in name else scale * drawn)
            if "heads" in name and (case.heads == "zero" or (case.heads == "constant" and "weight" in name)):
                parameter.zero_()
    return replica.to(case.dtype)


@dataclass(frozen=True)
class Outcome:
    """What a pass over a case gave."""

    loss: float
    gradients: dict[str, Tensor]
    logits: Tensor
    """[accumulation, streams, batch, local tokens, vocabulary]."""
    sent: dict[str, int]
    """Bytes by tag."""


class Passes:
    """Makes the attention of each pass of a case."""

    def __init__(self, group: Group, case: Case, replica: Replica, phase: Phase) -> None:
        self._group, self._case, self._replica, self._phase = group, case, replica, phase
        self._codecs = replica.codecs(phase)

    def attend(self, index: int) -> ContextAttention:
        """Of the pass ``index``."""
        case, replica = self._case, self._replica
        dtype = torch.bfloat16 if case.mixed else case.dtype
        return ContextAttention(
            Place(self._group, case.layout(self._group.size), case.batch, case.streams, dtype, torch.device("cpu")),
            model=case.config.model,
            codecs=self._codecs,
            codec=replica.codec_config(self._phase),
            heads=replica.heads,
            address=ThetaAddress(SEED, STEP, index * case.streams * case.batch),
        )


def run_rank(group: Group, case: Case) -> Outcome:
    """One rank's share: its tokens' part of the mean loss, and the gradients of that."""
    torch.set_num_threads(1)
    before = group.ledger.by_tag()
    replica, layout = make_replica(case), case.layout(group.size)
    passes = Passes(group, case, replica, case.phase)
    columns = torch.cat([torch.arange(s.position, s.position + s.tokens) for s in layout.slices(group.rank)])
    losses: list[Tensor] = []
    logits: list[Tensor] = []
    sequences = case.sequences()
    scale = 1.0 / sequences[..., 1:].numel()
    replica.zero_grad(set_to_none=True)
    total, found = 0.0, {}
    for index, streams in enumerate(sequences):
        attend = passes.attend(index)
        with torch.autocast("cpu", torch.bfloat16, enabled=case.mixed):
            rows = replica.llama([s[:, columns] for s in streams], attend)
        targets = [s[:, columns + 1] for s in streams]
        losses = [scale * _cross_entropy(each, target) for each, target in zip(rows, targets, strict=True)]
        loss, gradients = loss_and_gradients(replica, losses)
        total += loss
        found = {name: found.get(name, 0) + gradient for name, gradient in gradients.items()}
        logits.append(torch.stack(rows).detach())
    sent = {tag: count - before.get(tag, 0) for tag, count in group.ledger.by_tag().items()}
    sent = {tag: count for tag, count in sent.items() if count}
    return Outcome(total, found, torch.stack(logits), sent)


def run_dense(case: Case) -> Outcome:
    """The whole case in this process, by ordinary autograd."""
    replica = make_replica(case)
    psi: dict[tuple[int, str], Any] = {}
    if replica.heads is not None:
        for layer, heads in enumerate(replica.heads.layers):
            psi |= {(layer, side): tuple(getattr(heads, side).parameters()) for side in SIDES}
    total, found, logits = 0.0, {}, []
    sequences = case.sequences()
    scale = 1.0 / sequences[..., 1:].numel()
    for index, streams in enumerate(sequences):
        attend = DenseAttention(
            case.config.model,
            codec=case.codec,
            bounds=case.layout(1).bounds,
            bases=replica.bases,
            psi=psi,
            seed=SEED,
            step=STEP,
            first_sequence=index * case.streams * case.batch,
        )
        rows = replica.llama([s[:, :-1] for s in streams], attend)
        losses = [scale * _cross_entropy(each, s[:, 1:]) for each, s in zip(rows, streams, strict=True)]
        loss, gradients = loss_and_gradients(replica, losses)
        total += loss
        found = {name: found.get(name, 0) + gradient for name, gradient in gradients.items()}
        logits.append(torch.stack(rows).detach())
    return Outcome(total, found, torch.stack(logits), {})


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -logits.double().log_softmax(-1).gather(-1, targets[..., None]).sum()


def join(outcomes: list[Outcome], case: Case) -> Outcome:
    """The ranks' sum; logits in the order of the sequence."""
    layout = case.layout(len(outcomes))
    parts = {
        piece.chunk: outcome.logits[..., piece.first : piece.first + piece.tokens, :]
        for rank, outcome in enumerate(outcomes)
        for piece in layout.slices(rank)
    }
    names = outcomes[0].gradients
    sent: dict[str, int] = {}
    for outcome in outcomes:
        sent = {tag: sent.get(tag, 0) + outcome.sent.get(tag, 0) for tag in sent | outcome.sent}
    return Outcome(
        sum(outcome.loss for outcome in outcomes),
        {name: torch.stack([outcome.gradients[name] for outcome in outcomes]).sum(0) for name in names},
        torch.cat([parts[chunk] for chunk in sorted(parts)], dim=-2),
        sent,
    )


def largest_difference(one: Outcome, other: Outcome, *, of: Literal["each", "all"]) -> float:
    """Of the loss and of every gradient, relative to the largest entry of each gradient (at least 1e-3), or of all."""
    found = [abs(one.loss - other.loss) / abs(other.loss)]
    assert one.gradients.keys() == other.gradients.keys()
    sizes = {name: float(gradient.abs().max()) for name, gradient in other.gradients.items()}
    largest = max(sizes.values())
    for name, gradient in other.gradients.items():
        size = max(1e-3, sizes[name]) if of == "each" else largest
        found.append(float((one.gradients[name].double() - gradient.double()).abs().max()) / size)
    return max(found)


def subspace(**settings: Any) -> CodecConfig:
    """Rank 5 for keys and 7 for values at d_kv = 12; theta's bound is felt."""
    base = CodecConfig(kind="subspace", key_rate=0.6, value_rate=0.4, theta_max=1.5, wire="float64")
    return replace(base, **settings)


LARGE = subspace(theta_source="chunk", exponential="exact", theta_max=4.0, generators=2)
CASES = (
    Case("plain, zigzag", chunks=8),
    Case("plain, contiguous", order="contiguous"),
    Case("plain, as many heads", kv_heads=4),
    Case("plain, one key head, chunks of unequal number", kv_heads=1, tokens=31, chunks=7),
    Case("plain, as many chunks as ranks", chunks=4, order="contiguous"),
    Case("plain, chunks of one token", tokens=13, chunks=13),
    Case("plain, two streams of two sequences", streams=2, batch=2),
    Case("plain, shifted", shift=1),
    Case("chunk, k = 1", subspace(theta_source="chunk")),
    Case("chunk, k = 3", subspace(theta_source="chunk", generators=3), chunks=7),
    Case("chunk, contiguous, as many heads", subspace(theta_source="chunk"), order="contiguous", kv_heads=4),
    Case("previous chunk, k = 1", subspace(), chunks=8),
    Case("previous chunk, k = 3", subspace(generators=3), kv_heads=4, tokens=31, chunks=7),
    Case("previous chunk, contiguous", subspace(), order="contiguous", chunks=9),
    Case("previous chunk, three streams of two", subspace(generators=2), streams=3, batch=2),
    Case("previous chunk, accumulated", subspace(), accumulation=2, streams=2, chunks=5),
    Case("previous chunk, shifted, fifth order", subspace(taylor_order=5), shift=2),
    Case("previous chunk, exact", subspace(exponential="exact", generator_norm="frobenius")),
    Case("chunk, exact, k = 2, large theta", LARGE, chunks=4),
    Case("no theta", subspace(theta_source="none"), batch=2),
    Case("random theta", subspace(theta_source="random", generators=3), chunks=5, batch=2, accumulation=2),
    Case("last layer plain", subspace(uncompressed_layers=(1,))),
    Case("rank one", subspace(key_rate=1.0, value_rate=1.0)),
    Case("top k", CodecConfig(kind="top_k", keep_fraction=0.3, wire="float64"), batch=2),
    Case("top k, contiguous", CodecConfig(kind="top_k", wire="float64"), order="contiguous", chunks=7),
    Case("quantised", CodecConfig(kind="quantised", bits=4, group=3, wire="float64"), streams=2),
    Case("quantised, accumulated", CodecConfig(kind="quantised", bits=2, group=6, wire="float64"), accumulation=2),
)
