"""Which bytes does an update, a cluster or an evaluation see?  Windows of a split, chosen by address, so that a draw
can be repeated alone and a resumed run sees what an uninterrupted one would (Table 1; appendices D and L).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from thinwire.base.errors import UserError
from thinwire.base.seeds import StreamKey, draw_below, draw_words
from thinwire.data.shards import ByteShards


class EvaluationWindows(NamedTuple):
    """Windows to score; each carries one byte more than the model reads.

    Attributes:
        windows: uint8 [n, window_bytes + 1]; the model reads all but the last byte.
        documents: int64 [n], the document of each window (the groups of the document bootstrap).
        sources: int32 [n], index into the manifest's sources; 0 where there is only one text.
    """

    windows: UInt8[np.ndarray, "n bytes"]
    documents: Int64[np.ndarray, " n"]
    sources: Int32[np.ndarray, " n"]


def num_windows(shards: ByteShards, *, window_bytes: int) -> int:
    """How many non-overlapping windows the stream holds; window w covers stream[w W : (w + 1) W] and needs one more
    byte, its last target (appendix D: "non-overlapping 1,024-byte sequences")."""
    return max(shards.num_bytes - 1, 0) // window_bytes


def draw_training_windows(
    shards: ByteShards,
    members: Int64[np.ndarray, " members"],
    *,
    key: StreamKey,
    update: int,
    accumulation: int,
    batch: int,
    input_bytes: int,
    window_bytes: int,
) -> UInt8[np.ndarray, "batch bytes"]:
    """One training batch; a pure function of the address (key, update, accumulation).

    choice: windows are drawn uniformly with replacement; the paper does not say how batches are sampled.  Where the
    model reads fewer bytes than a window holds, the part it reads starts at a uniform offset inside the window.

    Args:
        shards: the training split.
        members: window indices of an expert's training shard.
        key: the batch stream, ``stream_key(seed, "batch", expert)``.
        update, accumulation: the address of the batch.
        batch: windows to draw.
        input_bytes: bytes the model reads, at most ``window_bytes``.
        window_bytes: bytes of one window.

    Returns:
        uint8 [batch, input_bytes + 1].

    Raises:
        ValueError: no members, or ``input_bytes`` above ``window_bytes``.
    """
    if not members.size or not 0 < input_bytes <= window_bytes:
        raise ValueError(f"cannot draw {input_bytes} of {window_bytes} bytes from {members.size} windows")
    bounds = np.full(2 * batch, members.size, np.int64)
    bounds[batch:] = window_bytes - input_bytes + 1
    drawn = draw_below(key, bounds, c2=update, c3=accumulation)
    starts = np.asarray(members[drawn[:batch]], np.int64) * window_bytes + drawn[batch:]
    return shards.gather(starts, length=input_bytes + 1)


def document_windows(shards: ByteShards, *, window_bytes: int, max_windows: int, key: StreamKey) -> EvaluationWindows:
    """One window inside each document that is long enough (appendix L: "each document contributes one 1,025-byte
    window that stays within its boundaries").

    choice: the window's place inside its document, and which documents are taken when more than ``max_windows`` are
    long enough, are drawn by address; the paper states neither.  Rows come in document order.

    Args:
        shards: the split to evaluate on.
        window_bytes: bytes the model reads; a window has one more.
        max_windows: at most so many documents.
        key: the stream of the draw.

    Raises:
        UserError: no document is long enough.
    """
    long_enough = np.flatnonzero(shards.lengths > window_bytes)
    if not long_enough.size:
        longest = int(shards.lengths.max()) if shards.num_documents else 0
        raise UserError(
            f"no document is long enough for one evaluation window of {window_bytes + 1} bytes "
            f"({shards.num_documents} documents, the longest has {longest} bytes)",
            where=str(shards.folder),
            fix="prepare more or longer documents, raise --valid-fraction and --test-fraction, or use shorter windows",
        )
    if long_enough.size > max_windows:
        rank = draw_words(key, long_enough.size, c1=1)
        long_enough = np.sort(long_enough[np.argsort(rank, kind="stable")[:max_windows]])
    lengths = np.asarray(shards.lengths[long_enough], np.int64)
    offsets = draw_below(key, lengths - window_bytes)
    windows = shards.gather(np.asarray(shards.starts[long_enough], np.int64) + offsets, length=window_bytes + 1)
    return EvaluationWindows(windows, long_enough, np.asarray(shards.sources[long_enough], np.int32))
