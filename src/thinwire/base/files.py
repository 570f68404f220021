"""How is a file written so that it is whole or absent?  Temporary name, flush, fsync, rename; hashes; JSON lines."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from thinwire.base.errors import UserError

TEMPORARY_SUFFIX = ".tmp"


def atomic_write(path: Path, write: bytes | Callable[[Path], None]) -> None:
    """Write ``path`` so that a reader, or a restart after a kill, sees the old file or the whole new one.

    Args:
        path: the final name; its folder is made.
        write: the bytes, or a function that writes the file it is given.

    Raises:
        OSError: from the file system (disk full, read-only); the old file is untouched and no temporary one is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        if isinstance(write, bytes):
            temporary.write_bytes(write)
        else:
            write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno is not None and error.filename is None:  # a write to a handle names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces. What fingerprints are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Atomic, indented, with sorted keys."""
    atomic_write(
        path, (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()
    )


def read_json(path: Path) -> Any:
    """Raises UserError where the file is missing or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError("a file is missing", where=str(path), fix="check the folder's path") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        fix = "restore it from a copy, or make the folder again"
        raise UserError("a file is not valid JSON", where=f"{path}: {error}", fix=fix) from error


def append_json_line(path: Path, record: dict[str, Any]) -> None:
    """One record, one write call, so that two writers do not mix lines; a torn line before it is closed off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def restore_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Make ``path`` hold these records, as ``append_json_line`` writes them; it is written only where it does not."""
    wanted = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    if wanted != (path.read_bytes() if path.exists() else b""):
        atomic_write(path, wanted)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record; lines torn by a kill or a full disk in the middle of a write are passed over."""
    if not path.exists():
        return
    with path.open("rb") as handle:
        for line in handle:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if line.endswith(b"\n") and isinstance(record, dict):
                yield record


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
