"""Does the compiled counter give scikit-learn's counts and tf-idf rows to the last bit, whatever the bytes?"""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

from thinwire.soma.text_features import decoded, tfidf_rows, tfidf_vectorizer
from thinwire.soma.word_counts import NUM_CODE_POINTS, WordCounts, WordIndex, word_code_points

VOCABULARY = (
    *("00", "42", "_x", "ab", "abc", "can", "ice", "i̇s", "naïve", "office", "o'clock", "snake_case", "straße"),
    *("the", "whale", "whales", "x1", "Upper", "ünder", "ß2", "σας", "σασ", "слово", "你好", "𝒳𝒳", "é1"),
)
PIECES = (
    *VOCABULARY,
    *("WHALE", "Naïve", "STRASSE", "STRAẞE", "İs", "ΣΑΣ", "ΣΑΣΑ", "СЛОВО", "ﬃ", "K2", "ſ", "²", "½ab", "e\u0301", "’"),
    *("a", "I", "_", "__", "-", " ", "\n", "\t", "\0", "'", "\u00a0", "\u200b", "\U0001f600", "\x7f", "\x80"),
)
INVALID = (b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\x80", b"\xf4\x90\x80\x80")
pieces = st.sampled_from([*(piece.encode() for piece in PIECES), *INVALID])
texts_of_pieces = st.lists(st.lists(pieces, max_size=30).map(b"".join), max_size=6)


def sklearn_counts(texts: list[bytes], vocabulary: tuple[str, ...]) -> csr_matrix:
    vectorizer = CountVectorizer(vocabulary=vocabulary, stop_words="english", dtype=np.int32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Upper case")  # one term here is, on purpose
        return csr_matrix(vectorizer.transform(decoded(texts)))


def assert_same(actual: WordCounts, expected: csr_matrix) -> None:
    np.testing.assert_array_equal(actual.row_ends, expected.indptr)
    np.testing.assert_array_equal(actual.terms, expected.indices)
    np.testing.assert_array_equal(actual.counts, expected.data)


INDEX = WordIndex.of(VOCABULARY)


@settings(max_examples=400, deadline=None)
@given(texts_of_pieces)
@example([])
@example([b"", b"", b"ab"])
@example([" ".join(PIECES).encode() * 3])
@example([b"the whale" + invalid + b"whales" + invalid for invalid in INVALID])
def test_counts_are_scikit_learns_for_mixed_scripts_and_damaged_utf8(texts: list[bytes]) -> None:
    assert_same(INDEX.count(texts), sklearn_counts(texts, VOCABULARY))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=5), st.lists(st.text(max_size=60), max_size=5))
def test_counts_are_scikit_learns_for_random_bytes_and_text(binary: list[bytes], text: list[str]) -> None:
    texts = binary + [piece.encode("utf-8", errors="ignore") for piece in text]
    words = {word for piece in decoded(texts) for word in re.findall(r"(?u)\b\w\w+\b", piece.lower())}
    vocabulary = tuple(sorted(words | {"ab"}))
    assert_same(WordIndex.of(vocabulary).count(texts), sklearn_counts(texts, vocabulary))


def test_every_character_is_a_word_character_or_not_as_for_scikit_learn() -> None:
    characters = "".join(map(chr, range(NUM_CODE_POINTS)))
    is_word = np.zeros(NUM_CODE_POINTS, np.bool_)
    for match in re.finditer(r"\w+", characters):
        is_word[match.start() : match.end()] = True
    np.testing.assert_array_equal(word_code_points(), is_word)


def test_many_terms_all_found_and_their_neighbours_not() -> None:
    terms = tuple(f"w{i}" for i in range(0, 60_000, 2))
    index = WordIndex.of(terms)
    counted = index.count([" ".join(f"w{i} W{i}" for i in range(60_000)).encode()])
    np.testing.assert_array_equal(counted.terms, np.arange(30_000))
    assert set(counted.counts.tolist()) == {2}


def test_an_empty_vocabulary_finds_nothing() -> None:
    counted = WordIndex.of(()).count([b"whale whale", "naïve".encode()])
    assert counted.row_ends.tolist() == [0, 0, 0]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    texts = [f"{piece} whale Whale ice".encode() for piece in PIECES]
    together = tfidf_rows(INDEX.count(texts), idf=np.linspace(1, 9, len(VOCABULARY), dtype=np.float32))
    for i, text in enumerate(texts):
        alone = tfidf_rows(INDEX.count([text]), idf=np.linspace(1, 9, len(VOCABULARY), dtype=np.float32))
        np.testing.assert_array_equal(alone.toarray()[0], together[i].toarray()[0])


@pytest.mark.shared_data
@pytest.mark.parametrize("text", ["tiny_shakespeare/input.txt", "wikitext/wiki.valid.raw"])
def test_tfidf_rows_of_real_windows_are_scikit_learns_bits(text: str, shared_data: Path) -> None:
    stream = np.frombuffer((shared_data / text).read_bytes(), np.uint8)
    assert_tfidf_is_scikit_learns([window.tobytes() for window in stream[: 512 * 1024].reshape(-1, 1024)])


def test_tfidf_rows_of_drawn_windows_are_scikit_learns_bits() -> None:
    generator = np.random.default_rng(5)
    drawn = [b" ".join(generator.choice([p.encode() for p in PIECES], 300)) for _ in range(60)]
    assert_tfidf_is_scikit_learns([text[:1024] for text in drawn])


def assert_tfidf_is_scikit_learns(windows: list[bytes]) -> None:
    vectorizer = tfidf_vectorizer(max_features=5000, min_df=2).fit(decoded(windows))
    expected = csr_matrix(vectorizer.transform(decoded(windows)))
    index = WordIndex.of(tuple(vectorizer.get_feature_names_out().tolist()))
    actual = tfidf_rows(index.count(windows), idf=vectorizer.idf_.astype(np.float32))
    assert expected.nnz > 1000
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
