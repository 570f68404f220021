"""Is a lock held by one process, named after it, gone at the end, and taken over after a kill?"""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.base.locks import exclusive_lock

HOLD = """
import sys
from pathlib import Path
from thinwire.base.locks import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), place=Path("there")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_holder_is_named_until_it_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"\(pid {holder.pid}\)") as caught, exclusive_lock(lock, place=tmp_path):
            pass
        assert caught.value.where == str(tmp_path)
        os.kill(holder.pid, signal.SIGKILL)
    assert lock.exists()
    with exclusive_lock(lock, place=tmp_path):
        assert lock.read_text() == f"pid {os.getpid()}"
    assert not lock.exists()


def test_a_lock_file_removed_before_it_was_locked_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that each lock a file of the same name would otherwise both go on."""
    lock, flock = tmp_path / "lock", fcntl.flock
    calls = []

    def flock_too_late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            lock.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    with exclusive_lock(lock, place=tmp_path):
        assert len(calls) == 2
        with pytest.raises(UserError, match="another process"), exclusive_lock(lock, place=tmp_path):
            pass


def test_another_lock_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with exclusive_lock(lock, place=tmp_path):
        lock.unlink()
        lock.write_text("another's")
    assert lock.read_text() == "another's"


def test_a_lock_that_cannot_be_made_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), exclusive_lock(tmp_path / "none" / "lock", place=tmp_path):
        pass
