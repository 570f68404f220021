"""Does a text share 128 bytes with another that is too long to hold?  Appendix L ("shares a 128-byte substring").

Any 128 bytes of an evaluation text hold one of its aligned 64-byte blocks whole.  The blocks' hashes lie in a table; a
rolling 64-byte hash runs over the training stream; a Bloom filter answers most positions, and every hit is compared
byte by byte and extended, so the answer is exact but for one choice:

choice: blocks that repeat a pattern of at most eight bytes (indentation, rulers) are not looked up; they are shared by
unrelated texts.  Of equal blocks in one document the first sixteen are looked up; with more, it repeats itself.
"""

from typing import NamedTuple, no_type_check

import numba
import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt64

BLOCK_BYTES = 64
SHARED_BYTES = 128
MAX_PATTERN_BYTES = 8
BLOOM_BITS_PER_BLOCK = 16
MAX_EQUAL_BLOCKS = 16
# An odd multiplier for the polynomial hash modulo 2^64, and one (2^64 / golden ratio) that spreads it over the tables.
MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
# What a byte leaving the rolling window is multiplied by.
LEAVING = np.uint64(pow(int(MULTIPLIER), BLOCK_BYTES, 2**64))
NO_BLOCK = -1


class BlockIndex(NamedTuple):
    """The aligned blocks of the evaluation texts, ready to be looked up.

    Attributes:
        text: uint8, all texts one after another.
        starts, ends: int64 [documents], each text's range.
        bloom: uint64, a power of two of words, two bits set per block.
        slots: int64, a power of two, first block of each hash, or -1.
        hashes: uint64 [blocks].
        following: int64 [blocks], next block with the same hash, or -1.
        positions: int64 [blocks], offset in ``text``.
        owners: int64 [blocks], the block's document.
    """

    text: UInt8[np.ndarray, " bytes"]
    starts: Int64[np.ndarray, " documents"]
    ends: Int64[np.ndarray, " documents"]
    bloom: UInt64[np.ndarray, " words"]
    slots: Int64[np.ndarray, " slots"]
    hashes: UInt64[np.ndarray, " blocks"]
    following: Int64[np.ndarray, " blocks"]
    positions: Int64[np.ndarray, " blocks"]
    owners: Int64[np.ndarray, " blocks"]


