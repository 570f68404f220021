"""Who works in this folder?  One process at a time: a lock file (flock) that says who holds it and dies with them."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from thinwire.base.errors import UserError

HOLDER_BYTES = 32


@contextmanager
def exclusive_lock(path: Path, *, place: Path) -> Iterator[None]:
    """Hold the lock file ``path`` alone while the block runs.

    The file is removed at the end. A kill leaves it, but not the lock: the next process takes it over.

    Args:
        path: the lock file; its folder exists.
        place: the folder that the error names.

    Raises:
        UserError: another process holds the lock; the error names its pid.
        OSError: the file cannot be made, or the file system has no locks.
    """
    descriptor = _acquire(path, place=place)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}".encode(), 0)
        yield
    finally:
        if _lies_at(path, descriptor):  # removed while it is held, and never another process's file
            with suppress(OSError):
                path.unlink()
        os.close(descriptor)


def _acquire(path: Path, *, place: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = f"another process ({_holder(descriptor)}) is working in this folder"
            os.close(descriptor)
            fix = "wait until it ends, or stop it, then give the same command again"
            raise UserError(what, where=str(place), fix=fix) from error
        except BaseException:
            os.close(descriptor)
            raise
        if _lies_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # its holder ended, and removed it, after it was opened here


def _lies_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _holder(descriptor: int) -> str:
    """What the holder wrote; it writes just after it locks, so an empty file is looked at again."""
    for _ in range(20):
        if written := os.pread(descriptor, HOLDER_BYTES, 0).decode(errors="replace").strip():
            return written
        time.sleep(0.005)
    return "unknown"
