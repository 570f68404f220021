"""Which runs compare N at one total size?  Figures 1, 6, 14 and 15 in small: N = 1, 2, 8, every width from one total.

Several items read these runs; they share them by name.
"""

from dataclasses import replace

from thinwire.experiments.soma import soma_wide_n1, soma_wide_n2, soma_wide_n8
from thinwire.reproduction.item import Scale
from thinwire.soma.config import ClusterConfig, ModelConfig, RoutingConfig, ScoringConfig, SomaConfig, TrainingConfig
from thinwire.soma.equal_size import width_for_size

EXPERTS = (1, 2, 8)
SEEDS: dict[Scale, tuple[int, ...]] = {"smoke": (1,), "cpu": (1, 2, 3), "paper": (1, 2, 3)}
TOTAL: dict[Scale, int] = {"smoke": 40_000, "cpu": 100_000}
"""Weights in all; at cpu scale an eightieth of the paper's 8.44M."""


def size_run_name(num_experts: int, *, seed: int) -> str:
    """The run folder's name."""
    return f"size-n{num_experts}-s{seed}"


def size_run(scale: Scale, *, num_experts: int, seed: int) -> SomaConfig:
    """N experts of one total size, each with a head of its own, trained like the paper's wide controls (appendix I).

    An update reads as many windows in every expert, so that updates at equal size cost about equally much aggregate
    arithmetic for every N.
    """
    if scale == "paper":
        return replace({1: soma_wide_n1, 2: soma_wide_n2, 8: soma_wide_n8}[num_experts](), seed=seed)
    model = ModelConfig(embed_width=8 if scale == "smoke" else 32)
    model = width_for_size(model, total=TOTAL[scale], num_experts=num_experts, decoder="trained")
    job = _job(scale)
    return SomaConfig(
        seed=seed,
        model=model,
        seed_run=replace(job, updates=job.updates // 4),
        experts=job,
        clusters=_clusters(scale, num_experts),
        routing=RoutingConfig(active_experts=min(4, num_experts), prefix_bytes=32 if scale == "smoke" else 256),
        scoring=_scoring(scale),
    )


def _job(scale: Scale) -> TrainingConfig:
    if scale == "smoke":
        return TrainingConfig(
            updates=24,
            directions=8,
            batch=8,
            window_bytes=32,
            learning_rate=1e-2,
            epsilon=1e-3,
            decoder="trained",
            validate_every=4,
            validation_windows=32,
            checkpoint_every=24,
            log_every=4,
        )
    return TrainingConfig(
        updates=1200,
        directions=32,
        batch=8,
        window_bytes=128,
        learning_rate=2.5e-3,
        epsilon=2.5e-3,
        decoder="trained",
        plateau_updates=300,
        validate_every=40,
        validation_windows=128,
        checkpoint_every=200,
        log_every=20,
    )


def _clusters(scale: Scale, num_experts: int) -> ClusterConfig:
    if scale == "smoke":
        return ClusterConfig(
            num_clusters=num_experts, window_bytes=64, sample_windows=2_000, min_documents=2, components=8, iterations=5
        )
    return ClusterConfig(num_clusters=num_experts, sample_windows=20_000, components=64)


def _scoring(scale: Scale) -> ScoringConfig:
    if scale == "smoke":
        return ScoringConfig(window_bytes=128, max_windows=32, matrix_windows=8, bootstrap_draws=200)
    return ScoringConfig(max_windows=512, matrix_windows=32, bootstrap_draws=2_000)
