"""What does a report know of a run's measurements?  ``thinwire measure``'s results as plain frozen records."""

from dataclasses import dataclass
from typing import NamedTuple

from thinwire.base.bootstrap import Interval


class Compared(NamedTuple):
    """A measured value beside its closed form; the standard error is None where one repeat cannot tell."""

    name: str
    measured: float
    standard_error: float | None
    predicted: float


class Allocation(NamedTuple):
    """Directions and windows an update, and the relative variance that the closed form predicts."""

    name: str
    directions: int
    batch: int
    variance: float


@dataclass(frozen=True)
class VarianceResult:
    """``results/variance.json``."""

    nu: float
    a: float
    experts: tuple[int, ...]
    updates: tuple[int, ...]
    compared: tuple[Compared, ...]
    """R_g, R and the cosine of each kind of difference."""
    allocations: tuple[Allocation, ...]
    """The run's own first, then at as many forwards those of least variance and, where measured, of least cost."""


class Active(NamedTuple):
    """One k of the sweep."""

    active_experts: int
    loss_nats_per_byte: float
    ci95: Interval
    operations_per_byte: int
    part_of_gain: float | None
    below_one_expert: Interval
    """95% of the loss of k = 1 less this one, paired over documents."""


@dataclass(frozen=True)
class ActiveExpertsResult:
    """``results/active-experts.json``."""

    split: str
    windows: int
    routed_experts: int
    best: int
    sweep: tuple[Active, ...]


class PairGroup(NamedTuple):
    """Pairs of similar correlation."""

    pairs: int
    correlation: float
    reduction: float
    standard_error: float


@dataclass(frozen=True)
class ComplementarityResult:
    """``results/complementarity.json``."""

    split: str
    num_experts: int
    num_pairs: int
    mean_reduction: float
    slope: float | None
    slope_ci95: Interval | None
    groups: tuple[PairGroup, ...]
    pairs: tuple[tuple[float, float], ...]
    """(correlation, reduction) of each pair; empty for large ensembles."""


@dataclass(frozen=True)
class ThroughputResult:
    """``results/throughput.json``."""

    device: str
    implementation: str
    byte_forwards_per_s: float
    fraction_of_peak: float
    tokens_per_s: float
    routing_share: float


@dataclass(frozen=True)
class Measurements:
    variance: VarianceResult | None = None
    active_experts: ActiveExpertsResult | None = None
    complementarity: ComplementarityResult | None = None
    throughput: ThroughputResult | None = None
