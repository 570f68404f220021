"""What describes one SOMA run?  One frozen dataclass, taken apart at the top; results never depend on ``launch``."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from thinwire.config.check import Violations
from thinwire.config.fingerprint import ADDED

Difference = Literal["central", "one_sided"]
DecoderMode = Literal["trained", "frozen"]
Implementation = Literal["auto", "numba", "triton", "reference"]
Partition = Literal["semantic", "random", "iid"]
ExpertStart = Literal["warm", "cold", "frozen_random_head"]
Estimator = Literal["spsa", "bptt"]
TiedGradient = Literal["decoder_path", "full"]
LossRule = Literal["independent", "summed"]
Exchange = Literal["scalars", "gradients"]


@dataclass(frozen=True)
class ModelConfig:
    """One expert (appendix C): ``depth`` pre-norm blocks of LSTM and MLP."""

    width: int = 32
    """d_t, the width of the recurrent body."""
    depth: int = 2
    """D, the number of residual blocks."""
    embed_width: int = 32
    """d_E, the width of the tied embedding and decoder."""


@dataclass(frozen=True)
class TrainingConfig:
    """One zero-order training job: the seed run or each expert (Eq. 8, appendix E)."""

    updates: int = 1000
    """Zero-order updates to make."""
    directions: int = 64
    """n_pert, probe directions per accumulation batch."""
    batch: int = 64
    """B, windows per accumulation batch."""
    window_bytes: int = 1024
    """T, input bytes per window."""
    accumulation: int = 1
    """A, independent batches with fresh directions per update."""
    difference: Difference = "central"
    """central: (L+ - L-)/(2 eps), two forwards a direction; one_sided: against the mean of L+, one forward."""
    learning_rate: float = 1e-3
    """Adam's step size at the start."""
    epsilon: float = 1e-3
    """Perturbation radius; halves together with the learning rate."""
    weight_decay: float = 1e-4
    """Coupled: added to the gradient before Adam's moments."""
    decoder: DecoderMode = "frozen"
    """trained: the delta rule (Eq. 7) updates the tied matrix E with Adam at the run's learning rate."""
    plateau_updates: int = 1000
    """Halve learning rate and epsilon after so many updates without improvement."""
    plateau_improvement: float = 1e-8
    """The validation loss must fall by more than this to count as improved."""
    rate_floor: float = 1e-5
    """Neither learning rate nor epsilon falls below it."""
    validate_every: int = 100
    """Updates between two validations."""
    validation_windows: int = 64
    """Held-out windows of a validation, the same each time."""
    checkpoint_every: int = 200
    """Updates between two checkpoints; the scalar log keeps every update between them."""
    log_every: int = 10
    """Updates between two lines of log.jsonl."""
    estimator: Estimator = field(default="spsa", metadata=ADDED)
    """spsa: forward passes alone; bptt: the exact gradient of the batch, the control that backpropagates (Table 5).

    bptt reads neither ``directions`` nor ``difference`` nor ``epsilon``.
    """
    tied_gradient: TiedGradient = field(default="decoder_path", metadata=ADDED)
    """What trains E: Eq. (7) alone, or the full gradient of the tied matrix, which only bptt knows (Fig. 9)."""


@dataclass(frozen=True)
class ClusterConfig:
    """How windows are divided (appendix D): tf-idf, truncated SVD, centring, balanced spherical k-means."""

    num_clusters: int = 8
    """N, the number of clusters and of experts."""
    window_bytes: int = 1024
    sample_windows: int = 400_000
    max_features: int = 50_000
    min_documents: int = 5
    """A term must occur in so many sampled windows."""
    components: int = 128
    iterations: int = 30
    validation_fraction: float = 0.01
    """The part of each cluster's windows that its expert never trains on."""
    partition: Partition = field(default="semantic", metadata=ADDED)
    """semantic: balanced clusters of tf-idf; random: disjoint shards of equal size; iid: each draws from all."""


@dataclass(frozen=True)
class RoutingConfig:
    active_experts: int = 4
    """k; never more than the number of clusters unless asked for by name."""
    prefix_bytes: int = 256
    """The router sees so many bytes; they are not scored."""


@dataclass(frozen=True)
class ScoringConfig:
    window_bytes: int = 1024
    """Input bytes per scored window; targets are the bytes after the routed prefix."""
    max_windows: int = 4096
    matrix_windows: int = 128
    """Held-out windows per cluster in the expert x cluster loss matrix."""
    bootstrap_draws: int = 10_000


@dataclass(frozen=True)
class LaunchConfig:
    """Where the work runs. No result depends on it, but for the rounding of ``exchange = gradients`` on ``ranks``."""

    processes: int = 0
    """Experts trained at once; 0 means as many as the cores have room for."""
    threads: int = 0
    """Threads in each process; 0 divides the cores among the processes."""
    implementation: Implementation = "auto"
    """The kernels' implementation: auto, numba, triton (a CUDA GPU) or reference."""
    ranks: int = field(default=1, metadata=ADDED)
    """Processes that make each update of one expert together, on this machine or, under torchrun, on several."""
    timeout_seconds: float = field(default=300.0, metadata=ADDED)
    """A rank that is silent for so long is lost."""


