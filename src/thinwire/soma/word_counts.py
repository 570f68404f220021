"""How often does each known word occur in each text, as scikit-learn's default analyser counts, and from raw bytes?

The analyser (lower case, runs of at least two word characters, English stop words left out) is Python and reads about
10 MB/s; here a compiled loop walks the bytes and looks words up in a hash table.  Text that is not ASCII is first made
valid and lower case by Python itself, whose rules for both fill volumes; which characters make words is asked of Python
too.  ``tests/unit/soma/test_word_counts.py`` compares both on real text and on random bytes.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple, no_type_check

import numba
import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

NUM_CODE_POINTS = 0x110000
EMPTY = -1
SLOTS_PER_TERM = 2
"""At least; so that a search in the table ends soon."""
HASH_START = np.uint64(0xCBF29CE484222325)
HASH_FACTOR = np.uint64(0x100000001B3)
"""FNV-1a, 64 bits."""


class WordCounts(NamedTuple):
    """Rows of a sparse matrix: text i has ``counts[j]`` of ``terms[j]`` for j in row_ends[i] .. row_ends[i + 1].

    Attributes:
        row_ends: starts with 0.
        terms: index into the vocabulary, ascending in each row.
        counts: at least 1.
    """

    row_ends: Int32[np.ndarray, " n_plus_1"]
    terms: Int32[np.ndarray, " nonzero"]
    counts: Int32[np.ndarray, " nonzero"]


@dataclass(frozen=True, eq=False)
class WordIndex:
    """A vocabulary that compiled code can search.

    Attributes:
        slots: open addressing; the term's number, and above it 31 bits of its hash; ``EMPTY`` where none is.
        term_bytes: the terms in UTF-8, one after the other.
        term_ends: starts with 0; term f is ``term_bytes[term_ends[f] : term_ends[f + 1]]``.
    """

    slots: Int64[np.ndarray, " slots"]
    term_bytes: UInt8[np.ndarray, " bytes"]
    term_ends: Int64[np.ndarray, " F_plus_1"]

    @classmethod
    def of(cls, vocabulary: tuple[str, ...]) -> "WordIndex":
        """Index a vocabulary without repetitions; its stop words, if any, are never found."""
        encoded = [term.encode() for term in vocabulary]
        ends = _ends(encoded)
        term_bytes = np.frombuffer(b"".join(encoded), np.uint8)
        num_slots = 1 << (SLOTS_PER_TERM * len(vocabulary)).bit_length()
        slots = np.full(num_slots, EMPTY, np.int64)
        is_wanted = np.array([term not in ENGLISH_STOP_WORDS for term in vocabulary], np.bool_)
        _fill(slots, term_bytes, ends, is_wanted)
        return cls(slots, term_bytes, ends)

    def count(self, texts: list[bytes]) -> WordCounts:
        """Count the words of each text; bytes that are not UTF-8 are passed over (appendix D).

        A row does not depend on which other texts stand beside it.
        """
        is_ascii = [text.isascii() for text in texts]
        plain = [text if ascii_ else _valid_and_lower(text) for text, ascii_ in zip(texts, is_ascii, strict=True)]
        text, ends = np.frombuffer(b"".join(plain), np.uint8), _ends(plain)
        is_word = word_code_points()[: None if not all(is_ascii) else 128] if plain else np.zeros(0, np.bool_)
        found = np.empty((len(text) + len(texts)) // 3 + 1, np.int32)  # a word is two bytes and what ends it
        counts = np.empty_like(found)
        row_ends = np.zeros(len(texts) + 1, np.int32)
        _count(text, ends, is_word, self.slots, self.term_bytes, self.term_ends, found, counts, row_ends)
        return WordCounts(row_ends, found[: row_ends[-1]].copy(), counts[: row_ends[-1]].copy())


@functools.cache
def word_code_points() -> Bool[np.ndarray, " code_points"]:
    r"""Which characters ``\w`` matches in Python's ``re``: letters, numbers of any script, the underscore."""
    is_word = np.fromiter(map(str.isalnum, map(chr, range(NUM_CODE_POINTS))), np.bool_, NUM_CODE_POINTS)
    is_word[ord("_")] = True
    is_word.setflags(write=False)
    return is_word


