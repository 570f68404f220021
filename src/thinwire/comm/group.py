"""How do ranks exchange tensors?  Messages between two ranks, asynchronous, counted, in one group of one generation.

A group never outlives a lost rank: every wait then raises PeerLostError with the same rank on all survivors, and they
build the next generation under another name in the same store.

A connection carries bytes in the order they were given to it. So a group has two lanes, connections of their own: bulk,
and express for small messages that somebody waits for, which would otherwise stand behind megabytes.
"""

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.distributed

from thinwire.base.errors import RunFailedError, UserError
from thinwire.comm.ledger import Ledger
from thinwire.comm.link import HEADER_BYTES, Lane, Link, LinkEnd
from thinwire.comm.lost import PeerLostError, Watch
from thinwire.comm.packing import TensorSpec, pack, spec_of, unpack
from thinwire.comm.pending import Nothing, Pending, Received, Sent
from thinwire.comm.transport import ConnectionBrokenError, GlooTransport, NcclTransport, NoAnswerError, Transport, Work

__all__ = ["Group", "Lane", "PeerLostError", "Pending", "TensorSpec", "alone", "connect", "spec_of"]


REAP_SECONDS = 0.02
"""Sends are finished in bunches behind the work, so that this thread does not take turns with it at every message."""


class Group:
    """The ranks of one generation, seen from one of them; threads may use different slots, or groups, at once.

    Args:
        transports: by lane; without an express lane, its messages take the bulk lane. None for a group of one.
        watch: who is lost; None for a group of one.
        link: its model, where messages shall take as long as on another link.
        ledger: where the bytes sent are counted.
        timeout_seconds: how long ``wait`` waits for a peer.
        device: where received tensors are put.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        transports: Mapping[Lane, Transport] | None,
        watch: Watch | None,
        link: LinkEnd | None,
        ledger: Ledger,
        timeout_seconds: float,
        device: torch.device,
    ) -> None:
        self.rank, self.size, self.ledger, self.device = rank, size, ledger, device
        self.timeout_seconds = timeout_seconds
        self.step = 0
        """What the ledger writes beside the bytes."""
        self._transports, self._watch, self._link = transports, watch, link
        self._header_bytes = 0 if link is None else HEADER_BYTES
        self._closed = False
        self._ending = threading.Event()
        self._sent: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        if watch is not None:
            watch.start(on_end=self._break_off)
            self._reaper = threading.Thread(target=self._finish_sends, name="thinwire-sends")
            self._reaper.start()

    def send(self, tensors: Sequence[torch.Tensor], *, to: int, slot: int, tag: str, lane: Lane = "bulk") -> Pending:
        """Start a message; the tensors are copied, and need not be waited for.

        Args:
            tensors: their bytes travel one after the other as one message.
            to: the peer's rank.
            slot: the queue; a slot's messages between two ranks arrive in the order they were sent.
            tag: what it is for, in the ledger.
            lane: which connection; sender and receiver name the same one.

        Raises:
            PeerLostError: a rank of this group is lost.
        """
        transport = self._usable(to, lane=lane)
        header = None
        num_bytes = sum(spec_of(tensor).num_bytes for tensor in tensors)
        if num_bytes == 0:
            return Nothing(())
        if self._link is not None:
            header = self._link.depart(num_bytes, to=to, lane=lane)
        buffer = pack([tensor.to(transport.device) for tensor in tensors], header=header)
        self.ledger.count(operation="send", tag=tag, step=self.step, num_bytes=num_bytes, peer=to)
        try:
            work = transport.send(buffer, to=to, slot=slot)
        except ConnectionBrokenError:
            raise self.fail(to, silent_seconds=None) from None
        sent = Sent(self, transport, work, buffer, to)
        self._sent.put(sent)
        return sent

    def receive(
        self,
        specs: Sequence[TensorSpec],
        *,
        source: int,
        slot: int,
        tag: str,  # noqa: ARG002
        lane: Lane = "bulk",
    ) -> Pending:
        """Post the receive of one message now; ``wait`` gives its tensors.

        gloo tells the sender so, on the lane's own connection, and the sender holds the message back until it knows:
        what is posted early is not held up by what this rank sends meanwhile.

        Nothing on the wire says how long a message is: where the sender sends less than expected, gloo leaves the rest
        as it was, and where it sends more, gloo ends the process. Ranks compare their settings before they begin.

        Args:
            specs: shapes and types of its tensors, as they were sent.
            source: the peer's rank.
            slot: the queue.
            tag: what it is for.
            lane: as its sender says.

        Raises:
            PeerLostError: a rank of this group is lost.
        """
        transport = self._usable(source, lane=lane)
        num_bytes = sum(spec.num_bytes for spec in specs)
        if num_bytes == 0:
            empty = torch.empty(0, dtype=torch.uint8, device=self.device)
            return Nothing(unpack(empty, specs))
        buffer = torch.empty(self._header_bytes + num_bytes, dtype=torch.uint8, device=transport.device)
        try:
            work = transport.receive(buffer, source=source, slot=slot)
        except ConnectionBrokenError:
            raise self.fail(source, silent_seconds=None) from None
        return Received(self, work, buffer, tuple(specs), source=source, lane=lane)

    def take(
        self, work: Work, buffer: torch.Tensor, specs: tuple[TensorSpec, ...], *, source: int, lane: Lane
    ) -> tuple[torch.Tensor, ...]:
        """Wait for a receive, for as long as the link takes, and unpack it; Pending's part of ``receive``."""
        if error := self.finish(work, peer=source):
            raise error
        if self._link is not None:
            num_bytes = buffer.numel() - HEADER_BYTES
            self._link.arrive(buffer[:HEADER_BYTES], num_bytes=num_bytes, source=source, lane=lane)
        tensors = unpack(buffer, specs, start=self._header_bytes)
        return tuple(tensor.to(self.device) for tensor in tensors)

    def finish(self, work: Work, *, peer: int) -> PeerLostError | None:
        """Wait for one work; returns what went wrong."""
        assert self._transports is not None
        assert self._watch is not None
        self._watch.waits_for = peer
        try:
            self._transports["bulk"].wait(work, seconds=self.timeout_seconds)
        except ConnectionBrokenError:
            return self.fail(peer, silent_seconds=None)
        except NoAnswerError:
            return self.fail(peer, silent_seconds=self.timeout_seconds)
        self._watch.waits_for = None
        return None

    def fail(self, peer: int, *, silent_seconds: float | None) -> PeerLostError:
        """Find out who is lost, end this group, and give the error to raise."""
        if self._closed or self._watch is None:
            return PeerLostError(self.rank, f"this process, rank {self.rank}, has closed the group")
        error = self._watch.judge(peer, silent_seconds=silent_seconds)
        self._break_off()
        return PeerLostError(error.rank, error.reason)

    def close(self) -> None:
        """Finish the sends under way, or, where a rank is lost, drop them. Waits in other threads fail."""
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._ending.set()
            self._sent.put(None)
            if self._watch.verdict is None:
                self._reaper.join(self.timeout_seconds)
            self._watch.stop()
            self._break_off()

    def _usable(self, peer: int, *, lane: Lane) -> Transport:
        if self._transports is None or self._watch is None or self._closed:
            raise ValueError("a group of one, or one that was closed, sends nothing")
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(f"rank {peer} is no peer of rank {self.rank} among {self.size}")
        if self._watch.verdict is not None:
            raise PeerLostError(self._watch.verdict.rank, self._watch.verdict.reason)
        return self._transports.get(lane, self._transports["bulk"])

    def _break_off(self) -> None:
        """Let everything that is unfinished fail, and the threads end."""
        self._sent.put(None)
        for transport in (self._transports or {}).values():
            transport.break_off()

    def _finish_sends(self) -> None:
        """Keep each send's buffer until its peer has taken it: gloo cannot be asked whether it has."""
        while (sent := self._sent.get()) is not None:
            sent.reap()
            if self._sent.empty():
                self._ending.wait(REAP_SECONDS)


