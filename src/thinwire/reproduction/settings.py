"""How large are the experiments of a scale?  The settings that items of one scale share, so that they share runs."""

from dataclasses import dataclass, replace
from typing import Literal

from thinwire.experiments.soma import PAPER_SEED_RUN, soma_paper, soma_wide
from thinwire.reproduction.item import Scale
from thinwire.soma.config import (
    ClusterConfig,
    ModelConfig,
    Partition,
    RoutingConfig,
    ScoringConfig,
    SomaConfig,
    TrainingConfig,
)

NEVER = 10**9
"""Updates without an improvement: the rates stay, as in the paper's continuations (appendix J)."""
BodySize = Literal["fixed_width", "fixed_total"]


@dataclass(frozen=True)
class Sizes:
    """What a scale changes.

    Attributes:
        seeds: of batches and probes.
        width: d of an expert, and of E, where the width is fixed.
        total_widths: d by number of experts, so that all bodies together are about equally large (Table 2).
        seed_updates: of the seed run.
        job: the experts' rule; stages set its updates.
    """

    seeds: tuple[int, ...]
    width: int
    total_widths: dict[int, int]
    seed_updates: int
    job: TrainingConfig


def _job(directions: int, batch: int, window_bytes: int) -> TrainingConfig:
    return TrainingConfig(
        directions=directions,
        batch=batch,
        window_bytes=window_bytes,
        learning_rate=1e-3,
        epsilon=1e-3,
        plateau_updates=NEVER,
        validate_every=NEVER,
        validation_windows=64,
        log_every=10,
    )


SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes((1, 2), 8, {1: 16, 2: 11, 8: 5}, 10, _job(8, 8, 32)),
    "cpu": Sizes((1, 2, 3), 32, {1: 64, 2: 45, 8: 22}, 300, _job(64, 8, 64)),
    "paper": Sizes((1, 2, 3), 32, {1: 509, 2: 361, 8: 181}, 1000, _job(64, 64, 1024)),
}


def base_config(
    scale: Scale, *, num_experts: int, size: BodySize = "fixed_width", partition: Partition = "semantic"
) -> SomaConfig:
    """The run whose clusters and seed run an item's arms start from.

    Fixed width shares the seed run's frozen E; at a fixed total size every expert trains its own (Table 2).
    """
    sizes = SIZES[scale]
    if scale == "paper":
        paper = soma_wide(num_experts, sizes.total_widths[num_experts]) if size == "fixed_total" else None
        config = paper or soma_paper(num_experts)
        return replace(config, clusters=replace(config.clusters, partition=partition))
    width = sizes.width if size == "fixed_width" else sizes.total_widths[num_experts]
    is_smoke = scale == "smoke"
    seed_run = replace(
        sizes.job,
        updates=sizes.seed_updates,
        learning_rate=4 * PAPER_SEED_RUN.learning_rate if is_smoke else 2 * PAPER_SEED_RUN.learning_rate,
        epsilon=PAPER_SEED_RUN.epsilon,
        decoder="trained",
        batch=2 * sizes.job.batch,
    )
    return SomaConfig(
        seed_sample=1.0,
        model=ModelConfig(width=width, embed_width=sizes.width),
        seed_run=seed_run,
        experts=replace(sizes.job, decoder="trained" if size == "fixed_total" else "frozen"),
        clusters=ClusterConfig(
            num_clusters=num_experts,
            window_bytes=256 if is_smoke else 512,
            sample_windows=2_000 if is_smoke else 20_000,
            max_features=2_000 if is_smoke else 20_000,
            components=16 if is_smoke else 64,
            partition=partition,
        ),
        routing=RoutingConfig(active_experts=min(4, num_experts), prefix_bytes=64 if is_smoke else 256),
        scoring=ScoringConfig(window_bytes=128 if is_smoke else 512, max_windows=64 if is_smoke else 1024),
    )
