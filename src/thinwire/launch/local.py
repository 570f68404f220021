"""How do independent jobs share one machine?  Some processes at once; their messages come back; a failure stops all.

An interrupt asks every process to finish its update in flight. A killed parent leaves no orphan at work: a worker
writes to a closed pipe or sees another parent, and stops.
"""

import os
import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from thinwire.base.errors import InterruptedRunError
from thinwire.launch.worker_process import ERRORS, Command, Events, Running, failure, start, stop

__all__ = ["Command", "available_cores", "run_commands"]


def available_cores() -> int:
    """Cores this process may use (a container may allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_commands(
    commands: Sequence[Command], *, at_once: int, on_message: Callable[[str, dict[str, Any]], None]
) -> None:
    """Run every command, at most ``at_once`` at a time, and return when all have ended well.

    Args:
        on_message: called in this thread with (command's name, message).

    Raises:
        UserError, OSError: what a worker reported; the others were stopped after their update in flight.
        RunFailedError: a worker died; its last lines of standard error are in the message.
        InterruptedRunError: an interrupt (Ctrl-C or SIGTERM to this process).
    """
    waiting, running = deque(commands), dict[str, Running]()
    events: Events = queue.Queue()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                command = waiting.popleft()
                running[command.name] = start(command, events)
            name, message = events.get()
            if message is None:
                if error := failure(running.pop(name)):
                    raise error
            elif message["type"] in ERRORS:
                running[name].error = message
            else:
                on_message(name, message)
    except KeyboardInterrupt as interrupt:
        stop(running.values())
        raise InterruptedRunError("interrupted") from interrupt
    except BaseException:
        stop(running.values())
        raise
