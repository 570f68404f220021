"""What does the first command on a fresh machine run?  Small enough for minutes on two cores, real enough to learn."""

from dataclasses import replace

from thinwire.soma.config import ClusterConfig, RoutingConfig, ScoringConfig, SomaConfig, TrainingConfig
from thinwire.subspaces.config import (
    CodecConfig,
    LlamaConfig,
    OptimizerConfig,
    PhasesConfig,
    SequenceConfig,
    SubspacesConfig,
    SyncConfig,
)


def demo() -> SomaConfig:
    """Four experts on the text of a Python installation, for minutes on two cores.

    Many one-sided directions over small batches (decision 0007); rates are high because the run is short.
    """
    job = TrainingConfig(
        updates=400,
        directions=128,
        batch=16,
        window_bytes=64,
        difference="one_sided",
        learning_rate=4e-3,
        epsilon=1e-3,
        plateau_updates=200,
        validate_every=25,
        validation_windows=128,
        checkpoint_every=50,
        log_every=5,
    )
    return SomaConfig(
        seed_sample=0.2,
        seed_run=replace(job, learning_rate=5e-3, decoder="trained"),
        experts=job,
        clusters=ClusterConfig(num_clusters=4, sample_windows=20_000, components=64),
        routing=RoutingConfig(active_experts=2),
        scoring=ScoringConfig(max_windows=400, matrix_windows=64),
    )


def demo_plain() -> SubspacesConfig:
    """A small Llama over four local ranks, for a minute on two cores: keys and values as they are."""
    return SubspacesConfig(
        model=LlamaConfig(layers=2, width=256, heads=4, kv_heads=4, head_width=64, hidden=512),
        sequence=SequenceConfig(tokens=1024, chunks=8),
        codec=CodecConfig(kind="plain"),
        optimizer=OptimizerConfig(steps=160, ramp_steps=10, learning_rate=3e-3),
        phases=PhasesConfig(warmup_steps=40, warmup_tokens=256, unplug_fraction=0.1),
        sync=SyncConfig(every=20),
        validate_every=20,
        validation_sequences=8,
        test_sequences=32,
        checkpoint_every=80,
    )


def demo_compressed() -> SubspacesConfig:
    """The demo's Llama with keys to 2% and values to 5%."""
    return replace(demo_plain(), codec=CodecConfig(taylor_order=6))
