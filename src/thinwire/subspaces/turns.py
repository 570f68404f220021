"""How does one stream's exchange hide behind another's compute?  A thread for each; one of them computes at a time.

Every stream makes its forward and its backward pass in a thread of its own. Who waits for a message gives the turn
away; of the streams that are ready, one that has something to send goes first, then the first of them. Between two
blocks of work a stream lets others go before it by the same rule: a theta that arrives while another stream computes
is keys and values that other ranks wait for. So the first one's backward pass meets the last one's forward
pass, and a wire that is busier than the processor in one of the two can still be hidden behind both.

Gradients are summed in the order of the streams, whoever is done first: the same run gives the same bits.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
Intent = Literal["send", "compute"]
"""What a stream does first when it has its turn: something that other ranks wait for, or not."""


class Turns:
    """Who computes now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: set[tuple[bool, int]] = set()
        """(computes, stream), the smallest first."""
        self._is_taken = False
        self._here = threading.local()

    @contextlib.contextmanager
    def of(self, stream: int) -> Iterator[None]:
        """The block is a stream's work; it begins with keys and values that others wait for."""
        self._take(stream, intent="send")
        self._here.stream = stream
        try:
            yield
        finally:
            del self._here.stream
            self._give()

    @contextlib.contextmanager
    def away(self, *, then: Intent = "compute") -> Iterator[None]:
        """Inside of a stream's work, the block only waits; elsewhere this does nothing."""
        stream = getattr(self._here, "stream", None)
        if stream is None:
            yield
            return
        self._give()
        try:
            yield
        finally:
            self._take(stream, intent=then)

    def between(self) -> None:
        """Let streams that are ready and come before this one go first; outside of a stream this does nothing."""
        stream = getattr(self._here, "stream", None)
        if stream is not None and self._is_behind(stream):
            self._give()
            self._take(stream, intent="compute")

    def _is_behind(self, stream: int) -> bool:
        with self._changed:
            return any(other < (True, stream) for other in self._ready)

    def _take(self, stream: int, *, intent: Intent) -> None:
        own = (intent == "compute", stream)
        with self._changed:
            self._ready.add(own)
            self._changed.wait_for(lambda: not self._is_taken and own == min(self._ready))
            self._ready.remove(own)
            self._is_taken = True

    def _give(self) -> None:
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()


def run_in_turns(work: Callable[[int], T], *, turns: Turns, count: int) -> list[T]:
    """What ``work`` returns for each of ``count`` streams; the first stream's error is raised, once all have ended."""

    def one(stream: int) -> T:
        with turns.of(stream):
            return work(stream)

    with ThreadPoolExecutor(count, thread_name_prefix="stream") as pool:
        return list(pool.map(one, range(count)))


def add_gradients(parameters: Sequence[nn.Parameter], by_stream: Sequence[Sequence[Tensor | None]]) -> None:
    """Add every stream's gradients to the parameters', in the order of the streams."""
    for parameter, *parts in zip(parameters, *by_stream, strict=True):
        found = [part for part in (parameter.grad, *parts) if part is not None]
        if found:
            total = found[0] + found[1] if len(found) > 1 else found[0].clone()
            for part in found[2:]:
                total += part
            parameter.grad = total


def gradients_of(loss: Tensor, parameters: Sequence[nn.Parameter]) -> tuple[Tensor | None, ...]:
    """None where the loss does not depend on a parameter."""
    return torch.autograd.grad(loss, list(parameters), allow_unused=True)
