"""How do several ranks make one expert's updates together?  Each evaluates some directions (appendix H.2, Fig. 12).

The paper's ranks add up gradient estimates, 4 bytes a parameter. But every rank can rebuild every probe from its
address, so the losses are enough, 8 bytes a forward: each rank makes the whole update from them, and all hold the same
bits, those of one process alone. ``exchange = "gradients"`` is the paper's form beside it: each rank sums the probes of
its own directions, and the sums travel as well.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from thinwire.base.errors import InterruptedRunError, RunFailedError
from thinwire.comm.collectives import (
    gather_bytes,
    gather_in_rank_order,
    gather_json,
    piece_lengths,
    sum_bytes,
    sum_in_rank_order,
)
from thinwire.comm.group import Group, PeerLostError, connect
from thinwire.comm.link import Link
from thinwire.soma.config import TrainingConfig
from thinwire.soma.expert_job import ExpertState
from thinwire.soma.spsa import SIGNS

LOSSES, GRADIENT, AGREEMENT, HANDED = "losses", "gradient", "agreement", "job"
"""Tags in the ledger: of every update, of every update in the paper's form, of every validation, of every job."""
WIRE = torch.float32
"""choice: sums of probes travel in FP32, as the paper's 33 MB for 8.33M parameters do."""
EXTRAS = 2
"""Numbers of a rank beside its losses: the device-seconds they took, and whether somebody asked it to stop."""
LAST_WORD_SECONDS, POLL_SECONDS = 2.0, 0.05
HERE, STOPPED = "here-", "stopped"
"""Keys of the store: who has come, and that nobody needs to come any more."""


class ExchangedBytes(NamedTuple):
    """What all ranks together send for one update."""

    losses: int
    gradient: int


def bytes_of_update(config: TrainingConfig, *, num_parameters: int, ranks: int, gradient_parts: int) -> ExchangedBytes:
    """(m - 1) 8 (A n S + 2 m) bytes of losses, of S signs; in the paper's form 2 (m - 1) 4 M bytes of sums as well.

    A run that is divided by experts alone has one rank an expert, and sends nothing.
    """
    forwards = config.accumulation * config.directions * len(SIGNS[config.difference])
    losses = gather_bytes(forwards + EXTRAS * ranks, size=ranks, dtype=torch.float64)
    return ExchangedBytes(losses, 0 if gradient_parts == 1 else sum_bytes(num_parameters, size=ranks, wire=WIRE))


def parts_of(directions: int, *, parts: int) -> list[range]:
    """Which directions each rank evaluates: nearly equal pieces, in the order of the ranks."""
    lengths = piece_lengths(directions, size=parts)
    return [range(sum(lengths[:rank]), sum(lengths[: rank + 1])) for rank in range(parts)]


