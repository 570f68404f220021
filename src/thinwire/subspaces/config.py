"""What describes one context-parallel run?  One frozen dataclass, taken apart at the top (section 5.1).

Results depend on everything here but ``launch``; the number of ranks changes them only through rounding where
``sync.every`` is 1, and through the replicas' drift where it is larger.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from thinwire.config.check import Violations
from thinwire.runs.layout import RunFolder
from thinwire.runs.settings import Method, read_settings

SUBSPACES = Method("subspaces", "a context-parallel")

CodecKind = Literal["plain", "subspace", "top_k", "quantised"]
Exponential = Literal["taylor", "exact"]
GeneratorNorm = Literal["frobenius", "spectral"]
ThetaSource = Literal["chunk", "previous_chunk", "none", "random"]
LEARNED_SOURCES: tuple[ThetaSource, ...] = ("chunk", "previous_chunk")
BasisKind = Literal["weight_svd", "activation", "random"]
WireType = Literal["bfloat16", "float32", "float64"]
ChunkOrder = Literal["zigzag", "contiguous"]
Unplug = Literal["fold", "drop", "never"]


@dataclass(frozen=True)
class LlamaConfig:
    """A Llama-3 style decoder; the size of the vocabulary comes from the data."""

    layers: int = 4
    """Decoder blocks."""
    width: int = 256
    """d, the residual stream."""
    heads: int = 8
    """Query heads."""
    kv_heads: int = 8
    """Key and value heads; fewer than ``heads`` is grouped-query attention."""
    head_width: int = 32
    """Numbers a head holds; even, because RoPE turns pairs."""
    hidden: int = 704
    """Width of the SwiGLU."""
    rope_base: float = 500_000.0
    """RoPE's base frequency (Llama 3)."""
    norm_epsilon: float = 1e-5
    """Added to the mean square in RMSNorm."""
    tied: bool = True
    """The head shares the embedding's weights."""

    @property
    def kv_width(self) -> int:
        """d_kv, the width of K and of V."""
        return self.kv_heads * self.head_width


@dataclass(frozen=True)
class SequenceConfig:
    """One training sequence and how it lies on the ranks."""

    tokens: int = 2048
    """n, tokens the model reads; each is also a target, shifted by one."""
    chunks: int = 8
    """Pieces with a theta of their own; a property of the model, not of the number of ranks."""
    order: ChunkOrder = "zigzag"
    """zigzag: rank i holds chunks i and 2m-1-i, so that causal work is balanced; contiguous: neighbours."""
    batch: int = 1
    """Sequences of one forward pass."""
    streams: int = 1
    """Forward passes that interleave, one's exchange behind the other's compute."""
    accumulation: int = 1
    """How often all of that is repeated before the weights move."""

    @property
    def sequences_per_step(self) -> int:
        return self.batch * self.streams * self.accumulation


@dataclass(frozen=True)
class CodecConfig:
    """What travels instead of K and V."""

    kind: CodecKind = "subspace"
    """plain: K and V; subspace: coefficients in a rotated basis; top_k: largest entries; quantised: few bits."""
    key_rate: float = 0.98
    """Part of K that is not sent: r = max(r_min, round((1 - rate) d_kv))."""
    value_rate: float = 0.95
    """Part of V that is not sent."""
    min_rank: int = 1
    """r_min."""
    generators: int = 1
    """k, scalars of theta a chunk."""
    exponential: Exponential = "taylor"
    """taylor: exp(theta A) to ``taylor_order``; exact: the matrix exponential."""
    taylor_order: int = 2
    """Terms of the exponential past the first."""
    generator_norm: GeneratorNorm = "spectral"
    """The norm of A that is one; frobenius is the paper's."""
    theta_max: float = 1.0
    """theta is squashed to theta_max * tanh(x / theta_max)."""
    theta_source: ThetaSource = "previous_chunk"
    """Whose mean gives theta: the chunk's own (the paper; sees the chunk's future), the one before it (exactly
    causal), none (theta = 0: a fixed basis), or random (drawn anew for every chunk and step).

    How much the chunk's own sees: with drawn weights and psi, in a model of two layers with four chunks of 8 tokens,
    another last token of a chunk moves the logits before it in the chunk by up to 0.02 to 0.18 of what it moves its
    own; with the chunk before as the source, by exactly 0."""
    basis: BasisKind = "weight_svd"
    """weight_svd: top singular vectors of the averaged weights; activation: of K and V on text; random."""
    keep_fraction: float = 0.1
    """top_k: part of a chunk's entries that travels."""
    bits: int = 4
    """quantised: bits an entry."""
    group: int = 32
    """quantised: neighbouring entries that share a scale; divides d_kv."""
    wire: WireType = "bfloat16"
    """How a number travels."""
    uncompressed_layers: tuple[int, ...] = ()
    """Layers whose K and V travel plain; the paper leaves the last one."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up and decay."""

    steps: int = 400
    """Updates of the weights, warm-up phase included."""
    learning_rate: float = 3e-4
    """The peak."""
    ramp_steps: int = 40
    """Updates over which the rate rises from zero."""
    final_fraction: float = 0.1
    """Of the peak, at the last update."""
    weight_decay: float = 0.01
    """Decoupled."""
    beta_1: float = 0.9
    beta_2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    """The gradient's largest norm; 0 does not clip."""


