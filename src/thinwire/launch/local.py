"""How do independent jobs share one machine?  Some processes at once; their messages come back; a failure stops all.

An interrupt asks every process to finish its update in flight. A killed parent leaves no orphan at work: a worker
writes to a closed pipe or sees another parent, and stops.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError

STOP_SECONDS = 60
STDERR_LINES = 20


@dataclass(frozen=True)
class Command:
    """One job: its name, ``python -m module arguments``, and what people call it."""

    name: str
    module: str
    arguments: tuple[str, ...]
    label: str = ""


@dataclass
class _Running:
    command: Command
    process: subprocess.Popen[str]
    last_lines: deque[str]
    readers: list[threading.Thread] = field(default_factory=list)
    error: dict[str, Any] | None = None


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
    waiting, running = deque(commands), dict[str, _Running]()
    events: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                command = waiting.popleft()
                running[command.name] = _start(command, events)
            name, message = events.get()
            if message is None:
                _finish(running.pop(name))
            elif message["type"] in ("error", "os_error", "failed"):
                running[name].error = message
            else:
                on_message(name, message)
    except KeyboardInterrupt as interrupt:
        _stop(running)
        raise InterruptedRunError("interrupted") from interrupt
    except BaseException:
        _stop(running)
        raise


def _start(command: Command, events: "queue.Queue[tuple[str, dict[str, Any] | None]]") -> _Running:
    argv = [sys.executable, "-m", command.module, *command.arguments]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    running = _Running(command, process, deque(maxlen=STDERR_LINES))

    def read_errors() -> None:
        for line in process.stderr or ():
            running.last_lines.append(line.rstrip())

    errors = threading.Thread(target=read_errors, daemon=True)

    def read_messages() -> None:
        for line in process.stdout or ():
            try:
                events.put((command.name, json.loads(line)))
            except json.JSONDecodeError:
                running.last_lines.append(line.rstrip())
        process.wait()
        errors.join()
        events.put((command.name, None))

    running.readers = [errors, threading.Thread(target=read_messages, daemon=True)]
    for reader in running.readers:
        reader.start()
    return running


def _finish(ended: _Running) -> None:
    """Raise what a worker that ended badly had to say."""
    status, error = ended.process.returncode, ended.error or {}
    if status == 0:
        return
    if error.get("type") == "error":
        raise UserError(error["what"], where=error["where"], fix=error["fix"])
    if error.get("type") == "os_error":
        raise OSError(error["errno"], error["text"], error["path"])
    # A worker that has not yet arranged to finish its update dies of the signal itself.
    if status in (InterruptedRunError.exit_status, -signal.SIGINT, -signal.SIGTERM):
        raise InterruptedRunError(f"{ended.command.name} was asked to stop")
    label = ended.command.label or ended.command.name
    if status < 0:
        cause = ", perhaps because memory ran out" if status == -signal.SIGKILL else ""
        raise RunFailedError(
            f"the process of {label} was killed by signal {-status}{cause}\n"
            "  fix:   give the same command again; it goes on from the last finished update"
        )
    reason = error.get("text") or "\n  ".join(ended.last_lines) or "no message"
    raise RunFailedError(f"{label} ended with status {status}\n  {reason}")


def _stop(running: dict[str, _Running]) -> None:
    """Ask the others to finish their update in flight, then wait; a second interrupt kills."""
    for one in running.values():
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
    try:
        for one in running.values():
            one.process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for one in running.values():
            one.process.kill()
            one.process.wait()
