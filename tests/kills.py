"""How do tests kill a job at an exact write?  A forked child counts the calls that change the disk, and dies at one."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from thinwire.runs.layout import JobFolder
from thinwire.soma.expert_job import ExpertJob
from tiny_runs import train_job

JOBS = ("seed", "0")
"""Central differences with a trained decoder; one-sided ones with a frozen decoder."""
When = Literal["before", "middle", "after"]


@dataclass(frozen=True)
class Write:
    """One call that changes the disk."""

    call: str
    path: str


@dataclass
class Writes:
    """Counts every call that changes the disk; kills the process at one of them, with SIGKILL."""

    kill_at: int | None = None
    when: When = "before"
    seen: list[Write] = field(default_factory=list)

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        pwrite, write, replace_, write_bytes = os.pwrite, os.write, os.replace, Path.write_bytes
        patch(os, "pwrite", lambda fd, data, at: self._do("pwrite", _name(fd), data, lambda d: pwrite(fd, d, at)))
        patch(os, "write", lambda fd, data: self._do("write", _name(fd), data, lambda d: write(fd, d)))
        patch(os, "replace", lambda a, b: self._do("replace", str(b), b"", lambda _: replace_(a, b)))
        patch(Path, "write_bytes", lambda path, data: self._do("file", str(path), data, lambda d: write_bytes(path, d)))

    def _do(self, call: str, path: str, data: bytes, act: Callable[[bytes], Any]) -> Any:
        index = len(self.seen)
        self.seen.append(Write(call, path))
        if index == self.kill_at:
            if self.when == "middle":
                act(data[: len(data) // 2])
            elif self.when == "after":
                act(data)
            os.kill(os.getpid(), signal.SIGKILL)
        return act(data)


def _name(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    return os.waitpid(child, 0)[1]


def killed(job: ExpertJob, folder: JobFolder, *, at: int, when: When) -> None:
    """Train in a child that dies at its ``at``-th write."""

    def work() -> None:
        Writes(at, when).install(setattr)
        train_job(job, folder)

    status = in_child(work)
    assert os.WIFSIGNALED(status), f"the child ended with {status} before write {at}"
    assert os.WTERMSIG(status) == signal.SIGKILL


@dataclass(frozen=True)
class Undisturbed:
    """A job, the folder of its undisturbed run, and every write of it."""

    job: ExpertJob
    folder: JobFolder
    writes: list[Write]


def find(writes: list[Write], call: str, ending: str, *, nth: int = 0) -> int:
    """Which write is the ``nth`` ``call`` on a file of this ending."""
    return [i for i, w in enumerate(writes) if w.call == call and w.path.endswith(ending)][nth]
