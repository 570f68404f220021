"""What can be waited for?  A message under way: sent, received, or of no bytes."""

import threading
from typing import Protocol, runtime_checkable

import torch

from thinwire.comm.link import Lane
from thinwire.comm.lost import PeerLostError
from thinwire.comm.packing import TensorSpec
from thinwire.comm.transport import ConnectionBrokenError, Transport, Work


@runtime_checkable
class Owner(Protocol):
    """The group a message belongs to."""

    timeout_seconds: float

    def finish(self, work: Work, *, peer: int) -> PeerLostError | None: ...

    def fail(self, peer: int, *, silent_seconds: float | None) -> PeerLostError: ...

    def take(
        self, work: Work, buffer: torch.Tensor, specs: tuple[TensorSpec, ...], *, source: int, lane: Lane
    ) -> tuple[torch.Tensor, ...]: ...


@runtime_checkable
class Pending(Protocol):
    """A message under way."""

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The tensors of a receive; nothing of a send, whose peer has then taken it.

        Raises:
            PeerLostError: the peer, or another rank of the group, is lost.
        """
        ...


class Nothing:
    """A message of no bytes does not travel."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._tensors = tensors

    def wait(self) -> tuple[torch.Tensor, ...]:
        return self._tensors


class Sent:
    """Finished once, by whoever waits for it first: its sender, or the group's own thread."""

    def __init__(self, group: Owner, transport: Transport, work: Work, buffer: torch.Tensor, to: int) -> None:
        self._group, self._transport, self._work, self._buffer, self._to = group, transport, work, buffer, to
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._broken = False

    def wait(self) -> tuple[torch.Tensor, ...]:
        seconds = self._group.timeout_seconds
        if self._claim.acquire(blocking=False):
            error = self._group.finish(self._work, peer=self._to)
            self._broken = error is not None
            self._done.set()
            if error is not None:
                raise error
        if not self._done.wait(seconds):
            raise self._group.fail(self._to, silent_seconds=seconds)
        if self._broken:
            raise self._group.fail(self._to, silent_seconds=None)
        return ()

    def reap(self) -> None:
        """Hold the buffer until the peer has taken it. A peer that leaves is missed by those who wait for it."""
        if self._claim.acquire(blocking=False):
            try:
                self._transport.wait(self._work, seconds=None)
            except ConnectionBrokenError:
                self._broken = True
            self._done.set()


class Received:
    def __init__(
        self,
        group: Owner,
        work: Work,
        buffer: torch.Tensor,
        specs: tuple[TensorSpec, ...],
        *,
        source: int,
        lane: Lane,
    ) -> None:
        self._group, self._work, self._buffer, self._specs = group, work, buffer, specs
        self._source, self._lane = source, lane
        self._tensors: tuple[torch.Tensor, ...] | None = None

    def wait(self) -> tuple[torch.Tensor, ...]:
        if self._tensors is None:
            self._tensors = self._group.take(
                self._work, self._buffer, self._specs, source=self._source, lane=self._lane
            )
        return self._tensors
