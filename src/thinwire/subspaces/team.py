"""Who trains together now?  The ranks of one generation; when one is lost, the others meet again under another name.

Ranks are numbered from 0 in every generation; members are the names that a process keeps for its life. All meetings go
through the store that the launcher (or rank 0) serves.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed

from thinwire.base.errors import RunFailedError
from thinwire.comm.group import Group, alone, connect
from thinwire.comm.ledger import Ledger
from thinwire.comm.link import Link

Store = torch.distributed.Store
POLL_SECONDS = 0.1


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


def team_of_one() -> Team:
    """A single process."""
    return Team(alone(), alone(), (0,))


@dataclass(frozen=True)
class Meeting:
    """How a process meets others.

    Attributes:
        store: where they meet.
        member: this process's name.
        timeout_seconds: for meeting, and for waiting for a silent peer.
        link: model of the link, or None.
        ledger: goes on counting over the generations.
    """

    store: Store
    member: int
    timeout_seconds: float
    link: Link | None
    ledger: Ledger

    def connect(self, members: Sequence[int], *, generation: int) -> Team:
        """All ``members`` call this; ranks are in the order of the names."""
        names = tuple(sorted(members))
        rank, size = names.index(self.member), len(names)
        groups = [
            connect(
                self.store,
                rank=rank,
                size=size,
                name=f"generation-{generation}-{purpose}",
                timeout_seconds=self.timeout_seconds,
                link=self.link,
                ledger=self.ledger,
            )
            for purpose in ("training", "averaging")
        ]
        return Team(groups[0], groups[1], names, generation)

    def agree(self, expected: Sequence[int], *, generation: int, step: int) -> tuple[tuple[int, ...], int]:
        """Who comes to a generation, and the largest step that any of them has made.

        Everybody reports; the first to see that all ``expected`` are there, or that time is up, writes down who is.

        Raises:
            RunFailedError: this process is not among them.
        """
        prefix = f"generation-{generation}"
        self.store.set(f"{prefix}-here-{self.member}", str(step))
        deadline = time.monotonic() + self.timeout_seconds
        decided = f"{prefix}-members"
        while not self.store.check([decided]):
            here = [name for name in expected if self.store.check([f"{prefix}-here-{name}"])]
            if len(here) == len(expected) or time.monotonic() > deadline:
                steps = [int(self.store.get(f"{prefix}-here-{name}")) for name in here]
                self.store.compare_set(decided, "", json.dumps([sorted(here), max(steps)]))
            else:
                time.sleep(POLL_SECONDS)
        members, last = json.loads(self.store.get(decided))
        if self.member not in members:
            raise RunFailedError(f"the other ranks went on without rank {self.member}, which came too late")
        return tuple(members), last


def ask_to_join(store: Store, *, member: int) -> None:
    """Ask the ranks at work to let this process in; they answer when the weights are next averaged."""
    store.set(f"join-{member}", "waiting")
    store.add("joiners", 1)


def joiners(store: Store, *, candidates: Sequence[int]) -> tuple[int, ...]:
    """Names of those who wait; one look at the store where nobody does."""
    if store.add("joiners", 0) == 0:
        return ()
    return tuple(
        name for name in candidates if store.check([f"join-{name}"]) and store.get(f"join-{name}") == b"waiting"
    )


def invite(store: Store, *, member: int, generation: int, expected: Sequence[int]) -> None:
    """Tell a waiting process where to meet whom."""
    store.set(f"invitation-{member}", json.dumps([generation, list(expected)]))
    store.set(f"join-{member}", "invited")
    store.add("joiners", -1)


def await_invitation(store: Store, *, member: int, seconds: float) -> tuple[int, tuple[int, ...]]:
    """Wait to be let in; returns the generation and its expected members.

    Raises:
        RunFailedError: nobody answered.
    """
    key = f"invitation-{member}"
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError as error:
        raise RunFailedError(f"no rank let rank {member} in within {seconds:g} s") from error
    generation, expected = json.loads(store.get(key))
    store.delete_key(key)
    return generation, tuple(expected)