def _valid_and_lower(text: bytes) -> bytes:
    return text.decode("utf-8", errors="ignore").lower().encode()


def _ends(texts: list[bytes]) -> Int64[np.ndarray, " n_plus_1"]:
    ends = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=ends[1:])
    return ends


@numba.njit(cache=True, nogil=True)
@no_type_check
def _lower(byte):
    """Of ASCII letters; every other byte as it is."""
    return byte + np.uint8(32) if 65 <= byte <= 90 else byte


@numba.njit(cache=True, nogil=True)
@no_type_check
def _find(text, start, end, hashed, slots, term_bytes, term_ends):
    """The slot of the word text[start:end], or the empty slot where it would stand."""
    mask = len(slots) - 1
    slot = np.int64(hashed & np.uint64(mask))
    high = np.int64(hashed >> np.uint64(33))
    while True:
        entry = slots[slot]
        if entry == EMPTY:
            return slot
        if entry >> 32 == high:
            first = term_ends[entry & 0xFFFFFFFF]
            if term_ends[(entry & 0xFFFFFFFF) + 1] - first == end - start:
                i = 0
                while i < end - start and term_bytes[first + i] == _lower(text[start + i]):
                    i += 1
                if i == end - start:
                    return slot
        slot = (slot + 1) & mask


@numba.njit(cache=True, nogil=True)
@no_type_check
def _fill(slots, term_bytes, term_ends, is_wanted):
    for term in range(len(is_wanted)):
        if is_wanted[term]:
            hashed = HASH_START
            for i in range(term_ends[term], term_ends[term + 1]):
                hashed = (hashed ^ np.uint64(term_bytes[i])) * HASH_FACTOR
            slot = np.int64(hashed & np.uint64(len(slots) - 1))
            while slots[slot] != EMPTY:
                slot = (slot + 1) & (len(slots) - 1)
            slots[slot] = np.int64(hashed >> np.uint64(33)) << 32 | term


@numba.njit(cache=True, nogil=True)
@no_type_check
def _code_point(text, position):
    """The character of valid UTF-8 that starts here with a byte above 127, and its length in bytes."""
    first = np.int64(text[position])
    if first < 0xE0:
        return (first & 0x1F) << 6 | (text[position + 1] & 0x3F), 2
    if first < 0xF0:
        return (first & 0x0F) << 12 | (text[position + 1] & 0x3F) << 6 | (text[position + 2] & 0x3F), 3
    high = (first & 0x07) << 18 | (text[position + 1] & 0x3F) << 12
    return high | (text[position + 2] & 0x3F) << 6 | (text[position + 3] & 0x3F), 4


@numba.njit(cache=True, nogil=True)
@no_type_check
def _count(text, ends, is_word, slots, term_bytes, term_ends, found, counts, row_ends):
    """Each text's words looked up one by one into ``found``, sorted, and equal ones counted, in place."""
    for row in range(len(ends) - 1):
        first = last = row_ends[row]
        position, end = ends[row], ends[row + 1]
        start, num_characters, hashed = position, 0, HASH_START
        while position <= end:  # one step further than the text, which ends its last word
            size, inside = 1, False
            if position < end:
                code = np.int64(text[position])
                if code >= 128:
                    code, size = _code_point(text, position)
                inside = is_word[code]
            if inside:
                for i in range(position, position + size):
                    hashed = (hashed ^ np.uint64(_lower(text[i]))) * HASH_FACTOR
                num_characters += 1
            else:
                if num_characters >= 2:
                    entry = slots[_find(text, start, position, hashed, slots, term_bytes, term_ends)]
                    if entry != EMPTY:
                        found[last] = entry & 0xFFFFFFFF
                        last += 1
                start, num_characters, hashed = position + size, 0, HASH_START
            position += size
        found[first:last].sort()
        write = first
        for i in range(first, last):
            if write > first and found[write - 1] == found[i]:
                counts[write - 1] += 1
            else:
                found[write], counts[write] = found[i], 1
                write += 1
        row_ends[row + 1] = write
