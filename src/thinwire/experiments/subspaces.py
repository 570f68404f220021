"""Which settings make which row of the subspaces paper, and which are ours?  Section 5, appendix C.1."""

from dataclasses import replace
from typing import Any

from thinwire.subspaces.config import (
    CodecConfig,
    LlamaConfig,
    OptimizerConfig,
    PhasesConfig,
    SequenceConfig,
    SubspacesConfig,
    SyncConfig,
)

PAPER_STEPS = 10_000


def subspaces_small() -> SubspacesConfig:
    """Four ranks of one machine, 5.4M parameters, 2,048 tokens: keys to 2%, values to 5%, strictly causal.

    d_kv = 512 gives ranks 10 and 26. theta comes from the chunk before, A has spectral norm 1 and the exponential goes
    to order 6, so that a basis can turn far. Gradients are summed each step, so that four ranks compute what one
    does; over a thin wire average the weights instead (--sync.every 20 or more), at a price in loss.
    """
    return SubspacesConfig(
        model=LlamaConfig(layers=2, width=512, heads=8, kv_heads=8, head_width=64, hidden=1024),
        sequence=SequenceConfig(tokens=2048, chunks=8),
        codec=CodecConfig(taylor_order=6),
        optimizer=OptimizerConfig(steps=600, ramp_steps=40, learning_rate=1.5e-3),
        phases=PhasesConfig(warmup_steps=400, warmup_tokens=512, unplug_fraction=0.1),
        validate_every=100,
        validation_sequences=16,
        checkpoint_every=50,
    )


def subspaces_small_plain() -> SubspacesConfig:
    """subspaces-small with keys and values as they are."""
    return replace(subspaces_small(), codec=CodecConfig(kind="plain"))


def subspaces_small_fixed() -> SubspacesConfig:
    """subspaces-small with a basis that never turns (Table 1, "Fixed U")."""
    return _small(theta_source="none")


def subspaces_small_random_rotation() -> SubspacesConfig:
    """subspaces-small with theta drawn at random (Table 1, "Rand. rot.")."""
    return _small(theta_source="random")


def subspaces_small_no_warmup() -> SubspacesConfig:
    """subspaces-small with bases of the first weights (Table 1, "No warm start")."""
    small = subspaces_small()
    return replace(small, phases=replace(small.phases, warmup_steps=0))


def subspaces_small_top_k() -> SubspacesConfig:
    """subspaces-small with the largest tenth of the entries instead of a subspace (Fig. 5)."""
    return _small(kind="top_k")


def subspaces_small_quantised() -> SubspacesConfig:
    """subspaces-small with 4 bits an entry instead of a subspace (Fig. 5)."""
    return _small(kind="quantised")


def subspaces_800m() -> SubspacesConfig:
    """The paper's model (section 5.2, Tables 1 and 2): 793M parameters, 132,000 tokens over eight ranks.

    Perplexity after 10,000 steps: 22.64 (FineWeb), 23.33 (C4), 25.27 (BookCorpus); 55K tokens/s at 300 Mbps. theta is
    the paper's: one generator of Frobenius norm 1 to second order, from the chunk's own mean. All layers are
    compressed, where the paper names the last one as an exception (docs/papers/subspaces.md has the arithmetic).
    choice: hidden width and untied head that make about 800M parameters with GPT-2's vocabulary; theta_max 20 keeps the
    second-order error below 0.05; a global batch of one sequence.
    """
    return SubspacesConfig(
        model=LlamaConfig(layers=8, width=2048, heads=8, kv_heads=8, head_width=256, hidden=9216, tied=False),
        sequence=SequenceConfig(tokens=132_000, chunks=16),
        codec=CodecConfig(generator_norm="frobenius", theta_source="chunk", theta_max=20.0),
        optimizer=OptimizerConfig(steps=PAPER_STEPS, ramp_steps=500),
        phases=PhasesConfig(warmup_steps=500, warmup_tokens=4096),
        sync=SyncConfig(every=200, wire="bfloat16"),
        launch=replace(SubspacesConfig().launch, ranks=8),
        validate_every=200,
        checkpoint_every=1000,
    )


def _small(**codec: Any) -> SubspacesConfig:
    small = subspaces_small()
    return replace(small, codec=replace(small.codec, **codec))
