"""Which settings make which row of the SOMA paper, and which are ours?  Table 1, Table 2, appendices D and I."""

from dataclasses import replace

from thinwire.soma.config import ClusterConfig, ModelConfig, RoutingConfig, ScoringConfig, SomaConfig, TrainingConfig

PAPER_SEED_RUN = TrainingConfig(
    updates=1000, learning_rate=2.5e-3, epsilon=2.5e-3, decoder="trained", checkpoint_every=100
)
PAPER_UPDATES = 4_160_000


def soma_paper(num_experts: int) -> SomaConfig:
    """The expert-count sweep (Fig. 7 left): width 32, shared frozen head, n_pert = B = 64, T = 1,024.

    The paper reaches ensemble validation loss 1.86 (N=1) to 1.72 (N=256) nats per byte after 4M updates per expert;
    0.142 s an update and expert on an RTX 5090.
    """
    return SomaConfig(
        seed_run=PAPER_SEED_RUN,
        experts=TrainingConfig(updates=PAPER_UPDATES, log_every=100, checkpoint_every=1000, validate_every=100),
        clusters=ClusterConfig(num_clusters=num_experts),
        routing=RoutingConfig(active_experts=min(4, num_experts)),
    )


def soma_paper_n1() -> SomaConfig:
    """The paper's expert-count sweep (Fig 7 left), N = 1: 1.86 at 4M updates, 1.84 at 184 h; 0.138 s an update."""
    return soma_paper(1)


def soma_paper_n2() -> SomaConfig:
    """The paper's expert-count sweep, N = 2; 0.169 s an update."""
    return soma_paper(2)


def soma_paper_n8() -> SomaConfig:
    """The paper's expert-count sweep, N = 8: 1.77 at about 184 h; 0.145 s an update."""
    return soma_paper(8)


def soma_paper_n32() -> SomaConfig:
    """The paper's expert-count sweep, N = 32; 0.157 s an update."""
    return soma_paper(32)


def soma_paper_n256() -> SomaConfig:
    """The paper's expert-count sweep, N = 256 (also Tables 12, 13).

    1.71 validation and 1.68 test after 4.16M updates; 41.9k GPU-hours.
    """
    return soma_paper(256)


def soma_wide(num_experts: int, width: int) -> SomaConfig:
    """Fixed-size controls (Fig. 1, Table 2): about 8.4M parameters, every expert trains its own head (Eq. 7)."""
    wide = TrainingConfig(updates=65_000, learning_rate=2.5e-3, epsilon=2.5e-3, decoder="trained", checkpoint_every=100)
    return SomaConfig(
        model=ModelConfig(width=width),
        seed_run=PAPER_SEED_RUN,
        experts=wide,
        clusters=ClusterConfig(num_clusters=num_experts),
        routing=RoutingConfig(active_experts=min(4, num_experts)),
    )


def soma_wide_n1() -> SomaConfig:
    """Monolith of width 509, 8.33M parameters: test loss 2.00 at 30k updates and 152 GPU-hours (Table 4)."""
    config = soma_wide(1, 509)
    return replace(config, experts=replace(config.experts, updates=34_000))


def soma_wide_n2() -> SomaConfig:
    """Two experts of width 361, 8.41M parameters: test loss 1.76 at 65k updates and 150 GPU-hours (Table 4)."""
    return soma_wide(2, 361)


def soma_wide_n8() -> SomaConfig:
    """Eight experts of width 181, 8.55M parameters: test loss 1.71 at 53.5k to 70k updates, 700 GPU-hours."""
    config = soma_wide(8, 181)
    return replace(config, experts=replace(config.experts, updates=70_000))


def soma_small() -> SomaConfig:
    """N = 4 at width 32 for two cores and half an hour, by our own recipe; on any corpus from about 10 MB.

    Small updates of 64 one-sided directions on 16 windows of 128 bytes, 131,072 byte-forwards each: about what noise
    costs least at so many forwards (decision 0016). The rate falls where the validation loss no longer does. Measured
    figures: ``docs/log.md``.
    """
    job = TrainingConfig(
        updates=4000,
        directions=64,
        batch=16,
        window_bytes=128,
        difference="one_sided",
        learning_rate=2e-3,
        epsilon=1e-3,
        plateau_updates=300,
        validate_every=50,
        validation_windows=256,
    )
    return SomaConfig(
        seed_run=replace(job, updates=2000, learning_rate=4e-3, plateau_updates=200, decoder="trained"),
        experts=job,
        clusters=ClusterConfig(num_clusters=4, sample_windows=50_000),
        routing=RoutingConfig(active_experts=2),
        scoring=ScoringConfig(max_windows=1024),
    )


def soma_small_central() -> SomaConfig:
    """The cost of soma-small spent as the paper spends it: central differences, half as many updates."""
    config = soma_small()

    def central(job: TrainingConfig) -> TrainingConfig:
        return replace(
            job,
            updates=job.updates // 2,
            difference="central",
            plateau_updates=300,
        )

    return replace(config, seed_run=central(config.seed_run), experts=central(config.experts))


def soma_small_random_shards() -> SomaConfig:
    """The control of soma-small on random disjoint shards of equal size (Fig. 9).

    Experts answer by number, as many as in soma-small: no text belongs to any of them.
    """
    config = soma_small()
    return replace(config, clusters=replace(config.clusters, partition="random"))


def soma_small_iid() -> SomaConfig:
    """The control of soma-small in which every expert draws from all text (Fig. 9)."""
    config = soma_small()
    return replace(config, clusters=replace(config.clusters, partition="iid"))


def soma_small_cold() -> SomaConfig:
    """The control of soma-small whose experts start from random bodies, with the seed run's E (Fig. 9)."""
    return replace(soma_small(), start="cold")


def soma_small_random_head() -> SomaConfig:
    """The control of soma-small with random bodies and a random E that stays frozen (Fig. 9)."""
    return replace(soma_small(), start="frozen_random_head")