@dataclass(frozen=True)
class PhasesConfig:
    """Warm-up -> plug in -> compressed -> unplug (sections 3.4, 3.5)."""

    warmup_steps: int = 100
    """Updates on short sequences, without any exchange of K and V."""
    warmup_tokens: int = 512
    """Length of the short sequences; every rank reads its own."""
    unplug: Unplug = "fold"
    """fold: W := B P(mean theta), theta frozen, still compressed; drop: W := B, plain from there on (the paper)."""
    unplug_fraction: float = 0.1
    """Last part of the steps that runs unplugged."""


@dataclass(frozen=True)
class SyncConfig:
    """How the ranks' replicas become one model again."""

    every: int = 1
    """c: 1 sums gradients each step and equals one process; more averages all weights every c steps."""
    fragments: int = 4
    """Parts of the weights that are averaged one after the other behind the training."""
    delay: int = 1
    """Steps between a fragment's start and its use."""
    outer: Literal["none", "nesterov"] = "none"
    """nesterov: the average's change is a gradient for an outer step (DiLoCo)."""
    outer_learning_rate: float = 0.7
    """Of the outer step; 1 without momentum is plain averaging."""
    outer_momentum: float = 0.9
    """Of the outer step (Nesterov's)."""
    rotate: bool = True
    """Move every rank to other chunks at each average, so that a replica sees every position."""
    wire: WireType = "float32"
    """How weights and gradients travel."""


