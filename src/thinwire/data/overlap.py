"""Which evaluation documents does the training text already hold?  The screen of appendix L.

"We exclude candidates sharing a source ID or an exact or normalized full-document copy [...] Normalization applies
Unicode NFKC, case folding and whitespace collapse."  Shared 128-byte substrings are looked for in the whole training
stream (the paper does so only against one validation set).  Near duplicates and shorter passages are not ruled out.
"""

import hashlib
import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt64

from thinwire.data.documents import Document
from thinwire.data.shards import ByteShards
from thinwire.data.substrings import BLOCK_BYTES, SHARED_BYTES, BlockIndex, build_index, mark_shared

REPEATED = "duplicate_in_evaluation"
# Why a document is left out, in the order of the screen's columns, and in words that follow a count of documents.
REASONS: dict[str, str] = {
    "same_source_id": "with the id of a training document",
    "exact_copy": "equal to a training document",
    "normalized_copy": "equal to a training document but for case and spacing",
    "shared_128_bytes": "with 128 bytes of the training text",
    REPEATED: "repeating another evaluation document",
}
SIGNATURE_FIELDS = 3
SIGNATURES_PER_READ = 1 << 20
STREAM_CHUNK_BYTES = 4 * 1024 * 1024


class Signature(NamedTuple):
    """64-bit hashes of a document's identity, bytes, and normalised text."""

    identity: int
    exact: int
    normalized: int


def signature(document: Document) -> Signature:
    """What the screen compares of a whole document."""
    return Signature(
        _hash(document.identity.encode("utf-8", "surrogatepass")),
        _hash(document.payload),
        _hash(normalized(document.payload)),
    )


def _hash(payload: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "little")


def normalized(payload: bytes) -> bytes:
    """NFKC, case folded, runs of white space one space each, ends trimmed; bytes that are not UTF-8 are kept."""
    text = payload.decode("utf-8", "surrogateescape")
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).encode("utf-8", "surrogateescape")


class SignatureWriter:
    """Appends the signatures of one split to a file, so that memory does not grow with the split."""

    def __init__(self, path: Path) -> None:
        self.handle = path.open("wb", buffering=1 << 20)

    def add(self, entry: Signature) -> None:
        self.handle.write(np.asarray(entry, np.uint64).tobytes())

    def close(self) -> None:
        self.handle.close()


def read_signatures(path: Path) -> UInt64[np.ndarray, "documents 3"]:
    return np.fromfile(path, np.uint64).reshape(-1, SIGNATURE_FIELDS)


class Candidates(NamedTuple):
    """One evaluation split before the screen: its shards, and the signature of every document."""

    shards: ByteShards
    signatures: UInt64[np.ndarray, "documents 3"]


class ScreenResult(NamedTuple):
    """Per split the documents that stay, in order, and how many were excluded by the first reason that holds."""

    kept: tuple[Int64[np.ndarray, " kept"], ...]
    excluded: tuple[dict[str, int], ...]


def screen(
    candidates: tuple[Candidates, ...],
    *,
    train_folder: Path,
    train_signatures: Path,
    on_chunk: Callable[[UInt8[np.ndarray, " chunk"]], None],
) -> ScreenResult:
    """Compare evaluation documents with the training split, which is read once.

    Memory is about 2.6 bytes per byte of the candidates, whatever the size of the training split.

    Args:
        candidates: the evaluation splits.
        train_folder: the training split's shards.
        train_signatures: what ``SignatureWriter`` wrote beside them.
        on_chunk: called with every piece of the training stream in order, each byte once.
    """
    signatures = np.concatenate([entry.signatures for entry in candidates])
    found = np.zeros((len(signatures), len(REASONS)), bool)
    found[:, :SIGNATURE_FIELDS] = _in_training(signatures, train_signatures)
    index = _index(candidates)
    found[:, 3] = _shares_substring(index, train_folder, on_chunk)
    found[:, 4] = _repeated(signatures, np.any(found, axis=1))
    bounds = np.cumsum([0, *(len(entry.signatures) for entry in candidates)])
    parts = [found[start:end] for start, end in itertools.pairwise(bounds)]
    kept = tuple(np.flatnonzero(~part.any(axis=1)) for part in parts)
    return ScreenResult(kept, tuple(_count_reasons(part) for part in parts))


def _in_training(signatures: UInt64[np.ndarray, "n 3"], path: Path) -> Bool[np.ndarray, "n 3"]:
    found = np.zeros(signatures.shape, bool)
    with path.open("rb") as handle:
        while (block := np.fromfile(handle, np.uint64, SIGNATURES_PER_READ * SIGNATURE_FIELDS)).size:
            for field, column in enumerate(block.reshape(-1, SIGNATURE_FIELDS).T):
                found[:, field] |= np.isin(signatures[:, field], column)
    return found


def _index(candidates: tuple[Candidates, ...]) -> BlockIndex:
    streams = [entry.shards.stream() for entry in candidates]
    shifts = np.cumsum([0, *(stream.size for stream in streams)])[:-1]
    starts = [entry.shards.starts + shift for entry, shift in zip(candidates, shifts, strict=True)]
    lengths = [entry.shards.lengths for entry in candidates]
    return build_index(np.concatenate(streams), starts=np.concatenate(starts), lengths=np.concatenate(lengths))


def _shares_substring(
    index: BlockIndex, train_folder: Path, on_chunk: Callable[[UInt8[np.ndarray, " chunk"]], None]
) -> Bool[np.ndarray, " documents"]:
    shared = np.zeros(len(index.starts), bool)
    before, after = BLOCK_BYTES, SHARED_BYTES
    held = np.empty(0, np.uint8)
    begin = 0
    for chunk in read_stream(train_folder):
        on_chunk(chunk)
        held = np.concatenate([held, chunk])
        end = max(len(held) - after, begin)
        mark_shared(index, held, begin=begin, end=end, shared=shared)
        held, begin = held[max(end - before, 0) :], min(end, before)
    mark_shared(index, held, begin=begin, end=len(held), shared=shared)
    return shared


def read_stream(folder: Path, *, chunk_bytes: int = STREAM_CHUNK_BYTES) -> Iterator[UInt8[np.ndarray, " chunk"]]:
    """A split's stream in pieces, by ordinary reads (mapped pages would count as this process's memory)."""
    for path in sorted(folder.glob("bytes-*.bin")):
        with path.open("rb") as handle:
            while block := handle.read(chunk_bytes):
                yield np.frombuffer(block, np.uint8)


def _repeated(signatures: UInt64[np.ndarray, "n 3"], excluded: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """All but the first of equal normalised texts among those that are not excluded yet."""
    repeated = np.zeros(len(signatures), bool)
    remaining = np.flatnonzero(~excluded)
    _, first = np.unique(signatures[remaining, 2], return_index=True)
    repeated[np.delete(remaining, first)] = True
    return repeated


def _count_reasons(found: Bool[np.ndarray, "n reasons"]) -> dict[str, int]:
    first = Counter(np.argmax(found[found.any(axis=1)], axis=1).tolist())
    return {reason: first[column] for column, reason in enumerate(REASONS)}
