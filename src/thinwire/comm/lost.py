"""Which rank is lost?  All ranks of a group give the same answer, through the store where they met.

A dead peer closes its connections, a stopped one answers nothing. But gloo breaks all connections of a process whose
wait timed out, so a healthy rank can look dead to the next one, and a rank that waits for a waiting rank accuses the
wrong one. Therefore every rank beats in the store, and says for whom it waits; the first to find out who is gone, or
waited for without waiting itself, writes the verdict (compare-and-set), and all others take it over.
"""

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from thinwire.base.errors import ThinwireError

BEAT_SECONDS = 0.2
OBSERVE_SECONDS = 1.0
"""choice: five beats missed is dead; long enough for a busy machine, short enough not to be felt."""
VERDICT_SECONDS = 3.0
STORE_SECONDS = 2.0


class PeerLostError(ThinwireError):
    """A rank of the group is gone or silent; the group is of no more use, its survivors build another.

    Args:
        rank: who is lost. It may be this process's own rank, when it was stopped and the others went on.
        reason: e.g. ``rank 2 closed the connection``.
    """

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(reason)


class Watch:
    """One rank's beat, and its share in the verdict; its thread ends with ``stop`` or the process's main thread."""

    def __init__(self, store: Any, *, rank: int, size: int) -> None:  # torch's stubs lack Store.clone
        self._rank, self._size = rank, size
        self._store = store.clone()  # a caller that waits in the store must not hold up the beat
        self._store.set_timeout(timedelta(seconds=STORE_SECONDS))
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._verdict: PeerLostError | None = None
        self.waits_for: int | None = None
        """The peer this rank waits for now; part of its beat."""
        self._beat(0)

    @property
    def verdict(self) -> PeerLostError | None:
        return self._verdict

    def start(self, *, on_end: Callable[[], None]) -> None:
        """Beat from now on; ``on_end`` is called once, when somebody is lost or the process ends."""
        threading.Thread(target=self._run, args=(on_end,), name="thinwire-watch").start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self, count: int) -> None:
        self._store.set(f"beat/{self._rank}", json.dumps([count, self.waits_for]))

    def _run(self, on_end: Callable[[], None]) -> None:
        count = 0
        # Not a daemon thread: those die inside C++ when the interpreter ends, and take the process with them.
        while not self._stopped.wait(BEAT_SECONDS):
            if not threading.main_thread().is_alive():
                on_end()
                return
            count += 1
            try:
                self._beat(count)
                if self._store.check(["lost"]):
                    self._adopt(self._store.get("lost"))
                    on_end()
                    return
            except RuntimeError:  # the store is gone, so nobody can be judged by it
                continue

    def judge(self, peer: int, *, silent_seconds: float | None) -> PeerLostError:
        """Who is lost, given what was seen of ``peer``; takes up to a few seconds.

        Args:
            peer: the rank whose connection broke, or who was waited for.
            silent_seconds: how long it was waited for; None when the connection broke.
        """
        with self._lock:
            if self._verdict is not None:
                return self._verdict
            try:
                lost = self._find(peer, silent=silent_seconds is not None)
                return self._adopt(self._store.compare_set("lost", "", self._accusation(lost, peer, silent_seconds)))
            except RuntimeError:  # no store: what was seen has to do
                self._verdict = PeerLostError(peer, _reason(peer, silent_seconds=silent_seconds))
                return self._verdict

    def _accusation(self, lost: int, peer: int, silent_seconds: float | None) -> str:
        reason = _reason(lost, silent_seconds=silent_seconds)
        if lost != peer:
            reason = f"rank {lost} answers nothing, and rank {peer} waits for it"
        return json.dumps([lost, reason])

    def _adopt(self, written: bytes) -> PeerLostError:
        rank, reason = json.loads(written)
        if rank == self._rank:
            reason = f"the others went on without this process, rank {rank}: {reason}"
        self._verdict = PeerLostError(rank, reason)
        return self._verdict

    def _find(self, peer: int, *, silent: bool) -> int:
        """Raises RuntimeError when the store does not answer."""
        deadline = time.monotonic() + VERDICT_SECONDS
        while not self._store.check(["lost"]):
            stale = self._without_beat()
            if peer in stale:
                return peer
            if silent:
                return stale[0] if stale else self._end_of_chain(peer)
            if time.monotonic() > deadline:  # it lives, but left this group
                return peer
        return peer  # compare_set keeps the verdict that is there

    def _end_of_chain(self, peer: int) -> int:
        """A process that beats may hang in its own code; the one to name is who is waited for, but waits for nobody."""
        passed = [self._rank]
        while peer not in passed:
            passed.append(peer)
            _, waits_for = json.loads(self._store.get(f"beat/{peer}"))
            if waits_for is None:
                return peer
            peer = waits_for
        return passed[1]  # all wait in a ring

    def _without_beat(self) -> list[int]:
        others = [rank for rank in range(self._size) if rank != self._rank]
        first = [self._store.get(f"beat/{rank}") for rank in others]
        deadline = time.monotonic() + OBSERVE_SECONDS
        still = dict(zip(others, first, strict=True))
        while still and time.monotonic() < deadline and not self._store.check(["lost"]):
            time.sleep(BEAT_SECONDS)
            still = {rank: beat for rank, beat in still.items() if self._store.get(f"beat/{rank}") == beat}
        return sorted(still) if time.monotonic() >= deadline else []


def _reason(rank: int, *, silent_seconds: float | None) -> str:
    if silent_seconds is None:
        return f"rank {rank} closed the connection"
    return f"rank {rank} answered nothing for {silent_seconds:g} s"
