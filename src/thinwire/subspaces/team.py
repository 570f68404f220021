"""Who trains together now?  The ranks of one generation; when one is lost, the others meet again under another name.

Ranks are numbered from 0 in every generation; members are the names that a process keeps for its life. All meetings go
through the store that the launcher (or rank 0) serves.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch.distributed

from thinwire.base.errors import InterruptedRunError, RunFailedError
from thinwire.comm.group import Group, Lane, alone, connect
from thinwire.comm.ledger import Ledger
from thinwire.comm.link import LinkEnd

Store = torch.distributed.Store
POLL_SECONDS = 0.1
PURPOSES: dict[str, tuple[Lane, ...]] = {"training": ("bulk", "express"), "averaging": ("bulk",)}
"""Groups of a team, and their lanes."""


class LeftBehindError(Exception):
    """The other ranks went on without this process: it was silent for too long, or came too late."""


@dataclass(frozen=True)
class Team:
    """One generation.

    Attributes:
        main: carries the training's messages.
        sync: carries the averages of the weights, behind the training.
        members: name of each rank.
        generation: counts the meetings.
    """

    main: Group
    sync: Group
    members: tuple[int, ...]
    generation: int = 0

    def set_step(self, step: int) -> None:
        """What the ledgers write beside the bytes."""
        self.main.step = self.sync.step = step

    def close(self) -> None:
        self.main.close()
        self.sync.close()

    def abandon(self, *, rank: int) -> None:
        """Close without waiting for messages to a rank that is lost."""
        self.sync.fail(rank, silent_seconds=None)
        self.close()


def team_of_one() -> Team:
    """A single process."""
    return Team(alone(), alone(), (0,))


@dataclass(frozen=True)
class Meeting:
    """How a process meets others.

    Attributes:
        store: where they meet.
        member: this process's name.
        timeout_seconds: how long a silent peer is waited for.
        first_seconds: how long ranks wait for each other at the start.
        link: this machine's end of a modelled link, or None.
        device: where received tensors are put.
        ledger: goes on counting over the generations.
        should_stop: whether somebody asked this process to stop.
    """

    store: Store
    member: int
    timeout_seconds: float
    first_seconds: float
    link: LinkEnd | None
    device: torch.device
    ledger: Ledger
    should_stop: Callable[[], bool]

    def connect(self, members: Sequence[int], *, generation: int) -> Team:
        """All ``members`` call this; ranks are in the order of the names.

        Raises:
            RunFailedError: one of them did not come.
        """
        names = tuple(sorted(members))
        groups: list[Group] = []
        try:
            for purpose, lanes in PURPOSES.items():
                group = connect(
                    self.store,
                    rank=names.index(self.member),
                    size=len(names),
                    name=f"generation-{generation}-{purpose}",
                    timeout_seconds=self.timeout_seconds,
                    link=self.link,
                    ledger=self.ledger,
                    device=self.device,
                    lanes=lanes,
                )
                groups.append(group)
        except RunFailedError:
            for group in groups:
                group.close()
            raise
        return Team(groups[0], groups[1], names, generation)

    def first(self, expected: Sequence[int]) -> tuple[int, ...]:
        """Who is there at the start: all, but for those whose end the launcher has seen.

        Raises:
            RunFailedError: some did not come in time; it names them.
            InterruptedRunError: somebody asked this process to stop.
        """
        missing = self._decided(expected, generation=0, seconds=self.first_seconds, is_start=True)
        if missing:
            names = ", ".join(map(str, missing))
            raise RunFailedError(
                f"rank {names} of {len(expected)} did not come to the meeting within {self.first_seconds:g} s\n"
                "  fix:   start all ranks within that time (--launch.meeting-seconds), and check that each reaches "
                "the first one's address"
            )
        return self._members(generation=0)

    def again(self, expected: Sequence[int], *, generation: int) -> tuple[int, ...]:
        """Who comes to a later generation; who does not within the time-out is left behind.

        Raises:
            LeftBehindError: this process is not among them.
        """
        self._decided(expected, generation=generation, seconds=self.timeout_seconds, is_start=False)
        return self._members(generation=generation)

    def _decided(self, expected: Sequence[int], *, generation: int, seconds: float, is_start: bool) -> tuple[int, ...]:
        """Everybody reports; the first to see that nobody is missing, or that time is up, writes down who is there.

        Returns those who are missing, where nothing was decided in time.
        """
        prefix = f"generation-{generation}"
        self.store.set(f"{prefix}-here-{self.member}", "")
        deadline = time.monotonic() + seconds
        while not self.store.check([f"{prefix}-members"]):
            here = [name for name in expected if self.store.check([f"{prefix}-here-{name}"])]
            missing = tuple(name for name in expected if name not in here and not self._is_gone(name))
            is_late = time.monotonic() > deadline
            if is_late and missing and is_start:
                return missing
            if is_late or not missing:
                self.store.compare_set(f"{prefix}-members", "", json.dumps(sorted(here)))
            elif self.should_stop() and is_start:
                raise InterruptedRunError("stopped before the ranks had met")
            else:
                time.sleep(POLL_SECONDS)
        return ()

    def _members(self, *, generation: int) -> tuple[int, ...]:
        members = json.loads(self.store.get(f"generation-{generation}-members"))
        if self.member not in members:
            raise LeftBehindError
        return tuple(members)

    def _is_gone(self, member: int) -> bool:
        """Its end was seen by the launcher, or it already asks to be let in again."""
        return self.store.check([_gone(member)]) or _waits(self.store, member)

    def joiners(self, *, candidates: Sequence[int]) -> tuple[int, ...]:
        """Names of those who wait to be let in; one look at the store where nobody does."""
        if self.store.add("joiners", 0) == 0:
            return ()
        return tuple(name for name in candidates if _waits(self.store, name))

    def invite(self, member: int, *, generation: int, expected: Sequence[int]) -> None:
        """Tell a waiting process where to meet whom."""
        self.store.set(f"invitation-{member}", json.dumps([generation, list(expected)]))
        self.store.set(_join(member), "invited")
        self.store.add("joiners", -1)

    def ask_to_join(self, *, seconds: float) -> "Invitation | None":
        """Ask the ranks at work to let this process in, and wait until they do; None where the run has ended.

        Raises:
            InterruptedRunError: somebody asked this process to stop.
            RunFailedError: nobody answered.
        """
        invitation = f"invitation-{self.member}"
        self.store.delete_key(invitation)
        self.store.set(_join(self.member), "waiting")
        self.store.add("joiners", 1)
        self.store.delete_key(_gone(self.member))
        deadline = time.monotonic() + seconds
        while not self.store.check([invitation]):
            if self.store.check(["ended"]):
                return None
            if self.should_stop():
                raise InterruptedRunError("stopped before the other ranks let this one in")
            if time.monotonic() > deadline:
                raise RunFailedError(f"no rank let rank {self.member} in within {seconds:g} s")
            time.sleep(POLL_SECONDS)
        generation, expected = json.loads(self.store.get(invitation))
        return Invitation(generation, tuple(expected))

    def end(self) -> None:
        """Nobody needs to join any more."""
        self.store.set("ended", "")


class Invitation(NamedTuple):
    """Where a process that joins meets the others, and whom."""

    generation: int
    expected: tuple[int, ...]


def meeting_place(store: Store, *, attempt: int = 0) -> Store:
    """The part of a store that one start of all ranks uses."""
    return torch.distributed.PrefixStore(f"attempt-{attempt}", store)


def mark_gone(store: Store, *, member: int) -> None:
    """The launcher saw a process end: nobody needs to wait for it."""
    store.set(_gone(member), "")


def _waits(store: Store, member: int) -> bool:
    return store.check([_join(member)]) and store.get(_join(member)) == b"waiting"


def _gone(member: int) -> str:
    return f"gone-{member}"


def _join(member: int) -> str:
    return f"join-{member}"
