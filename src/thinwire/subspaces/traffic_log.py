"""What did a run count between two records of its log, and what should that be?  Interval by interval.

Counts are sums over the ranks. Where a run was resumed or the ranks changed, the event may say from which counts they
go on. Where it does not, counts start at zero in a resumed run, and what was sent around a lost or a joining rank is
left out, with the reason.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from thinwire.subspaces.pass_bytes import PassBytes
from thinwire.subspaces.schedule import is_settling_step

CHANGES = ("lost rank", "joined")


@dataclass
class Interval:
    """Between two counts of one run of the processes.

    Attributes:
        after, last: the updates after ``after`` up to ``last``.
        phase: of the last.
        ranks: that made them.
        counted: bytes by tag.
        updates, validations, theta_mean: closed forms, by tag.
        is_settled: no fragment of the weights was on its way at the end.
        left_out: why it cannot be compared; empty where it can.
    """

    after: int
    last: int
    phase: str
    ranks: int
    counted: Counter[str]
    updates: Counter[str] = field(default_factory=Counter)
    validations: Counter[str] = field(default_factory=Counter)
    theta_mean: Counter[str] = field(default_factory=Counter)
    is_settled: bool = True
    left_out: str = ""

    @property
    def closed_form(self) -> Counter[str]:
        return self.updates + self.validations + self.theta_mean

    @property
    def has_only_updates(self) -> bool:
        return not (self.validations or self.theta_mean)


class LogReader:
    """Reads a log once.

    Args:
        closed: the closed forms of the run.

    Attributes:
        after_the_last: what was sent after the last count (the last validation), in closed form.
        assumed_sequences: a validation did not say over how many sequences; the setting was taken.
    """

    def __init__(self, closed: PassBytes) -> None:
        self.closed, self.config = closed, closed.config
        self.after_the_last: Counter[str] = Counter()
        self.assumed_sequences = False

    def segments(self, records: Sequence[dict[str, Any]]) -> Iterator[list[Interval]]:
        """The intervals of each run of the processes: from the start, or from where it was resumed, on."""
        self._restart(0, Counter())
        segment: list[Interval] = []
        for record in records:
            if self._begins_anew(record):
                if int(record["step"]) > self._after and record["what"] in CHANGES:
                    segment.append(self._skipped(record))
                yield segment
                segment = []
                self._restart(int(record["step"]), _counts(record))
                if record["what"] in CHANGES:
                    self._settled_at = int(record["step"])
            elif record["kind"] in ("event", "validation"):
                self._pending.append(record)
            elif record["kind"] == "step":
                segment.append(self._interval(record))
        yield segment
        if segment:
            for record in self._pending:
                for part in self._extra(record, ranks=segment[-1].ranks):
                    self.after_the_last += part

    def _begins_anew(self, record: dict[str, Any]) -> bool:
        """Whether the counts go on from known ones."""
        what = record.get("what")
        return record["kind"] == "event" and (what == "resumed" or (what in CHANGES and "wire_bytes" in record))

    def _skipped(self, record: dict[str, Any]) -> Interval:
        """Updates whose counts were lost with a rank."""
        why = f"{record['what']} at update {record['step']}"
        return Interval(self._after, int(record["step"]), "", int(record["ranks"]), Counter(), left_out=why)

    def _restart(self, step: int, counts: Counter[str]) -> None:
        """Counts go on from these after this update."""
        self._pending: list[dict[str, Any]] = []
        self._after, self._before = step, counts
        settled = [one for one in range(step, 0, -1) if is_settling_step(one, self.config)]
        self._settled_at = settled[0] if settled else 0

    def _interval(self, record: dict[str, Any]) -> Interval:
        step, ranks = int(record["step"]), int(record["ranks"])
        total = _counts(record)
        counted = Counter(total)
        counted.subtract(self._before)
        found = Interval(self._after, step, record["phase"], ranks, counted)
        found.is_settled = self.config.sync.every == 1 or is_settling_step(step, self.config)
        here = [one for one in self._pending if int(one["step"]) < step or one.get("what") in CHANGES]
        self._pending = [one for one in self._pending if one not in here]
        changes = [one for one in here if one.get("what") in CHANGES]
        if changes:
            found.left_out = ", ".join(f"{one['what']} at update {one['step']}" for one in changes)
            self._settled_at = max(int(one["step"]) for one in changes)
        elif step <= self._after:
            found.left_out = f"update {step} was counted twice"
        else:
            self._fill(found, here)
        for done in range(self._after + 1, step + 1):
            if is_settling_step(done, self.config):
                self._settled_at = done
        self._after, self._before = step, total
        return found

    def _fill(self, found: Interval, records: Sequence[dict[str, Any]]) -> None:
        settled_at = self._settled_at
        for step in range(found.after + 1, found.last + 1):
            found.updates += self.closed.update(step, ranks=found.ranks)
            found.updates["sync"] += self.closed.sync(step, settled_at=settled_at, ranks=found.ranks)
            settled_at = step if is_settling_step(step, self.config) else settled_at
        for record in records:
            validation, theta_mean = self._extra(record, ranks=found.ranks)
            found.validations += validation
            found.theta_mean += theta_mean

    def _extra(self, record: dict[str, Any], *, ranks: int) -> tuple[Counter[str], Counter[str]]:
        """What a validation and an unplugging send."""
        step, nothing = int(record["step"]), Counter[str]()
        if record["kind"] == "validation":
            self.assumed_sequences |= "sequences" not in record and record["phase"] != "warm-up"
            count = int(record.get("sequences", self.config.validation_sequences))
            # In the warm-up every rank reads whole sequences of its own.
            count = 0 if record["phase"] == "warm-up" else count
            return self.closed.forward(count, after=step, phase=record["phase"], ranks=ranks), nothing
        if record["what"] == "unplug" and record["phase"] == "folded":
            return nothing, self.closed.theta_mean(after=step, ranks=ranks)
        return nothing, nothing


def _counts(record: dict[str, Any]) -> Counter[str]:
    return Counter({str(tag): int(count) for tag, count in record.get("wire_bytes", {}).items()})
