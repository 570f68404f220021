"""Which text does the clustering benchmark divide?  A prepared folder's, or one drawn from a fixed seed."""

from pathlib import Path

import numpy as np

from thinwire.base.errors import UserError
from thinwire.base.seeds import numpy_generator
from thinwire.data.corpus import Corpus
from thinwire.data.windows import num_windows

WINDOW_BYTES = 1024
SEED = 20
NUM_WORDS = 80_000
NUM_SUBJECTS = 400
WORDS_PER_SUBJECT = 300
SUBJECT_SHARE = 0.35
"""Of a window's words; the others are drawn from all words, the commonest first (Zipf)."""
WORDS_PER_WINDOW = 300
DRAWN_AT_ONCE = 4096
LETTERS = np.frombuffer(b"etaoinsrhldcumfpgwybvkxjqz", np.uint8)
COMMON = (b"the", b"of", b"and", b"to", b"in", b"is", b"that", b"it", b"was", b"for", b"\xe2\x80\x9cwell\xe2\x80\x9d")
"""The commonest words; the last makes about as many windows leave ASCII as in text from the web."""


def windows_of_corpus(folder: Path, *, count: int) -> np.ndarray:
    """uint8 [count, 1024] of a prepared folder's training text.

    Where it has fewer, further windows are the first half of one and the second half of another some way off, so that
    no window is there twice.

    Raises:
        UserError: where there is no such folder, or its windows have fewer pairs than ``count``.
    """
    shards = Corpus.open(folder).train
    total = num_windows(shards, window_bytes=WINDOW_BYTES)
    if total**2 < count:
        raise UserError(
            f"{total} windows of {WINDOW_BYTES} bytes are too few to make {count} different ones",
            where=str(folder),
            fix="a folder with more text, or made-up text: leave --data out",
        )
    first = np.arange(count, dtype=np.int64)
    windows = shards.gather(first % total * WINDOW_BYTES, length=WINDOW_BYTES)
    for turn in range(1, -(-count // total)):
        mixed = slice(turn * total, min((turn + 1) * total, count))
        others = (first[mixed] + turn * (total // 7 + 1)) % total * WINDOW_BYTES + WINDOW_BYTES // 2
        windows[mixed, WINDOW_BYTES // 2 :] = shards.gather(others, length=WINDOW_BYTES // 2)
    return windows


def windows_drawn(*, count: int) -> np.ndarray:
    """uint8 [count, 1024] of made-up words by Zipf's law, each window with a subject of its own words."""
    generator = numpy_generator(SEED, "clustering-words")
    words = _words(generator)
    ranks = 1.0 / np.arange(1, NUM_WORDS + 1)
    everywhere = np.cumsum(ranks / ranks.sum())
    subjects = generator.integers(len(COMMON), NUM_WORDS, (NUM_SUBJECTS, WORDS_PER_SUBJECT))
    windows = np.empty((count, WINDOW_BYTES), np.uint8)
    for start in range(0, count, DRAWN_AT_ONCE):
        some = windows[start : start + DRAWN_AT_ONCE]
        shape = (len(some), WORDS_PER_WINDOW)
        drawn = np.minimum(np.searchsorted(everywhere, generator.random(shape)), NUM_WORDS - 1)
        subject = (NUM_SUBJECTS * generator.random(len(some)) ** 2).astype(np.int64)  # subjects of unequal size
        own = subjects[subject[:, None], generator.integers(0, WORDS_PER_SUBJECT, shape)]
        drawn = np.where(generator.random(shape) < SUBJECT_SHARE, own, drawn)
        for window, choice in zip(some, drawn.tolist(), strict=True):
            text = b" ".join([words[word] for word in choice])[:WINDOW_BYTES].ljust(WINDOW_BYTES)
            window[:] = np.frombuffer(text, np.uint8)
    return windows


def _words(generator: np.random.Generator) -> list[bytes]:
    """The commonest first; lengths of 3 to 10 letters, common letters more often."""
    lengths = generator.integers(3, 11, NUM_WORDS)
    letters = LETTERS[(len(LETTERS) * generator.random((NUM_WORDS, 10)) ** 1.5).astype(np.int64)]
    made = [row[:length].tobytes() for row, length in zip(letters, lengths, strict=True)]
    return [*COMMON, *made[len(COMMON) :]]