def sum_of_parts(parts: Sequence[Float64[Tensor, " M"]]) -> Float64[Tensor, " M"]:
    """One process's sum of what ``parts`` ranks would have summed over the wire, bit for bit."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part.to(WIRE).to(total)
    return total.to(WIRE).to(total)


class Shared(NamedTuple):
    """Every rank's forwards of one update.

    Attributes:
        of_batches: float64 [n, S] of each accumulation batch, as one process would have computed them.
        device_seconds: of all ranks together.
    """

    of_batches: list[Tensor]
    device_seconds: float


class Agreement(NamedTuple):
    """What all ranks know after a validation.

    Attributes:
        loss: rank 0's.
        wire_bytes: sent by all ranks for this job since they began with it, by tag.
    """

    loss: float
    wire_bytes: dict[str, int]


class Crew:
    """The ranks that train one job after the other together, seen from one of them.

    Args:
        group: how they talk.
        should_stop: whether somebody asked this rank to stop.
    """

    def __init__(self, group: Group, *, should_stop: Callable[[], bool]) -> None:
        self.group, self._should_stop = group, should_stop
        self.stops = False
        """Somebody asked one of the ranks to stop; all learn it in the same update."""
        self.first_update = 0
        """The update after which these ranks began with the job they are at."""
        self._sent_before: dict[str, int] = {}

    @property
    def rank(self) -> int:
        return self.group.rank

    def begin(self) -> None:
        """From now on bytes count for another job, beginning with those that hand it out."""
        self._sent_before = self.group.ledger.by_tag()

    def own(self, directions: int) -> range:
        """Which of an update's directions this rank evaluates."""
        return parts_of(directions, parts=self.group.size)[self.rank]

    def share(self, own: list[Tensor], *, directions: int, update: int, device_seconds: float) -> Shared:
        """Every rank's losses of an update on every rank.

        Args:
            own: float64 [this rank's directions, S] of each accumulation batch.
            directions: n, of all ranks together.
            update: whose bytes these are.
            device_seconds: what this rank spent on its own.

        Raises:
            PeerLostError: a rank is lost.
        """
        self.group.step = update
        batches, signs = len(own), own[0].shape[1]
        counts = piece_lengths(directions, size=self.group.size)
        extras = torch.tensor([device_seconds, float(self._should_stop())], dtype=torch.float64)
        message = torch.cat([torch.stack(own).flatten(), extras])
        lengths = [batches * count * signs + EXTRAS for count in counts]
        pieces = gather_in_rank_order(self.group, message, lengths=lengths, tag=LOSSES).split(lengths)
        losses = [piece[:-EXTRAS].view(batches, count, signs) for piece, count in zip(pieces, counts, strict=True)]
        self.stops = any(bool(piece[-1]) for piece in pieces)
        return Shared(list(torch.cat(losses, dim=1)), sum(float(piece[-2]) for piece in pieces))

    def sum_gradients(self, own: Float64[Tensor, " M"]) -> Float64[Tensor, " M"]:
        """The sum of all ranks' parts, the same bits on every rank: ``sum_of_parts``. Raises PeerLostError."""
        return sum_in_rank_order(self.group, own, tag=GRADIENT, wire=WIRE)

    def agree(self, state: ExpertState, *, loss: float | None) -> Agreement:
        """Take over rank 0's validation loss, once all ranks are seen to hold the same weights.

        Args:
            state: after an update.
            loss: rank 0's; None on the others.

        Raises:
            RunFailedError: weights differ; nothing of the validation is kept.
            PeerLostError: a rank is lost.
        """
        ledger = self.group.ledger
        ledger.forget_steps(before=state.update)
        sent = {tag: count - self._sent_before.get(tag, 0) for tag, count in ledger.by_tag().items()}
        own = {"digest": digest_of(state), "loss": loss, "bytes": sent}
        said = gather_json(self.group, own, tag=AGREEMENT)
        parted = [rank for rank, one in enumerate(said) if one["digest"] != said[0]["digest"]]
        if parted:
            named = ", ".join(map(str, parted))
            raise RunFailedError(
                f"after update {state.update} the weights of rank {named} are not those of rank 0\n"
                "  fix:   run the same versions on machines of one kind, and give the same command again: it goes on "
                "from rank 0's last checkpoint"
            )
        tags = sorted({tag for one in said for tag in one["bytes"]})
        return Agreement(said[0]["loss"], {tag: sum(one["bytes"].get(tag, 0) for one in said) for tag in tags})


def digest_of(state: ExpertState) -> str:
    """Of everything the next update starts from, but for clocks: weights and Adam's moments."""
    hasher = hashlib.blake2b(digest_size=16)
    for tensor in (*state.expert, *state.body[:2], *state.decoder[:2]):
        hasher.update(tensor.cpu().numpy().tobytes())
    return hasher.hexdigest()


@contextmanager
def meet(
    store: torch.distributed.Store,
    *,
    rank: int,
    size: int,
    name: str,
    timeout_seconds: float,
    should_stop: Callable[[], bool],
    link: Link | None = None,
) -> Iterator[Crew]:
    """The crew of ``size`` ranks that meet in a store under a name; they part at the end of the block.

    Args:
        store: which all ranks reach, best served by a process that outlives them.
        timeout_seconds: how long a silent rank is waited for, and how long ranks wait for each other at first.
        should_stop: whether somebody asked this rank to stop.
        link: model of a link that messages take.

    Raises:
        InterruptedRunError: somebody asked one of the ranks to stop before they had met.
        RunFailedError: not all ranks came, or one was lost on the way.
    """
    meeting = torch.distributed.PrefixStore(name, store)
    _wait_for_all(meeting, rank=rank, size=size, seconds=timeout_seconds, should_stop=should_stop)
    group = connect(store, rank=rank, size=size, name=name, timeout_seconds=timeout_seconds, link=link, lanes=("bulk",))
    try:
        yield Crew(group, should_stop=should_stop)
    except PeerLostError as error:
        time.sleep(LAST_WORD_SECONDS)  # whoever started the ranks hears first from the one that knows the reason
        fix = "give the same command again; it goes on from the last finished update"
        raise RunFailedError(f"{error.reason}\n  fix:   {fix}") from error
    finally:
        group.close()


def _wait_for_all(
    meeting: torch.distributed.Store, *, rank: int, size: int, seconds: float, should_stop: Callable[[], bool]
) -> None:
    """Until every rank is there; connecting itself cannot be broken off."""
    meeting.set(f"{HERE}{rank}", "")
    deadline = time.monotonic() + seconds
    while missing := [other for other in range(size) if not meeting.check([f"{HERE}{other}"])]:
        if should_stop():
            meeting.set(STOPPED, "")
        if meeting.check([STOPPED]):
            raise InterruptedRunError("stopped before the ranks had met")
        if time.monotonic() > deadline:
            named = ", ".join(map(str, missing))
            raise RunFailedError(
                f"rank {named} of {size} did not come within {seconds:g} s\n"
                "  fix:   start all ranks within that time (--launch.timeout-seconds), and check that each reaches the "
                "first one's address"
            )
        time.sleep(POLL_SECONDS)
