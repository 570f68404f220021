"""May a data folder be made here?  A finished one is compared; a new one is filled by one process, beside its place."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from thinwire.base.errors import UserError
from thinwire.base.locks import exclusive_lock
from thinwire.data.corpus import MANIFEST, read_manifest

PARTIAL_SUFFIX = ".partial"
LOCK_SUFFIX = ".lock"


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Keep other processes from making ``out`` while the block runs; a folder that is there already needs no lock.

    Raises:
        UserError: another process is making it, or nothing can be written there.
        OSError: the disk is full.
    """
    with ExitStack() as stack:
        if is_vacant(out):
            with _clear_error(out):
                lock = _beside(out, LOCK_SUFFIX)
                lock.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(exclusive_lock(lock, place=out))
        yield


def is_vacant(out: Path) -> bool:
    """Nothing is there, or an empty folder."""
    return not out.exists() or (out.is_dir() and not any(out.iterdir()))


def finished_manifest(out: Path, *, inputs_fingerprint: str) -> dict[str, Any] | None:
    """The manifest of a finished folder made from the same inputs; None where there is room for a new one.

    Raises:
        UserError: the folder holds something else, or was made from other inputs.
    """
    if is_vacant(out):
        return None
    fix = "choose another --out, or remove it"
    if not out.is_dir() or not (out / MANIFEST).is_file():
        raise UserError("the output folder holds something else", where=str(out), fix=fix)
    manifest = read_manifest(out)
    if manifest.get("inputs_fingerprint") != inputs_fingerprint:
        what = "the output folder was prepared from other sources or with other options"
        raise UserError(what, where=str(out), fix=fix)
    return manifest


@contextmanager
def filled_beside(out: Path) -> Iterator[Path]:
    """An empty folder beside ``out`` that takes its place when the block ends, and is removed when the block fails.

    What a killed process left there is removed first, so call it inside ``only_writer``.

    Raises:
        UserError: the folder cannot be made.
        OSError: the disk is full.
    """
    partial = _beside(out, PARTIAL_SUFFIX)
    with _clear_error(out):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    try:
        yield partial
        partial.rename(out.resolve())
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _beside(out: Path, suffix: str) -> Path:
    return out.resolve().with_name(out.resolve().name + suffix)


@contextmanager
def _clear_error(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        fix = "choose a folder that can be written, with --out"
        raise UserError(f"cannot make the output folder ({error.strerror})", where=str(out), fix=fix) from error
