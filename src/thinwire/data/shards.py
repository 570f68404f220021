"""How do documents lie on disk, and how are windows of bytes read from them?  Flat shard files, memory-mapped.

A split's stream is its documents' bytes, verbatim, each followed by one 0x00 byte.
choice: 0x00 ends a document, because text does not hold it; where a document does, starts and lengths still say
where it ends.  The paper does not say how documents are joined.
"""

import hashlib
import mmap
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from thinwire.base.errors import UserError

DOCUMENT_END = b"\x00"
SHARD_BYTES = 256 * 1024 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024
INDEX_BUFFER_DOCUMENTS = 65536
INDEX_FILES: dict[str, type[np.generic]] = {"starts.bin": np.int64, "lengths.bin": np.int64, "sources.bin": np.int32}


class ShardTotals(NamedTuple):
    """What a writer wrote; ``files`` maps a file's name to its SHA-256."""

    num_documents: int
    num_bytes: int
    files: dict[str, str]


class HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self.handle: BinaryIO = path.open("wb", buffering=WRITE_BUFFER_BYTES)
        self.digest = hashlib.sha256()

    def write(self, payload: bytes | memoryview) -> None:
        self.handle.write(payload)
        self.digest.update(payload)

    def close(self) -> str:
        self.handle.close()
        return self.digest.hexdigest()


