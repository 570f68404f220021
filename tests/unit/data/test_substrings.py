"""Shared 128-byte substrings are found exactly, against a search by brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.data.substrings import build_index, mark_shared


def random_text(seed: int, length: int) -> bytes:
    return np.random.default_rng(seed).integers(97, 123, length, np.uint8).tobytes()


def found(documents: list[bytes], train: bytes) -> list[bool]:
    lengths = np.array([len(document) for document in documents], np.int64)
    starts = np.cumsum(lengths) - lengths
    index = build_index(np.frombuffer(b"".join(documents), np.uint8), starts=starts, lengths=lengths)
    shared = np.zeros(len(documents), bool)
    mark_shared(index, np.frombuffer(train, np.uint8), begin=0, end=len(train), shared=shared)
    return shared.tolist()


def brute_force(document: bytes, train: bytes) -> bool:
    return any(document[i : i + 128] in train for i in range(len(document) - 127))


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(100, 160),
    in_document=st.integers(0, 200),
    in_train=st.integers(0, 200),
    seed=st.integers(0, 1000),
)
def test_a_planted_passage_is_found_when_it_has_128_bytes(
    length: int, in_document: int, in_train: int, seed: int
) -> None:
    passage = random_text(seed, length)
    document = random_text(seed + 1, in_document) + passage + random_text(seed + 2, 90)
    other = random_text(seed + 3, 500)
    train = random_text(seed + 4, in_train) + passage + random_text(seed + 5, 70)
    expected = [brute_force(document, train), False]
    assert found([document, other], train) == expected
    assert expected[0] == (length >= 128) or length == 127  # a neighbouring byte may agree by chance


@pytest.mark.parametrize("offset", range(65))
def test_every_alignment_is_found(offset: int) -> None:
    passage = random_text(7, 128)
    document = random_text(8, offset) + passage
    assert found([document], b"A" * 10 + passage + b"B") == [True]
    assert found([document], b"A" * 10 + passage[:-1] + b"B") == [False]


def test_neighbouring_documents_are_not_joined() -> None:
    first, second = random_text(1, 100), random_text(2, 100)
    assert found([first, second], first + second) == [False, False]


@pytest.mark.parametrize("pattern", [b" ", b"-", b"-=", b"abcdefgh"])
def test_repeated_patterns_are_not_text(pattern: bytes) -> None:
    ruler = (pattern * 300)[:300]
    assert found([ruler], ruler) == [False]


def test_many_equal_blocks_are_all_marked() -> None:
    passage = random_text(3, 192)
    documents = [passage] * 50 + [random_text(4, 192)]
    assert found(documents, b"x" + passage) == [True] * 50 + [False]


def test_texts_that_repeat_themselves_take_no_longer() -> None:
    repeated = b"no end of line in sight " * 40_000
    assert found([repeated, random_text(5, 200), repeated[:5000]], repeated * 4) == [True, False, True]


def test_a_passage_after_many_copies_of_its_block_is_found_by_its_others() -> None:
    block = random_text(1, 64)
    document = b"".join(block + random_text(n, 64) for n in range(40)) + block + random_text(99, 128)
    assert found([document], b"x" + block + random_text(99, 128)) == [True]


@pytest.mark.parametrize(("documents", "train"), [([], b"abc"), ([b"short"], b"x" * 500), ([random_text(1, 200)], b"")])
def test_nothing_to_compare_finds_nothing(documents: list[bytes], train: bytes) -> None:
    assert found(documents, train) == [False] * len(documents)