def connect(
    store: torch.distributed.Store,
    *,
    rank: int,
    size: int,
    name: str,
    timeout_seconds: float,
    meet_seconds: float | None = None,
    link: Link | LinkEnd | None = None,
    ledger: Ledger | None = None,
    backend: Literal["gloo", "nccl"] = "gloo",
    device: torch.device | str = "cpu",
    lanes: Sequence[Lane] = ("bulk", "express"),
) -> Group:
    """Meet the other ranks of one generation; all call this, with the same name.

    Args:
        store: where they meet, best served by a process that outlives the ranks.
        name: no two generations in one store may share it.
        timeout_seconds: how long a silent peer is waited for.
        meet_seconds: how long the others may take to come here; None is the same.
        link: model of the link that messages take; a ``LinkEnd`` that other groups of this process use as well.
        ledger: one that goes on counting; None starts another.
        backend: gloo (any device; tensors on a GPU travel through the CPU) or nccl.
        device: where received tensors are put.
        lanes: the first is bulk; a group that sends nothing small needs no other.

    Raises:
        RunFailedError: not all ranks came.
        UserError: this torch has no such backend.
    """
    place, ledger = torch.device(device), ledger or Ledger()
    if size == 1:
        return _of_one(ledger, place)
    if backend == "nccl" and link is not None:
        raise UserError("a link is modelled with the gloo backend alone", where="link", fix="use gloo, or no link")
    meet_seconds = meet_seconds or timeout_seconds
    meeting = torch.distributed.PrefixStore(name, store)
    try:
        watch = Watch(meeting, rank=rank, size=size)
        transports: dict[Lane, Transport] = {}
        for lane in lanes:
            own = torch.distributed.PrefixStore(lane, meeting)
            if backend == "nccl":
                nccl = NcclTransport(own, rank=rank, size=size, timeout_seconds=meet_seconds, device=place)
                transports[lane] = nccl
            else:
                transports[lane] = GlooTransport(own, rank=rank, size=size, timeout_seconds=meet_seconds)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RunFailedError(f"the {size} ranks did not meet within {meet_seconds:g} s: {reason}") from error
    return Group(
        rank=rank,
        size=size,
        transports=transports,
        watch=watch,
        link=LinkEnd(link) if isinstance(link, Link) else link,
        ledger=ledger,
        timeout_seconds=timeout_seconds,
        device=place,
    )


def alone(device: torch.device | str = "cpu") -> Group:
    """A group of one rank: nothing to meet, nothing to send."""
    return _of_one(Ledger(), torch.device(device))


def _of_one(ledger: Ledger, device: torch.device) -> Group:
    return Group(
        rank=0,
        size=1,
        transports=None,
        watch=None,
        link=None,
        ledger=ledger,
        timeout_seconds=0.0,
        device=device,
    )
