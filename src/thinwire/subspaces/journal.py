"""What does a run write down about itself?  Records of steps, validations and events, and bytes that outlive a restart.

The first rank writes. The bytes are those of the training itself: what meetings, checkpoints and hand-overs send is
left out, so that a run that was stopped and went on counts what an undisturbed one does.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from thinwire.base.files import append_json_line
from thinwire.comm.group import Group
from thinwire.comm.ledger import Ledger
from thinwire.runs.layout import RunFolder
from thinwire.subspaces.batches import step_targets
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.heartbeat import COUNTED_TAGS, Beat
from thinwire.subspaces.schedule import learning_rate, phase_of
from thinwire.subspaces.trainer import StepResult, Trainer, Validated

NOTHING = (0,) * len(COUNTED_TAGS)


class Journal:
    """One rank's part of the records.

    Args:
        config: the run.
        run: its folder.
        ledger: of all this rank sends.
    """

    def __init__(self, config: SubspacesConfig, *, run: Path, ledger: Ledger) -> None:
        self.config, self.log, self._ledger = config, RunFolder(run).log, ledger
        self._results: dict[int, StepResult] = {}
        self._before, self._left_out = NOTHING, NOTHING
        self._seconds_before, self._began = 0.0, time.perf_counter()
        self.totals: tuple[int, ...] = NOTHING
        """Bytes of all ranks in the newest beats, in the order of ``COUNTED_TAGS``."""

    # --- counters ---------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """The run's time so far, that of processes before this one included."""
        return self._seconds_before + time.perf_counter() - self._began

    def tokens(self, step: int) -> int:
        """Targets of all updates so far."""
        warm = min(step, self.config.phases.warmup_steps)
        long = step_targets(self.config, is_warmup=False)
        return warm * step_targets(self.config, is_warmup=True) + (step - warm) * long

    def sent(self) -> tuple[int, ...]:
        """Bytes of this rank since ``go_on_from``."""
        return tuple(now - out for now, out in zip(self._now(), self._left_out, strict=True))

    def sum_of(self, sent: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Bytes of the whole run, given what each rank sent."""
        return tuple(before + sum(counts) for before, *counts in zip(self._before, *sent, strict=True))

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is sent in the block is not the training's."""
        before = self._now()
        yield
        sent = (now - then for now, then in zip(self._now(), before, strict=True))
        self._left_out = tuple(map(sum, zip(self._left_out, sent, strict=True)))

    def go_on_from(self, *, seconds: float, totals: Sequence[int]) -> None:
        """Count on from what the run had sent, and how long it had taken."""
        self._seconds_before, self._began = seconds, time.perf_counter()
        self._before, self._left_out = tuple(totals), self._now()
        self.totals = self._before
        self._results = {}

    def _by_tag(self) -> dict[str, int]:
        return dict(zip(COUNTED_TAGS, self.totals, strict=True))

    def _now(self) -> tuple[int, ...]:
        return tuple(self._ledger.total(tag=tag) for tag in COUNTED_TAGS)

    # --- records ----------------------------------------------------------------------------------------------

    def keep(self, step: int, result: StepResult) -> None:
        """Until the other ranks' numbers are there."""
        self._results[step] = result
        self._ledger.forget_steps(before=step)

    def step(self, group: Group, beats: Sequence[Beat]) -> str | None:
        """Write down the update that the beats are about, where the log has one; returns a few words about it."""
        step = beats[0].step
        self.totals = self.sum_of([beat.wire_bytes for beat in beats])
        result = self._results.pop(step, None)
        if result is None or (step % self.config.log_every and step != self.config.optimizer.steps):
            return None
        phase = phase_of(step, self.config)
        loss = sum(beat.loss for beat in beats) / step_targets(self.config, is_warmup=phase == "warm-up")
        self.write(
            group,
            kind="step",
            step=step,
            phase=phase,
            loss_nats_per_token=loss if math.isfinite(loss) else None,
            learning_rate=learning_rate(step, self.config.optimizer),
            gradient_norm=result.gradient_norm if math.isfinite(result.gradient_norm) else None,
            seconds=result.seconds,
            tokens=self.tokens(step),
            ranks=len(beats),
            wire_bytes=self._by_tag(),
        )
        return f"{phase}, loss {loss:.3f}"

    def validation(self, trainer: Trainer, found: Validated) -> None:
        """Write down a validation."""
        self.write(
            trainer.team.main,
            kind="validation",
            step=trainer.step,
            phase=trainer.phase,
            loss_nats_per_token=found.loss,
            sequences=found.num_sequences,
            seconds=self.seconds,
            tokens=self.tokens(trainer.step),
        )

    def event(self, group: Group, what: str, *, step: int, **details: Any) -> None:
        """Write down what happened after a step."""
        self.write(group, kind="event", step=step, what=what, **details)

    def change(self, group: Group, what: str, *, step: int, **details: Any) -> None:
        """Write down that other ranks, or other processes, go on from here, and from which counts."""
        self.event(group, what, step=step, ranks=group.size, wire_bytes=self._by_tag(), **details)

    def write(self, group: Group, **record: Any) -> None:
        """One record, by the first rank."""
        if group.rank == 0:
            append_json_line(self.log, record)

    def size(self) -> int:
        """Bytes of the log."""
        return self.log.stat().st_size if self.log.exists() else 0
