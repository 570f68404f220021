"""What lies in a context-parallel run's folder?  Its log, which may have been cut, resumed and counted anew; results.

Counts of bytes are made to go on where a resumed run starts again at zero or a rank's count is lost with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from thinwire.base.files import read_json_lines
from thinwire.report.parts import MALFORMED, build_record, build_sample, finite, optional, read_part
from thinwire.report.records import PRESET_NOT_NAMED, Interval
from thinwire.report.subspaces.records import (
    TAGS,
    Event,
    LinkTime,
    LlamaScore,
    PhaseBytes,
    Step,
    SubspacesRun,
    Theta,
    TrafficResult,
    Validation,
)

NOT_SCORES = ("traffic", "sample", "done")
SIDES = ("key", "value")


def read_subspaces_run(folder: Path, *, name: str, record: dict[str, Any]) -> SubspacesRun:
    """The run whose ``config.json`` is ``record``; damaged parts are left out and named."""
    damage: list[str] = []
    log = _read_log(folder, damage)
    steps = tuple(log.steps[step] for step in sorted(log.steps))
    return SubspacesRun(
        folder=folder,
        name=name,
        preset=str(record.get("preset") or PRESET_NOT_NAMED),
        config=record["config"],
        manifest=read_part(folder, "manifest.json", build_record, damage) or {},
        steps=steps,
        validation=_with_bytes(log, steps),
        thetas=tuple(log.thetas[step] for step in sorted(log.thetas)),
        events=tuple(log.events.values()),
        phases=_phase_bytes(log, steps),
        scores=_read_scores(folder, damage),
        traffic=read_part(folder, "results/traffic.json", _build_traffic, damage),
        sample=read_part(folder, "results/sample.json", build_sample, damage),
        damage=tuple(damage),
    )


@dataclass
class _Log:
    """What has been read of a log; where something was logged twice (a resumed run) the later record counts."""

    steps: dict[int, Step] = field(default_factory=dict)
    validations: dict[tuple[int, str], Validation] = field(default_factory=dict)
    thetas: dict[int, Theta] = field(default_factory=dict)
    events: dict[tuple[int, str, str], Event] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    """The counts of the last record."""
    total: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TAGS, 0))
    is_torn: bool = False
    """Ranks changed since the last count: what was sent meanwhile is not known."""

    def add(self, record: dict[str, Any]) -> None:
        kind, step = record["kind"], int(record["step"])
        if kind == "step":
            self.steps[step] = _build_step(record, wire_bytes=self._count(record["wire_bytes"]))
        elif kind == "validation":
            loss = float(record["loss_nats_per_token"])
            found = Validation(step, str(record["phase"]), loss, int(record["tokens"]), float(record["seconds"]), {})
            self.validations[step, found.phase] = found
        elif kind == "theta":
            self.thetas[step] = _build_theta(record)
        elif kind == "event":
            self._note(record, step)

    def _note(self, record: dict[str, Any], step: int) -> None:
        what = str(record["what"])
        details = {key: value for key, value in record.items() if key not in ("kind", "step", "what", "wire_bytes")}
        self.events[step, what, str(details.get("members"))] = Event(step, what, details)
        if isinstance(record.get("wire_bytes"), dict):
            self.before = dict(record["wire_bytes"])
        elif what == "resumed":
            self.before = {}
        elif what == "lost rank":
            self.is_torn = True

    def _count(self, counts: dict[str, Any]) -> dict[str, int]:
        """Go on from the counts before."""
        now = {tag: int(counts.get(tag, 0)) for tag in TAGS}
        if not self.is_torn:
            for tag in TAGS:
                self.total[tag] += max(0, now[tag] - int(self.before.get(tag, 0)))
        self.before, self.is_torn = now, False
        return dict(self.total)


def _read_log(folder: Path, damage: list[str]) -> _Log:
    log, num_read, where = _Log(), 0, "log.jsonl"
    try:
        for record in read_json_lines(folder / where):
            log.add(record)
            num_read += 1
    except (*MALFORMED, OSError) as error:
        damage.append(
            f"{where} cannot be read after {num_read} records ({type(error).__name__}); its curves stop there."
        )
    infinite = [key for key, one in log.validations.items() if not math.isfinite(one.loss_nats_per_token)]
    for key in infinite:
        del log.validations[key]
    if infinite:
        first = min(step for step, _ in infinite)
        damage.append(f"{where}: the validation loss is not finite at update {first:,}; such records are left out.")
    return log


def _build_step(record: dict[str, Any], *, wire_bytes: dict[str, int]) -> Step:
    return Step(
        step=int(record["step"]),
        phase=str(record["phase"]),
        loss_nats_per_token=optional(record["loss_nats_per_token"], float),
        learning_rate=float(record["learning_rate"]),
        gradient_norm=optional(record["gradient_norm"], float),
        seconds=float(record["seconds"]),
        tokens=int(record["tokens"]),
        ranks=int(record.get("ranks", 1)),
        wire_bytes=wire_bytes,
    )


def _build_theta(record: dict[str, Any]) -> Theta:
    def sides(name: str) -> dict[str, tuple[float | None, ...]]:
        rows = record[name]
        return {side: tuple(optional(row.get(side), float) for row in rows) for side in SIDES}

    return Theta(int(record["step"]), sides("mean_abs_theta"), sides("angle_degrees"), sides("orthonormality_defect"))


def _with_bytes(log: _Log, steps: Sequence[Step]) -> tuple[Validation, ...]:
    """Validations in their order, with what had been sent by then."""
    found: list[Validation] = []
    last, rest = dict.fromkeys(TAGS, 0), list(steps)
    for validation in sorted(log.validations.values(), key=lambda one: one.step):
        while rest and rest[0].step <= validation.step:
            last = rest.pop(0).wire_bytes
        found.append(validation._replace(wire_bytes=last))
    return tuple(found)


def _phase_bytes(log: _Log, steps: Sequence[Step]) -> tuple[PhaseBytes, ...]:
    """An update's bytes in each phase: the mean over updates with nothing else behind them, as ``measure traffic``
    takes it (ranks move over the chunks, so updates differ); where there are none, the middle of all. Weights that are
    averaged now and then are a mean over the whole phase.
    """
    events = {event.step for event in log.events.values()} | {step for step, _ in log.validations}
    rows: dict[str, list[tuple[int, dict[str, int]]]] = {}
    start = Step(0, "", None, 0.0, None, 0.0, 0, 0, dict.fromkeys(TAGS, 0))
    for before, after in pairwise((start, *steps)):
        sent = {tag: after.wire_bytes[tag] - before.wire_bytes[tag] for tag in TAGS}
        rows.setdefault(after.phase, []).append((after.step - before.step, sent))
        if events.isdisjoint(range(before.step, after.step)):
            rows.setdefault(f"{after.phase} alone", []).append(rows[after.phase][-1])
    found = []
    for phase in [name for name in rows if not name.endswith(" alone")]:
        everything = rows[phase]
        num_steps = sum(count for count, _ in everything)
        alone = rows.get(f"{phase} alone", [])
        num_alone = sum(count for count, _ in alone)
        per_update = {}
        for tag in TAGS:
            if tag == "sync":
                per_update[tag] = sum(sent[tag] for _, sent in everything) / num_steps
            elif num_alone:
                per_update[tag] = sum(sent[tag] for _, sent in alone) / num_alone
            else:
                per_update[tag] = float(median(sent[tag] / count for count, sent in everything))
        found.append(PhaseBytes(phase, num_steps, per_update, num_alone))
    return tuple(found)


def _read_scores(folder: Path, damage: list[str]) -> tuple[LlamaScore, ...]:
    """Every file of ``results`` that holds one loss; "test" first, the others by name."""
    paths = sorted((folder / "results").glob("*.json"), key=lambda path: (path.stem != "test", path.stem))
    scores = [
        read_part(folder, f"results/{path.name}", partial(_build_score, stem=path.stem), damage)
        for path in paths
        if path.stem not in NOT_SCORES
    ]
    return tuple(score for score in scores if score is not None)


def _build_score(record: Any, *, stem: str) -> LlamaScore | None:
    if not isinstance(record.get("loss_nats_per_token"), int | float):
        return None  # a result of another shape, e.g. a measurement: not for this page
    interval, loss = record.get("ci95"), finite(record["loss_nats_per_token"])
    trained = record.get("as_trained") or {}
    return LlamaScore(
        name=str(record.get("name") or stem),
        protocol=str(record.get("protocol") or ""),
        loss_nats_per_token=loss,
        ci95=Interval(finite(interval[0]), finite(interval[1])) if interval else None,
        perplexity=finite(record.get("perplexity", math.exp(loss))),
        loss_nats_per_byte=optional(record.get("loss_nats_per_byte"), finite),
        bits_per_byte=optional(record.get("bits_per_byte"), finite),
        scored_targets=optional(record.get("scored_targets"), int),
        windows=optional(record.get("windows"), int),
        documents=optional(record.get("documents"), int),
        windows_digest=optional(record.get("windows_digest"), str),
        step=optional(record.get("step"), int),
        planned_steps=optional(record.get("planned_steps"), int),
        model=str(record.get("model") or "plain"),
        as_trained_loss_nats_per_token=optional(trained.get("loss_nats_per_token"), finite),
        stock_loss_nats_per_token=optional(trained.get("stock_loss_nats_per_token"), finite),
        theta_source=optional(trained.get("theta_source"), str),
    )


def _build_traffic(record: Any) -> TrafficResult:
    phases = record["phases"]
    return TrafficResult(
        is_equal=bool(record["is_equal"]),
        step=int(record["step"]),
        updates_compared=int(record["updates_compared"]),
        plain_bytes={
            str(one["phase"]): finite(one["plain_exchange_bytes_per_update"])
            for one in phases
            if one.get("plain_exchange_bytes_per_update")
        },
        links=tuple(_build_link(link) for link in record.get("links") or () if link.get("phase")),
    )


def _build_link(link: Any) -> LinkTime:
    return LinkTime(
        bits_per_s=finite(link["bits_per_s"]),
        per=str(link["per"]),
        phase=str(link["phase"]),
        exchange_seconds=finite(link["exchange_seconds"]),
        plain_exchange_seconds=finite(link["plain_exchange_seconds"]),
    )