@dataclass(frozen=True)
class SomaConfig:
    """Everything that decides a run's result."""

    seed: int = 1
    """Every random number of the run depends on it."""
    seed_sample: float = 0.1
    """Part of the training windows that the seed run draws from."""
    model: ModelConfig = field(default_factory=ModelConfig)
    seed_run: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(learning_rate=2.5e-3, epsilon=2.5e-3, decoder="trained")
    )
    experts: TrainingConfig = field(default_factory=TrainingConfig)
    clusters: ClusterConfig = field(default_factory=ClusterConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    start: ExpertStart = field(default="warm", metadata=ADDED)
    """Experts start from the seed run (warm), random bodies and its E (cold), or a random body and E, E frozen."""
    losses: LossRule = field(default="independent", metadata=ADDED)
    """What an expert learns from: its own loss, or the sum of all experts' losses (the control of Fig. 4)."""
    exchange: Exchange = field(default="scalars", metadata=ADDED)
    """What ranks send of an update: losses, from which each rebuilds it, or sums of probes too (the paper's DDPP)."""


def check(config: SomaConfig, *, where: str) -> None:
    """Raises ConfigError naming every setting that is out of range."""
    wrong = Violations()
    model, clusters, routing, scoring = config.model, config.clusters, config.routing, config.scoring
    wrong.within("seed_sample", config.seed_sample, 1e-6, 1.0)
    wrong.at_least("model.width", model.width, 2)
    wrong.at_least("model.depth", model.depth, 1)
    wrong.at_least("model.embed_width", model.embed_width, 2)
    for name, job in (("seed_run", config.seed_run), ("experts", config.experts)):
        _check_training(wrong, name, job, clusters.window_bytes)
    wrong.at_least("clusters.num_clusters", clusters.num_clusters, 1)
    wrong.at_least("clusters.window_bytes", clusters.window_bytes, 32)
    wrong.at_least("clusters.sample_windows", clusters.sample_windows, clusters.num_clusters)
    wrong.at_least("clusters.max_features", clusters.max_features, 2)
    wrong.at_least("clusters.min_documents", clusters.min_documents, 1)
    wrong.at_least("clusters.components", clusters.components, 1)
    wrong.at_least("clusters.iterations", clusters.iterations, 1)
    wrong.within("clusters.validation_fraction", clusters.validation_fraction, 1e-6, 0.5)
    wrong.within("routing.active_experts", routing.active_experts, 1, max(clusters.num_clusters, 1))
    wrong.at_least("routing.prefix_bytes", routing.prefix_bytes, 1)
    wrong.at_least("scoring.window_bytes", scoring.window_bytes, routing.prefix_bytes + 1)
    wrong.at_least("scoring.max_windows", scoring.max_windows, 1)
    wrong.at_least("scoring.matrix_windows", scoring.matrix_windows, 1)
    wrong.at_least("scoring.bootstrap_draws", scoring.bootstrap_draws, 100)
    if config.start == "frozen_random_head":
        rule = "must be frozen where start = frozen_random_head"
        wrong.require("experts.decoder", config.experts.decoder, config.experts.decoder == "frozen", rule)
    if config.losses == "summed":
        rule = "must be spsa where losses = summed: a sum of losses has the exact gradients of its parts"
        wrong.require("experts.estimator", config.experts.estimator, config.experts.estimator == "spsa", rule)
    _check_launch(wrong, config)
    wrong.raise_any(where=where)


def _check_launch(wrong: Violations, config: SomaConfig) -> None:
    launch = config.launch
    wrong.at_least("launch.processes", launch.processes, 0)
    wrong.at_least("launch.threads", launch.threads, 0)
    wrong.at_least("launch.ranks", launch.ranks, 1)
    wrong.positive("launch.timeout_seconds", launch.timeout_seconds)
    if launch.ranks == 1:
        return
    for name, job in (("seed_run", config.seed_run), ("experts", config.experts)):
        enough = job.estimator == "spsa" and launch.ranks <= job.directions
        rule = f"ranks share directions: at most {name}.directions = {job.directions}, with {name}.estimator = spsa"
        wrong.require("launch.ranks", launch.ranks, enough, rule)
    rule = "must be 1 where losses = summed: those experts share one process"
    wrong.require("launch.ranks", launch.ranks, config.losses == "independent", rule)


def _check_training(wrong: Violations, name: str, job: TrainingConfig, cluster_window_bytes: int) -> None:
    for key in ("updates", "directions", "batch", "window_bytes", "accumulation", "plateau_updates"):
        wrong.at_least(f"{name}.{key}", getattr(job, key), 1)
    for key in ("validate_every", "validation_windows", "checkpoint_every", "log_every"):
        wrong.at_least(f"{name}.{key}", getattr(job, key), 1)
    for key in ("learning_rate", "epsilon", "rate_floor"):
        wrong.positive(f"{name}.{key}", getattr(job, key))
    for key in ("weight_decay", "plateau_improvement"):
        wrong.at_least(f"{name}.{key}", getattr(job, key), 0)
    if job.difference == "one_sided":
        wrong.at_least(f"{name}.directions", job.directions, 2)
    if job.tied_gradient == "full":
        can = job.estimator == "bptt" and job.decoder == "trained"
        rule = "needs estimator = bptt and decoder = trained"
        wrong.require(f"{name}.tied_gradient", job.tied_gradient, can, rule)
    if job.window_bytes > cluster_window_bytes > 0:
        rule = f"must not exceed clusters.window_bytes = {cluster_window_bytes}"
        wrong.require(f"{name}.window_bytes", job.window_bytes, False, rule)


def gradient_parts(config: SomaConfig) -> int:
    """In how many parts an update's probes are summed."""
    return config.launch.ranks if config.exchange == "gradients" else 1


def result_record(config: SomaConfig) -> dict[str, Any]:
    """What the results depend on, as plain values: everything but ``launch``, and of that what rounding depends on."""
    record = dataclasses.asdict(config)
    del record["launch"]
    if gradient_parts(config) != 1:
        record["launch.ranks"] = gradient_parts(config)
    return record