class ShardWriter:
    """Writes one split as a stream; memory does not grow with the split.

    Args:
        folder: where the files go; made when absent.
        shard_bytes: a shard file's largest size; documents may cross from one file into the next.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.shard_bytes = folder, shard_bytes
        self.num_bytes = self.num_documents = 0
        self._files: dict[str, str] = {}
        self._index = {name: HashedFile(folder / name) for name in INDEX_FILES}
        self._pending: dict[str, list[int]] = {name: [] for name in INDEX_FILES}
        self._shard_index, self._room = 0, shard_bytes
        self._shard = HashedFile(folder / shard_name(0))

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, payload: bytes, *, source: int) -> None:
        """Append one document.

        Args:
            payload: the document's bytes.
            source: index into the manifest's list of sources.
        """
        values = (self.num_bytes, len(payload), source)
        for name, value in zip(INDEX_FILES, values, strict=True):
            self._pending[name].append(value)
        self._append(memoryview(payload))
        self._append(memoryview(DOCUMENT_END))
        self.num_bytes += len(payload) + 1
        self.num_documents += 1
        if self.num_documents % INDEX_BUFFER_DOCUMENTS == 0:
            self._flush_index()

    def _append(self, view: memoryview) -> None:
        while len(view):
            if self._room == 0:
                self._files[shard_name(self._shard_index)] = self._shard.close()
                self._shard_index += 1
                self._room = self.shard_bytes
                self._shard = HashedFile(self.folder / shard_name(self._shard_index))
            piece = view[: self._room]
            self._shard.write(piece)
            self._room -= len(piece)
            view = view[len(piece) :]

    def _flush_index(self) -> None:
        for name, kind in INDEX_FILES.items():
            self._index[name].write(np.asarray(self._pending[name], kind).tobytes())
            self._pending[name].clear()

    def close(self) -> ShardTotals:
        """Finish every file; calling it again changes nothing."""
        if not self._shard.handle.closed:
            self._flush_index()
            self._files[shard_name(self._shard_index)] = self._shard.close()
            self._files.update({name: file.close() for name, file in self._index.items()})
        return ShardTotals(self.num_documents, self.num_bytes, dict(sorted(self._files.items())))


def shard_name(index: int) -> str:
    return f"bytes-{index:05d}.bin"


class ByteShards:
    """One split, memory-mapped and read-only.

    Attributes:
        num_bytes: length of the stream, document ends included.
        num_documents: how many documents it holds.
        starts: int64 [num_documents], stream offset of each document's first byte.
        lengths: int64 [num_documents], bytes of each document, its end excluded.
        sources: int32 [num_documents], index into the manifest's list of sources.
    """

    def __init__(self, folder: Path, *, parts: Sequence[np.ndarray], index: dict[str, np.ndarray]) -> None:
        self.folder = folder
        self._parts = list(parts)
        self._first = np.cumsum([0, *(part.size for part in parts)])[:-1]
        self.num_bytes = int(sum(part.size for part in parts))
        self.starts: Int64[np.ndarray, " documents"] = index["starts.bin"]
        self.lengths: Int64[np.ndarray, " documents"] = index["lengths.bin"]
        self.sources: Int32[np.ndarray, " documents"] = index["sources.bin"]
        self.num_documents = int(self.starts.size)

    @classmethod
    def open(cls, folder: Path) -> "ByteShards":
        """Map the files of a folder that ``ShardWriter`` filled.

        Raises:
            UserError: a file is missing, or the files do not fit together.
        """
        paths = sorted(folder.glob("bytes-*.bin"))
        missing = [name for name in (shard_name(0), *INDEX_FILES) if not (folder / name).is_file()]
        if missing:
            raise _damaged(folder, f"missing: {', '.join(missing)}")
        if [path.name for path in paths] != [shard_name(i) for i in range(len(paths))]:
            raise _damaged(folder, "a shard file is missing")
        index = {name: mapped(folder / name, kind) for name, kind in INDEX_FILES.items()}
        shards = cls(folder, parts=[mapped(path, np.uint8) for path in paths], index=index)
        if len({array.size for array in index.values()}) != 1 or shards._expected_bytes() != shards.num_bytes:
            raise _damaged(folder, "its files do not fit together")
        return shards

    def _expected_bytes(self) -> int:
        return int(self.starts[-1] + self.lengths[-1] + 1) if self.num_documents else 0

    def gather(self, starts: Int64[np.ndarray, " n"], *, length: int) -> UInt8[np.ndarray, "n length"]:
        """Copy windows out of the stream; a window may cross shard files.

        Args:
            starts: stream offsets, each with ``length`` bytes behind it.
            length: bytes of every window.

        Raises:
            IndexError: a window leaves the stream.
        """
        if starts.size and (starts.min() < 0 or starts.max() + length > self.num_bytes):
            raise IndexError(f"a window of {length} bytes leaves the stream of {self.num_bytes} bytes")
        out = np.empty((starts.size, length), np.uint8)
        if not out.size:
            return out
        first = np.searchsorted(self._first, starts, side="right") - 1
        last = np.searchsorted(self._first, starts + length - 1, side="right") - 1
        for part in np.unique(first[first == last]):
            rows = np.flatnonzero((first == part) & (last == part))
            windows = np.lib.stride_tricks.sliding_window_view(self._parts[part], length)
            out[rows] = windows[starts[rows] - self._first[part]]
        for row in np.flatnonzero(first != last):
            out[row] = self._across(int(starts[row]), length)
        return out

    def _across(self, start: int, length: int) -> UInt8[np.ndarray, " length"]:
        pieces, end = [], start + length
        for part, first in zip(self._parts, self._first, strict=True):
            piece = part[max(start - int(first), 0) : max(end - int(first), 0)]
            if piece.size:
                pieces.append(piece)
        return np.concatenate(pieces)

    def stream(self) -> UInt8[np.ndarray, " bytes"]:
        """The whole stream in memory; meant for evaluation splits."""
        return np.concatenate(self._parts)

    def document(self, index: int) -> bytes:
        """The bytes of one document, its end excluded."""
        length = int(self.lengths[index])
        return self._across(int(self.starts[index]), length).tobytes() if length else b""


def mapped(path: Path, kind: type[np.generic]) -> np.ndarray:
    """A read-only view of a file; an empty file cannot be mapped and gives an empty array."""
    size = path.stat().st_size
    if size % np.dtype(kind).itemsize:
        raise _damaged(path.parent, f"{path.name} has a torn end")
    if size == 0:
        return np.empty(0, kind)
    with path.open("rb") as handle:
        return np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), kind)


def _damaged(folder: Path, reason: str) -> UserError:
    fix = "prepare the data again: thinwire prepare SOURCE... --out FOLDER"
    return UserError(f"a folder of shards is damaged ({reason})", where=str(folder), fix=fix)