@dataclass(frozen=True)
class LaunchConfig:
    """Who runs where; results do not depend on it, but for ``ranks`` as said at the top."""

    ranks: int = 4
    """Processes that share a sequence."""
    threads: int = 0
    """Threads of each; 0 divides this machine's cores."""
    timeout_seconds: float = 60.0
    """A peer that is silent for so long is lost."""
    meeting_seconds: float = 120.0
    """How long the ranks wait for each other at the start."""
    restart_lost: bool = True
    """Start a lost local rank again; it joins when the weights are next averaged."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is the CPU, in training and in scoring; cuda has not been run yet."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """bfloat16 computes matrix products in bfloat16; auto does so on an accelerator."""
    link_bits_per_s: float = 0.0
    """Above zero: messages take as long as on such a link (a model; the laboratory shapes real ones)."""
    link_per: Literal["node", "pair"] = "node"
    link_delay_seconds: float = 0.0


@dataclass(frozen=True)
class SubspacesConfig:
    """One run."""

    seed: int = 1
    """Of the first weights, the generators and every draw of text."""
    model: LlamaConfig = field(default_factory=LlamaConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    codec: CodecConfig = field(default_factory=CodecConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    phases: PhasesConfig = field(default_factory=PhasesConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    validate_every: int = 50
    """Updates between two validations."""
    validation_sequences: int = 16
    """Held-out sequences of a validation, the same each time."""
    test_sequences: int = 64
    """At most so many sequences of the test split score the finished model."""
    checkpoint_every: int = 50
    """Updates between two checkpoints; a kill loses at most so many, and doing them again gives the same bits."""
    log_every: int = 1
    """Updates between two records of the log."""


def rank_of(rate: float, *, kv_width: int, min_rank: int) -> int:
    """r = max(r_min, round((1 - rate) d_kv)), at most d_kv."""
    return min(kv_width, max(min_rank, round((1.0 - rate) * kv_width)))


def result_record(config: SubspacesConfig) -> dict[str, Any]:
    """What the results depend on, as plain values: everything but ``launch``."""
    record = dataclasses.asdict(config)
    del record["launch"]
    return record


def read_config(folder: RunFolder) -> SubspacesConfig:
    """The configuration in a run's ``config.json``.

    Raises:
        UserError: no run of this kind, or one of another version.
    """
    return read_settings(folder, SubspacesConfig, method=SUBSPACES)[1]


def check(config: SubspacesConfig, *, where: str) -> None:
    """Raises ConfigError with every setting that is out of range."""
    wrong = Violations()
    _check_model(config.model, wrong)
    _check_sequence(config, wrong)
    _check_codec(config, wrong)
    _check_training(config, wrong)
    _check_launch(config, wrong)
    wrong.raise_any(where=where)


def _check_model(model: LlamaConfig, wrong: Violations) -> None:
    for name in ("layers", "width", "heads", "kv_heads", "head_width", "hidden"):
        wrong.at_least(f"model.{name}", getattr(model, name), 1)
    divides = model.kv_heads > 0 and model.heads % model.kv_heads == 0
    wrong.require("model.kv_heads", model.kv_heads, divides, f"must divide model.heads = {model.heads}")
    wrong.require("model.head_width", model.head_width, model.head_width % 2 == 0, "must be even (RoPE turns pairs)")
    wrong.positive("model.rope_base", model.rope_base)
    wrong.positive("model.norm_epsilon", model.norm_epsilon)


def _check_sequence(config: SubspacesConfig, wrong: Violations) -> None:
    sequence, ranks = config.sequence, config.launch.ranks
    wrong.at_least("sequence.tokens", sequence.tokens, 1)
    wrong.within("sequence.chunks", sequence.chunks, 1, max(1, sequence.tokens))
    for name in ("batch", "streams", "accumulation"):
        wrong.at_least(f"sequence.{name}", getattr(sequence, name), 1)
    enough = sequence.chunks >= ranks
    wrong.require("sequence.chunks", sequence.chunks, enough, f"must be at least launch.ranks = {ranks}")


def _check_codec(config: SubspacesConfig, wrong: Violations) -> None:
    codec, kv_width = config.codec, config.model.kv_width
    for name in ("key_rate", "value_rate"):
        wrong.within(f"codec.{name}", getattr(codec, name), 0.0, 1.0)
    wrong.within("codec.min_rank", codec.min_rank, 1, max(1, kv_width))
    wrong.at_least("codec.generators", codec.generators, 1)
    wrong.within("codec.taylor_order", codec.taylor_order, 1, 24)
    wrong.positive("codec.theta_max", codec.theta_max)
    wrong.within("codec.keep_fraction", codec.keep_fraction, 0.0, 1.0)
    wrong.require("codec.bits", codec.bits, codec.bits in (2, 4, 8), "must be 2, 4 or 8")
    divides = codec.kind != "quantised" or (codec.group > 0 and kv_width % codec.group == 0)
    wrong.require("codec.group", codec.group, divides, f"must divide d_kv = {kv_width}")
    known = all(0 <= layer < config.model.layers for layer in codec.uncompressed_layers)
    wrong.require(
        "codec.uncompressed_layers", codec.uncompressed_layers, known, f"must be below {config.model.layers} layers"
    )


def _check_training(config: SubspacesConfig, wrong: Violations) -> None:
    optimizer, phases, sync = config.optimizer, config.phases, config.sync
    wrong.at_least("optimizer.steps", optimizer.steps, 1)
    wrong.positive("optimizer.learning_rate", optimizer.learning_rate)
    wrong.within("optimizer.ramp_steps", optimizer.ramp_steps, 0, optimizer.steps)
    wrong.within("optimizer.final_fraction", optimizer.final_fraction, 0.0, 1.0)
    wrong.at_least("optimizer.weight_decay", optimizer.weight_decay, 0.0)
    for name in ("beta_1", "beta_2"):
        value = getattr(optimizer, name)
        wrong.require(f"optimizer.{name}", value, 0 <= value < 1, "must lie in [0, 1)")
    wrong.positive("optimizer.epsilon", optimizer.epsilon)
    wrong.at_least("optimizer.clip_norm", optimizer.clip_norm, 0.0)
    wrong.within("phases.warmup_steps", phases.warmup_steps, 0, optimizer.steps)
    wrong.within("phases.warmup_tokens", phases.warmup_tokens, 1, max(1, config.sequence.tokens))
    wrong.within("phases.unplug_fraction", phases.unplug_fraction, 0.0, 1.0)
    wrong.at_least("sync.every", sync.every, 1)
    wrong.at_least("sync.fragments", sync.fragments, 1)
    fits = sync.every == 1 or sync.fragments * max(1, sync.delay) <= sync.every
    wrong.at_least("sync.delay", sync.delay, 0)
    wrong.require("sync.delay", sync.delay, fits, "sync.fragments * sync.delay must fit into sync.every steps")
    wrong.positive("sync.outer_learning_rate", sync.outer_learning_rate)
    wrong.require("sync.outer_momentum", sync.outer_momentum, 0 <= sync.outer_momentum < 1, "must lie in [0, 1)")
    for name in ("validate_every", "validation_sequences", "test_sequences", "checkpoint_every", "log_every"):
        wrong.at_least(name, getattr(config, name), 1)
    aligned = sync.every == 1 or config.checkpoint_every % sync.every == 0
    wrong.require("checkpoint_every", config.checkpoint_every, aligned, "must be a multiple of sync.every")


def _check_launch(config: SubspacesConfig, wrong: Violations) -> None:
    launch = config.launch
    wrong.at_least("launch.ranks", launch.ranks, 1)
    wrong.at_least("launch.threads", launch.threads, 0)
    wrong.positive("launch.timeout_seconds", launch.timeout_seconds)
    wrong.positive("launch.meeting_seconds", launch.meeting_seconds)
    wrong.at_least("launch.link_bits_per_s", launch.link_bits_per_s, 0.0)
    wrong.at_least("launch.link_delay_seconds", launch.link_delay_seconds, 0.0)
