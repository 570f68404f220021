"""What does a report know about a context-parallel run?  Plain frozen records; an absent part is None or empty.

Losses are in nats per token; bytes are what all ranks have sent together.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.report.records import Interval, Sample

EXCHANGED = ("kv-forward", "kv-backward", "theta")
"""Tags of keys, values, their gradients, and theta."""
TAGS = (*EXCHANGED, "sync", "control")


class Step(NamedTuple):
    """One update."""

    step: int
    phase: str
    loss_nats_per_token: float | None
    learning_rate: float
    gradient_norm: float | None
    seconds: float
    tokens: int
    """Cumulative."""
    ranks: int
    wire_bytes: dict[str, int]
    """By tag, cumulative over restarts and lost ranks, without what nobody could count."""


class Validation(NamedTuple):
    """Held-out loss after an update, as the model is trained: with its codec."""

    step: int
    phase: str
    loss_nats_per_token: float
    tokens: int
    seconds: float
    wire_bytes: dict[str, int]
    """Until the update, by tag."""

    @property
    def loss(self) -> float:
        return self.loss_nats_per_token

    @property
    def exchanged_bytes(self) -> int:
        return sum(self.wire_bytes.get(tag, 0) for tag in EXCHANGED)

    def cost(self, name: str) -> float:
        """``steps``, ``tokens``, ``seconds``, ``wire_bytes`` or ``exchanged_bytes``."""
        if name == "wire_bytes":
            return float(sum(self.wire_bytes.values()))
        return float(self.step if name == "steps" else getattr(self, name))


class Theta(NamedTuple):
    """How far the bases are turned after an update: side -> one number a layer; None for a layer without theta."""

    step: int
    mean_abs_theta: dict[str, tuple[float | None, ...]]
    angle_degrees: dict[str, tuple[float | None, ...]]
    orthonormality_defect: dict[str, tuple[float | None, ...]]


class Event(NamedTuple):
    step: int
    what: str
    details: dict[str, Any]


class PhaseBytes(NamedTuple):
    """What an update of one phase sends, by tag: the mean over updates between which nothing else was sent."""

    phase: str
    num_steps: int
    per_update: dict[str, float]
    num_alone: int
    """Of these updates; where there are none, ``per_update`` has validations in it."""

    @property
    def exchanged(self) -> float:
        return sum(self.per_update.get(tag, 0.0) for tag in EXCHANGED)


@dataclass(frozen=True)
class LlamaScore:
    """One evaluation of the stock model: folded where a codec was at work."""

    name: str
    protocol: str
    loss_nats_per_token: float
    ci95: Interval | None
    perplexity: float
    loss_nats_per_byte: float | None
    bits_per_byte: float | None
    scored_targets: int | None
    windows: int | None
    documents: int | None
    windows_digest: str | None
    """Tells whether two scores are of the same windows."""
    step: int | None
    planned_steps: int | None
    model: str
    """plain, or folded: the codec's subspace is in the weights."""
    as_trained_loss_nats_per_token: float | None
    """With the codec, on the windows of ``stock_loss_nats_per_token``."""
    stock_loss_nats_per_token: float | None
    theta_source: str | None


class LinkTime(NamedTuple):
    """An update's exchange on a link, in closed form."""

    bits_per_s: float
    per: str
    phase: str
    exchange_seconds: float
    plain_exchange_seconds: float


@dataclass(frozen=True)
class TrafficResult:
    """What ``measure traffic`` found."""

    is_equal: bool
    step: int
    updates_compared: int
    plain_bytes: dict[str, float]
    """Phase -> what an update without a codec exchanges, in closed form."""
    links: tuple[LinkTime, ...]


@dataclass(frozen=True)
class SubspacesRun:
    """One run folder."""

    folder: Path
    name: str
    preset: str
    config: dict[str, Any]
    manifest: dict[str, Any]
    steps: tuple[Step, ...]
    validation: tuple[Validation, ...]
    thetas: tuple[Theta, ...]
    events: tuple[Event, ...]
    phases: tuple[PhaseBytes, ...]
    scores: tuple[LlamaScore, ...]
    traffic: TrafficResult | None
    sample: Sample | None
    damage: tuple[str, ...]

    def setting(self, dotted: str, default: Any = None) -> Any:
        """A value of the configuration, ``section.key``; ``default`` where another version did not write it."""
        value: Any = self.config
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def last_step(self) -> int:
        return max((*(one.step for one in self.steps), *(one.step for one in self.validation)), default=0)

    @property
    def planned_steps(self) -> int | None:
        planned = self.setting("optimizer.steps")
        return planned if isinstance(planned, int) else None

    @property
    def is_finished(self) -> bool:
        return self.planned_steps is not None and self.last_step >= self.planned_steps

    @property
    def wire_bytes(self) -> dict[str, int]:
        """Counted in all, by tag."""
        return self.steps[-1].wire_bytes if self.steps else {}

    @property
    def headline(self) -> LlamaScore | None:
        """The score called "test", or else the first."""
        named = [score for score in self.scores if score.name == "test"]
        return next(iter((*named, *self.scores)), None)

    @property
    def exchange(self) -> PhaseBytes | None:
        """An update of the run's own phase: compressed where there is one; None before the warm-up has ended."""
        by_phase = {phase.phase: phase for phase in self.phases}
        return next((by_phase[name] for name in ("compressed", "plain", "folded") if name in by_phase), None)

    @property
    def data_fingerprint(self) -> str | None:
        data = self.manifest.get("data")
        found = data.get("fingerprint") if isinstance(data, dict) else None
        return found if isinstance(found, str) else None
