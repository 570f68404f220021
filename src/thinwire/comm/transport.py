"""How does one buffer travel between two ranks?  torch's gloo and NCCL process groups, without any global state.

gloo matches messages by slot; NCCL matches them by order alone. Both move them in the background. What gloo was found
to do (torch 2.13): a killed peer's connection breaks at once, in every operation with that peer; a wait that times out
breaks all connections of this process's group; ``abort`` and ``shutdown`` do nothing, so ``break_off`` lets a wait time
out on purpose; a receive may be dropped unfinished, a send may not (it is then never sent).
"""

from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed

from thinwire.base.errors import UserError

BREAK_SLOT = 1 << 30
A_LONG_TIME = timedelta(days=365)


class ConnectionBrokenError(Exception):
    """The connection to this peer is gone."""


class NoAnswerError(Exception):
    """The peer sent nothing in time."""


@runtime_checkable
class Work(Protocol):
    def wait(self, timeout: timedelta) -> bool: ...


@runtime_checkable
class Transport(Protocol):
    """Between this rank and the others of its group; safe to use from several threads."""

    device: torch.device

    def send(self, buffer: torch.Tensor, *, to: int, slot: int) -> Work:
        """Raises ConnectionBrokenError. The buffer has to live until the work is done."""
        ...

    def receive(self, buffer: torch.Tensor, *, source: int, slot: int) -> Work:
        """Raises ConnectionBrokenError."""
        ...

    def wait(self, work: Work, *, seconds: float | None) -> None:
        """Raises ConnectionBrokenError, NoAnswerError. One call for each work."""
        ...

    def break_off(self) -> None:
        """Let all that is unfinished fail, here and at the peers."""
        ...


class GlooTransport:
    """Messages between CPUs; every slot of a pair of ranks is a queue of its own."""

    device = torch.device("cpu")

    def __init__(self, store: torch.distributed.Store, *, rank: int, size: int, timeout_seconds: float) -> None:
        timeout = timedelta(seconds=timeout_seconds)
        self._rank, self._size = rank, size
        self._group: Any = torch.distributed.ProcessGroupGloo(store, rank, size, timeout)

    def send(self, buffer: torch.Tensor, *, to: int, slot: int) -> Work:
        try:
            return self._group.send([buffer], to, slot)
        except RuntimeError as error:
            raise ConnectionBrokenError(_first_line(error)) from error

    def receive(self, buffer: torch.Tensor, *, source: int, slot: int) -> Work:
        try:
            return self._group.recv([buffer], source, slot)
        except RuntimeError as error:
            raise ConnectionBrokenError(_first_line(error)) from error

    def wait(self, work: Work, *, seconds: float | None) -> None:
        try:
            work.wait(A_LONG_TIME if seconds is None else timedelta(seconds=seconds))
        except RuntimeError as error:
            timed_out = "Timed out" in str(error)
            raise (NoAnswerError if timed_out else ConnectionBrokenError)(_first_line(error)) from error

    def break_off(self) -> None:
        for peer in range(self._size):  # one is enough, but a connection that is already broken has no effect
            if peer != self._rank:
                try:
                    work = self._group.recv([torch.empty(1, dtype=torch.uint8)], peer, BREAK_SLOT)
                    work.wait(timedelta(milliseconds=1))
                except RuntimeError:
                    continue


class NcclTransport:
    """Messages between GPUs, in the order they are posted; not yet run on more than one GPU.

    Both ranks of a pair must post their messages of one direction in the same order, whatever the slot. Each direction
    has a process group, hence a communicator and a stream, of its own: with one for both, two ranks that each post a
    receive before a send would wait for each other for ever.
    """

    def __init__(
        self,
        store: torch.distributed.Store,
        *,
        rank: int,
        size: int,
        timeout_seconds: float,
        device: torch.device,
    ) -> None:
        if not torch.distributed.is_nccl_available():
            fix = "use the gloo backend, or install torch with CUDA"
            raise UserError("this torch was built without NCCL", where="backend nccl", fix=fix)
        self.device = device
        options = torch.distributed.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_seconds)
        self._rank = rank
        self._up: Any
        self._down: Any
        self._up, self._down = (
            torch.distributed.ProcessGroupNCCL(torch.distributed.PrefixStore(direction, store), rank, size, options)
            for direction in ("up", "down")
        )

    def send(self, buffer: torch.Tensor, *, to: int, slot: int) -> Work:
        group = self._up if to > self._rank else self._down
        return group.send([buffer], to, slot)

    def receive(self, buffer: torch.Tensor, *, source: int, slot: int) -> Work:
        group = self._up if source < self._rank else self._down
        return group.recv([buffer], source, slot)

    def wait(self, work: Work, *, seconds: float | None) -> None:  # noqa: ARG002
        """Makes the current stream wait; a peer that is lost is seen by NCCL's own watchdog, which ends the process."""
        work.wait(A_LONG_TIME)

    def break_off(self) -> None:
        self._up.abort()
        self._down.abort()


def _first_line(error: RuntimeError) -> str:
    return str(error).splitlines()[0]
