"""What does a worker process tell its parent?  One JSON object a line on standard output."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from thinwire.base.errors import ThinwireError, UserError


def send(message: dict[str, Any]) -> None:
    """Raises BrokenPipeError where the parent is gone."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class PipeTask:
    """A progress bar that lives in the parent."""

    def __init__(self) -> None:
        self._done = 0

    def advance(self, count: int = 1) -> None:
        self._done += count
        send({"type": "advance", "count": count})

    def note(self, text: str) -> None:
        send({"type": "note", "text": text})

    def close(self) -> None:
        pass


def say(text: str) -> None:
    send({"type": "say", "text": text})


def give_up(pid: int) -> None:
    """Have the parent kill the process of a rank that hangs; then it counts as lost, and may be replaced."""
    send({"type": "give_up", "pid": pid})


def stop_requested() -> Callable[[], bool]:
    """From now on an interrupt is the parent's business; returns whether to stop: it asked (SIGTERM), or it is gone."""
    asked = []
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    return lambda: bool(asked) or os.getppid() != parent


@contextmanager
def interrupts_are_requests() -> Iterator[Callable[[], bool]]:
    """In the block Ctrl-C and SIGTERM are requests; gives whether one has come. For a worker without a parent."""
    asked = []
    before = {one: signal.signal(one, lambda *_: asked.append(True)) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def exit_status_of(work: Callable[[], None], *, place: str) -> int:
    """Do a worker's work; its exit status, as the command line's: 0, 1, 2 or 130. The parent is told what went wrong.

    Args:
        work: raises what stopped it.
        place: where it writes, for a write that failed half-way and does not say where.
    """
    try:
        work()
    except BrokenPipeError:
        return 1
    except OSError as error:
        if error.filename is None:
            error.filename = place
        return exit_with(error)
    except Exception as error:
        return exit_with(error)
    return 0


def exit_with(error: Exception) -> int:
    """Tell the parent why, return the exit status."""
    if isinstance(error, UserError):
        send({"type": "error", "what": error.what, "where": error.where, "fix": error.fix})
    elif isinstance(error, OSError):
        send({"type": "os_error", "errno": error.errno, "text": error.strerror, "path": str(error.filename or "")})
    elif isinstance(error, ThinwireError):
        send({"type": "failed", "text": str(error), "is_expected": True})
    else:  # nobody's mistake but ours: where it happened is all there is to go by
        send({"type": "failed", "text": "".join(traceback.format_exception(error)).rstrip()})
    return error.exit_status if isinstance(error, ThinwireError) else 1
