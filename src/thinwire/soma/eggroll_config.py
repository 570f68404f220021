"""What describes one EGGROLL run?  The control of Figure 1 and Table 4 (appendix D.1), in one frozen dataclass."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from thinwire.config.check import Violations
from thinwire.kernels.eggroll.shape import EggrollRules, EggrollShape
from thinwire.soma.config import ScoringConfig

LARGEST_POPULATION = 2**32
"""A pair's number is one 32-bit word of its noise address."""


@dataclass(frozen=True)
class EggrollModel:
    width: int = 20
    """d; 72 d^2 + 537 d parameters at depth 6."""
    depth: int = 6
    """Layers of a gated recurrent unit and an MLP."""


@dataclass(frozen=True)
class EggrollTraining:
    """Sizes are the paper's; ``updates`` are those of its width 20."""

    updates: int = 435_300
    """Sign updates to make."""
    population: int = 2**20
    """Members of an update, two to a pair: W + sigma a b^T and W - sigma a b^T."""
    streams: int = 256
    """Streams of training text; pair p reads stream p mod streams."""
    update_bytes: int = 100
    """Bytes that a member reads of its stream in an update."""
    validate_every: int = 100
    """Updates between two validations."""
    validation_windows: int = 256
    """Windows of the validation split, the same each time, cut and scored as the test's."""
    checkpoint_every: int = 100
    """Updates between two checkpoints; the sign log keeps every update between them."""
    log_every: int = 10
    """Updates between two lines of log.jsonl."""


@dataclass(frozen=True)
class EggrollLaunch:
    """Where the work runs. No result depends on it."""

    threads: int = 0
    """0 means one a core."""
    implementation: Literal["auto", "numba", "reference"] = "auto"
    """The kernels' implementation."""


@dataclass(frozen=True)
class EggrollConfig:
    """Everything that decides a run's result."""

    seed: int = 1
    """Every random number of the run depends on it."""
    model: EggrollModel = field(default_factory=EggrollModel)
    training: EggrollTraining = field(default_factory=EggrollTraining)
    rules: EggrollRules = field(default_factory=EggrollRules)
    prefix_bytes: int = 256
    """A scored window's first bytes are read and not scored, so that a SOMA run is scored on the same targets."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    """As a SOMA run's; ``matrix_windows`` is for ensembles alone."""
    launch: EggrollLaunch = field(default_factory=EggrollLaunch)

    @property
    def shape(self) -> EggrollShape:
        return EggrollShape(self.model.width, self.model.depth)


def check(config: EggrollConfig, *, where: str) -> None:
    """Raises ConfigError naming every setting that is out of range."""
    wrong, training, rules, scoring = Violations(), config.training, config.rules, config.scoring
    wrong.at_least("model.width", config.model.width, 2)
    wrong.at_least("model.depth", config.model.depth, 1)
    for key in ("updates", "streams", "update_bytes", "validate_every", "checkpoint_every", "log_every"):
        wrong.at_least(f"training.{key}", getattr(training, key), 1)
    wrong.at_least("training.validation_windows", training.validation_windows, 1)
    wrong.within("training.population", training.population, 2, LARGEST_POPULATION)
    is_even = training.population % 2 == 0
    wrong.require("training.population", training.population, is_even, "must be even: members come in pairs")
    fewest = 2 * training.streams
    rule = f"must be at least {fewest}, two members for each of training.streams = {training.streams}"
    wrong.require("training.population", training.population, training.population >= fewest, rule)
    wrong.within("rules.sigma_shift", rules.sigma_shift, -16, 64)
    wrong.within("rules.alpha", rules.alpha, 1e-9, 1.0)
    wrong.positive("rules.float_step", rules.float_step)
    wrong.at_least("prefix_bytes", config.prefix_bytes, 1)
    wrong.at_least("scoring.window_bytes", scoring.window_bytes, config.prefix_bytes + 1)
    wrong.at_least("scoring.max_windows", scoring.max_windows, 1)
    wrong.at_least("scoring.bootstrap_draws", scoring.bootstrap_draws, 100)
    wrong.at_least("launch.threads", config.launch.threads, 0)
    wrong.raise_any(where=where)


def result_record(config: EggrollConfig) -> dict[str, Any]:
    """The configuration as plain values, without ``launch``, which decides no result."""
    record = dataclasses.asdict(config)
    del record["launch"]
    return record
