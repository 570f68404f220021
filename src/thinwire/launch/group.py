"""How do the ranks of one run share a machine?  All at once; one that is lost does not stop the others.

A rank is lost when a signal kills it or it ends badly without a word. The survivors notice by themselves; here somebody
may take its place. A rank that says what is wrong (a person's mistake, a bug) stops all, as with independent jobs.
"""

import queue
import signal
from collections.abc import Callable, Sequence
from typing import Any

from thinwire.base.errors import InterruptedRunError, RunFailedError
from thinwire.launch.worker_process import (
    ERRORS,
    Command,
    Events,
    Running,
    failure,
    how_it_died,
    last_words,
    start,
    stop,
)

MAX_REPLACEMENTS = 16
ASKED = (InterruptedRunError.exit_status, -signal.SIGINT, -signal.SIGTERM)
"""Statuses of a rank that was asked to stop."""


def run_ranks(
    commands: Sequence[Command],
    *,
    on_message: Callable[[str, dict[str, Any]], None],
    on_lost: Callable[[str], Command | None],
    max_replacements: int = MAX_REPLACEMENTS,
) -> None:
    """Run every command at once and return when all that are left have ended well.

    Args:
        on_message: called in this thread with (command's name, message). A rank that is lost gives
            ``{"type": "lost", "text": ...}`` under its name. The message ``{"type": "give_up", "pid": ...}`` of a rank
            is carried out: the process hangs, and is killed.
        on_lost: called in this thread with the lost command's name; the command that takes its place, or None.
        max_replacements: of all ranks together; a rank that dies at each start must not be started for ever.

    Raises:
        UserError, OSError, RunFailedError: what a rank reported; the others were stopped after their update in flight.
        RunFailedError: all ranks are lost, or too many were.
        InterruptedRunError: an interrupt (Ctrl-C, or SIGTERM to this process or to a rank).
    """
    running: dict[str, Running] = {}
    events: Events = queue.Queue()
    ended_well, replacements, reason = not commands, 0, ""
    try:
        for command in commands:
            running[command.name] = start(command, events)
        while running:
            name, message = events.get()
            if message is not None:
                _hear(name, message, running=running, on_message=on_message)
                continue
            ended = running.pop(name)
            if ended.process.returncode == 0:
                ended_well = True
                continue
            reason = _how_it_was_lost(ended)
            on_message(name, {"type": "lost", "text": reason})
            if replacement := on_lost(name):
                replacements += 1
                if replacements > max_replacements:
                    raise RunFailedError(f"ranks were lost {replacements} times; the last one, {reason}")
                running[replacement.name] = start(replacement, events)
    except KeyboardInterrupt as interrupt:
        stop(running.values())
        raise InterruptedRunError("interrupted") from interrupt
    except BaseException:
        stop(running.values())
        raise
    if not ended_well:
        fix = "give the same command again; it goes on from the last checkpoint"
        raise RunFailedError(f"all ranks are lost; the last one, {reason}\n  fix:   {fix}")


def _hear(
    name: str,
    message: dict[str, Any],
    *,
    running: dict[str, Running],
    on_message: Callable[[str, dict[str, Any]], None],
) -> None:
    if message["type"] in ERRORS:
        running[name].error = message
    elif message["type"] == "give_up":
        for one in running.values():
            if one.process.pid == message["pid"]:
                one.was_given_up = True
                one.process.kill()
    else:
        on_message(name, message)


def _how_it_was_lost(ended: Running) -> str:
    """Raises what the rank said, where it did, or that it was asked to stop."""
    status = ended.process.returncode
    if ended.error is not None or status in ASKED:
        error = failure(ended)
        assert error is not None
        raise error
    if ended.was_given_up:
        return f"{ended.label} was ended, because the others went on without it"
    if status < 0:
        return f"{ended.label} {how_it_died(status)}"
    return f"{ended.label} ended with status {status}: {last_words(ended)}"
