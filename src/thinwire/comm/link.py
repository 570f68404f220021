"""How long would a message take on a thin link?  A model that delays arrival and leaves overlap as it is (section 5.2).

``start = max(link_free, sent_at)``, ``link_free = start + bits / rate``, ``arrive = link_free + delay``. Both ends are
shaped: a message first passes the sender's link, then the receiver's, which takes its bits as they come. Waiting
happens in ``wait``, so whatever a rank computes meanwhile is hidden. Times are CLOCK_MONOTONIC of one host.

Connections share a link as TCP does, in equal parts: a message of the express lane leaves at once, at half the rate
while the bulk lane is busy, and what it takes the bulk lane gets later.
"""

import bisect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from thinwire.base.errors import UserError

HEADER_BYTES = 16
NANOSECONDS = 1_000_000_000
MAX_INTERVALS = 1024
Lane = Literal["bulk", "express"]
"""Connections of a group: bulk for what is large, express for what is small and waited for (``group``)."""


@dataclass(frozen=True)
class Link:
    """A link to model.

    Args:
        bits_per_s: rate of each end, in each direction.
        per: node: one link shared by all peers; pair: one for each peer.
        delay_seconds: from one end to the other.
    """

    bits_per_s: float
    per: Literal["node", "pair"] = "node"
    delay_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.bits_per_s > 0 or not self.delay_seconds >= 0:
            fix = "give a rate above zero and a delay of zero or more"
            raise UserError(f"a link of {self.bits_per_s:g} bit/s and {self.delay_seconds:g} s", where="link", fix=fix)


class Timeline:
    """When is one end of a link busy?  Work fills the earliest free time; all in whole nanoseconds.

    A receiver sees messages in the order it waits for them, which need not be the order they came in: one that came
    earlier but is waited for later still finds the time that was free for it.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def fill(self, duration: int, *, earliest: int) -> int:
        """Take ``duration`` of free time from ``earliest`` on; returns when the last of it ends."""
        if duration == 0:
            return earliest
        index = bisect.bisect_right(self._ends, earliest)
        position, first = earliest, index
        while index < len(self._starts):
            gap = max(0, self._starts[index] - position)
            if gap >= duration:
                break
            duration -= gap
            position = max(position, self._ends[index])
            index += 1
        end = position + duration
        start = min(earliest, self._starts[first]) if index > first else earliest
        self._starts[first:index], self._ends[first:index] = [start], [end]
        self._join(first)
        return end

    def _join(self, index: int) -> None:
        """Merge an interval with neighbours that it touches, and forget the oldest."""
        for left in (index, index - 1):
            if 0 <= left < len(self._starts) - 1 and self._ends[left] == self._starts[left + 1]:
                del self._ends[left], self._starts[left + 1]
        if len(self._starts) > MAX_INTERVALS:
            del self._starts[0], self._ends[0]


class LinkEnd:
    """One machine's end of a modelled link; all groups of a process share it, from any thread."""

    def __init__(
        self,
        link: Link,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._link, self._clock, self._sleep = link, clock, sleep
        self._egress: dict[tuple[int, Lane], int] = {}
        self._ingress: dict[int, Timeline] = {}
        self._lock = threading.Lock()

    def depart(self, num_bytes: int, *, to: int, lane: Lane = "bulk") -> torch.Tensor:
        """The header of a message sent now: when its first and its last bit leave, int64 nanoseconds as bytes."""
        way, now, duration = self._way(to), self._clock(), self._duration(num_bytes)
        with self._lock:
            start = max(self._egress.get((way, lane), 0), now)
            bulk_free = self._egress.get((way, "bulk"), 0)
            end = self._egress[way, lane] = start + (2 * duration if bulk_free > start else duration)
            if lane == "express":
                self._egress[way, "bulk"] = max(bulk_free, start) + duration
        return torch.tensor([start, end], dtype=torch.int64).view(torch.uint8)

    def arrive(self, header: torch.Tensor, *, num_bytes: int, source: int, lane: Lane = "bulk") -> None:
        """Sleep until the message with this header would be here."""
        delay = round(self._link.delay_seconds * NANOSECONDS)
        first, last = (int(time) + delay for time in header.clone().view(torch.int64))
        with self._lock:
            timeline = self._ingress.setdefault(self._way(source), Timeline())
            filled = timeline.fill(self._duration(num_bytes), earliest=first)
            if lane == "express":  # beside the bulk lane of others, at half the rate where that is busy
                filled = min(filled, first + 2 * self._duration(num_bytes))
            here = max(last, filled)
        while (left := here - self._clock()) > 0:
            self._sleep(left / NANOSECONDS)

    def _way(self, peer: int) -> int:
        return peer if self._link.per == "pair" else -1

    def _duration(self, num_bytes: int) -> int:
        return round(num_bytes * 8 * NANOSECONDS / self._link.bits_per_s)