def build_index(
    text: UInt8[np.ndarray, " bytes"],
    *,
    starts: Int64[np.ndarray, " documents"],
    lengths: Int64[np.ndarray, " documents"],
) -> BlockIndex:
    """Index every aligned block of documents that lie in ``text``; memory is about 1.6 bytes per byte of text."""
    num_blocks = lengths // BLOCK_BYTES
    owners = np.repeat(np.arange(len(starts), dtype=np.int64), num_blocks)
    first = np.cumsum(num_blocks) - num_blocks
    positions = np.repeat(starts, num_blocks) + (np.arange(len(owners)) - np.repeat(first, num_blocks)) * BLOCK_BYTES
    words = _power_of_two(len(owners) * BLOOM_BITS_PER_BLOCK // 64 + 1)
    slots = np.full(_power_of_two(2 * len(owners) + 2), NO_BLOCK, np.int64)
    bloom, hashes = np.zeros(words, np.uint64), np.zeros(len(owners), np.uint64)
    following = np.full(len(owners), NO_BLOCK, np.int64)
    _fill(text, positions, owners, bloom, slots, hashes, following)
    return BlockIndex(text, starts, starts + lengths, bloom, slots, hashes, following, positions, owners)


def mark_shared(
    index: BlockIndex,
    chunk: UInt8[np.ndarray, " chunk"],
    *,
    begin: int,
    end: int,
    shared: Bool[np.ndarray, " documents"],
) -> None:
    """Mark the documents that share at least 128 bytes with a piece of another text.

    Args:
        index: the evaluation texts.
        chunk: bytes of the other text; 64 bytes before ``begin`` and 128 after ``end``, where they exist, belong in it.
        begin, end: blocks that start in this range are looked up.
        shared: marks, set in place; documents that are marked already are not compared again, and their blocks leave
            the index.
    """
    if index.hashes.size:
        _scan(*index, chunk, begin, min(end, len(chunk) - BLOCK_BYTES + 1), shared)


def _power_of_two(at_least: int) -> int:
    return 1 << max(at_least - 1, 1).bit_length()


@numba.njit(cache=True, nogil=True, inline="always")
@no_type_check
def _is_pattern(text, start):
    for period in range(1, MAX_PATTERN_BYTES + 1):
        i = start + period
        while i < start + BLOCK_BYTES and text[i] == text[i - period]:
            i += 1
        if i == start + BLOCK_BYTES:
            return True
    return False


@numba.njit(cache=True, nogil=True)
@no_type_check
def _fill(text, positions, owners, bloom, slots, hashes, following):
    bloom_shift = np.uint64(64 - _log2(bloom.size))
    slot_shift = np.uint64(64 - _log2(slots.size))
    copies = np.ones(positions.size, np.uint8)
    for block in range(positions.size):
        start = positions[block]
        if _is_pattern(text, start):
            continue
        value = np.uint64(0)
        for i in range(start, start + BLOCK_BYTES):
            value = value * MULTIPLIER + np.uint64(text[i])
        hashes[block] = value
        mixed = value * SPREAD
        bloom[mixed >> bloom_shift] |= _bloom_bits(mixed)
        slot = mixed >> slot_shift
        while slots[slot] != NO_BLOCK and hashes[slots[slot]] != value:
            slot = (slot + np.uint64(1)) & np.uint64(slots.size - 1)
        first = slots[slot]
        if first != NO_BLOCK and owners[first] == owners[block]:
            if copies[first] == MAX_EQUAL_BLOCKS:
                continue
            copies[block] = copies[first] + 1
        following[block] = first
        slots[slot] = block


@numba.njit(cache=True, nogil=True, inline="always")
@no_type_check
def _bloom_bits(mixed):
    one = np.uint64(1)
    return (one << (mixed & np.uint64(63))) | (one << ((mixed >> np.uint64(6)) & np.uint64(63)))


@numba.njit(cache=True, nogil=True)
@no_type_check
def _log2(size):
    bits = 0
    while (1 << bits) < size:
        bits += 1
    return bits


@numba.njit(cache=True, nogil=True)
@no_type_check
def _scan(text, starts, ends, bloom, slots, hashes, following, positions, owners, chunk, begin, end, shared):
    if end <= begin:
        return
    bloom_shift = np.uint64(64 - _log2(bloom.size))
    slot_shift = np.uint64(64 - _log2(slots.size))
    value = np.uint64(0)
    for i in range(begin, begin + BLOCK_BYTES):
        value = value * MULTIPLIER + np.uint64(chunk[i])
    for place in range(begin, end):
        mixed = value * SPREAD
        bits = _bloom_bits(mixed)
        if bloom[mixed >> bloom_shift] & bits == bits:
            slot = mixed >> slot_shift
            while slots[slot] != NO_BLOCK and hashes[slots[slot]] != value:
                slot = (slot + np.uint64(1)) & np.uint64(slots.size - 1)
            first = block = slots[slot]
            previous = NO_BLOCK
            while block != NO_BLOCK:
                owner = owners[block]
                if not shared[owner]:
                    position = positions[block]
                    shared[owner] = _shares(text, starts[owner], ends[owner], position, chunk, place)
                # Blocks of documents that are marked leave the list, all but the first, which holds the slot.
                if shared[owner] and block != first:
                    following[previous] = following[block]
                else:
                    previous = block
                block = following[block]
        if place + BLOCK_BYTES < chunk.size:
            value = value * MULTIPLIER + np.uint64(chunk[place + BLOCK_BYTES]) - LEAVING * np.uint64(chunk[place])


@numba.njit(cache=True, nogil=True)
@no_type_check
def _shares(text, start, end, position, chunk, place):
    """Whether the equal bytes around text[position] and chunk[place] are at least 128."""
    right = 0
    while (
        right < SHARED_BYTES
        and position + right < end
        and place + right < chunk.size
        and text[position + right] == chunk[place + right]
    ):
        right += 1
    if right < BLOCK_BYTES:
        return False
    left = 0
    while (
        left < SHARED_BYTES - right
        and position - left > start
        and place - left > 0
        and text[position - left - 1] == chunk[place - left - 1]
    ):
        left += 1
    return left + right >= SHARED_BYTES
