"""How is one worker process started, heard and ended?  Its messages and its end come back through one queue."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError

STOP_SECONDS = 60
STDERR_LINES = 20
ERRORS = ("error", "os_error", "failed")
"""Types of the message with which a worker says why it ends."""
Events = queue.Queue[tuple[str, dict[str, Any] | None]]
"""(command's name, message); None in place of a message: the process has ended."""


@dataclass(frozen=True)
class Command:
    """One job: its name, ``python -m module arguments``, and what people call it.

    Args:
        prefix: words before ``python``, e.g. ``ip netns exec NAME``.
        environment: variables set on top of this process's.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    label: str = ""
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Running:
    """A process that was started, and what it said last."""

    command: Command
    process: subprocess.Popen[str]
    last_lines: deque[str]
    readers: list[threading.Thread] = field(default_factory=list)
    error: dict[str, Any] | None = None
    was_given_up: bool = False
    """It hung, and was killed on another rank's word."""

    @property
    def label(self) -> str:
        return self.command.label or self.command.name


def start(command: Command, events: Events) -> Running:
    """Raises OSError where the command cannot be started."""
    process = subprocess.Popen(
        [*command.prefix, sys.executable, "-m", command.module, *command.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **command.environment},
        text=True,
    )
    running = Running(command, process, deque(maxlen=STDERR_LINES))

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


def failure(ended: Running) -> Exception | None:
    """What a worker that ended badly had to say; None of one that ended well."""
    status, error = ended.process.returncode, ended.error or {}
    if status == 0:
        return None
    if error.get("type") == "error":
        return UserError(error["what"], where=error["where"], fix=error["fix"])
    if error.get("type") == "os_error":
        return OSError(error["errno"], error["text"], error["path"])
    # A worker that has not yet arranged to finish its update dies of the signal itself.
    if status in (InterruptedRunError.exit_status, -signal.SIGINT, -signal.SIGTERM):
        return InterruptedRunError(f"{ended.command.name} was asked to stop")
    if status < 0:
        fix = "give the same command again; it goes on from the last finished update"
        return RunFailedError(f"the process of {ended.label} {how_it_died(status)}\n  fix:   {fix}")
    if error.get("is_expected"):
        return RunFailedError(error["text"])
    reason = error.get("text") or last_words(ended)
    return RunFailedError(f"{ended.label} ended with status {status}\n  {reason}")


def how_it_died(status: int) -> str:
    """Of a process that a signal killed."""
    cause = ", perhaps because memory ran out" if status == -signal.SIGKILL else ""
    return f"was killed by signal {-status}{cause}"


def last_words(ended: Running) -> str:
    return "\n  ".join(ended.last_lines) or "no message"


def stop(running: Iterable[Running]) -> None:
    """Ask the others to finish their update in flight, then wait; a second interrupt kills."""
    all_running = list(running)
    for one in all_running:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
    try:
        for one in all_running:
            one.process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for one in all_running:
            one.process.kill()
            one.process.wait()
