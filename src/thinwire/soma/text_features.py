"""Which numbers describe the words of a window?

Appendix D: word-level tf-idf with sublinear term frequencies, English stop words, at most ``max_features`` terms that
each occur in ``min_documents`` windows; truncated SVD; minus the mean; length one.
"""

import math
from typing import Any, NamedTuple, no_type_check

import numba
import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from thinwire.base.progress import Progress, Silent
from thinwire.soma.similarity import unit_rows
from thinwire.soma.word_counts import WordCounts

TOP_TERMS = 12


class FittedFeatures(NamedTuple):
    """The fitted pipeline, and where it puts its own sample: ``rows`` and ``points`` of the texts with a known word."""

    vocabulary: tuple[str, ...]
    idf: Float32[np.ndarray, " F"]
    components: Float32[np.ndarray, "C F"]
    mean: Float32[np.ndarray, " C"]
    rows: csr_matrix
    points: Float32[np.ndarray, "n C"]


class TooFewWordsError(Exception):
    """No two terms, or no two texts with a term, survive ``min_documents``."""


def tfidf_vectorizer(**options: Any) -> TfidfVectorizer:
    """The word-level features of appendix D: sublinear term frequency, English stop words, FP32."""
    return TfidfVectorizer(sublinear_tf=True, stop_words="english", dtype=np.float32, **options)


def decoded(texts: list[bytes]) -> list[str]:
    """Text for the word features alone, without invalid UTF-8 (appendix D); the language model keeps every byte."""
    return [text.decode("utf-8", errors="ignore") for text in texts]


def tfidf_rows(counts: WordCounts, *, idf: Float32[np.ndarray, " F"]) -> csr_matrix:
    """What ``tfidf_vectorizer`` makes of these counts, to the last bit: FP32 [n, F], rows of length one."""
    values = np.log(counts.counts.astype(np.float32))
    values += np.float32(1.0)
    values *= idf[counts.terms]
    _divide_by_length(values, counts.row_ends)
    return csr_matrix((values, counts.terms, counts.row_ends), shape=(len(counts.row_ends) - 1, len(idf)))


def fit_features(
    texts: list[str],
    *,
    max_features: int,
    min_documents: int,
    num_components: int,
    seed: int,
    progress: Progress | None = None,
) -> FittedFeatures:
    """Fit on ``texts``; the same result for any number of threads.

    Args:
        num_components: lowered to what the terms and texts allow; ``components`` shows how many there are.

    Raises:
        TooFewWordsError: nothing to tell texts apart by.
    """
    progress = progress or Silent()
    task = progress.task("count words", None)
    vectorizer = tfidf_vectorizer(max_features=max_features, min_df=min_documents)
    try:
        rows = csr_matrix(vectorizer.fit_transform(texts))
    except ValueError as error:  # scikit-learn: empty vocabulary, no terms remain, min_df above the number of texts
        raise TooFewWordsError(str(error)) from error
    rows = rows[np.diff(rows.indptr) > 0]  # choice: texts without a word lie on one point and would bend the balance
    if min(rows.shape) < 2:
        raise TooFewWordsError(f"{rows.shape[1]} terms in {rows.shape[0]} texts")
    task.close()
    task = progress.task("singular vectors", None)
    svd = TruncatedSVD(min(num_components, min(rows.shape) - 1), random_state=seed)
    with threadpool_limits(limits=1):  # BLAS adds in another order with other threads
        reduced = svd.fit_transform(rows).astype(np.float32)
    task.close()
    mean = np.asarray(np.mean(reduced, axis=0, dtype=np.float64), np.float32)
    return FittedFeatures(
        vocabulary=tuple(vectorizer.get_feature_names_out().tolist()),
        idf=vectorizer.idf_.astype(np.float32),
        components=svd.components_.astype(np.float32),
        mean=mean,
        rows=rows,
        points=unit_rows(reduced - mean),
    )


def distinctive_terms(
    rows: csr_matrix, clusters: np.ndarray, *, vocabulary: tuple[str, ...], num_clusters: int
) -> tuple[tuple[str, ...], ...]:
    """Per cluster the ``TOP_TERMS`` terms whose mean tf-idf exceeds that over all texts most.

    choice: against the mean of all texts, so that words common everywhere ("new", "time") do not head every list; terms
    without a letter ("10", "00") count while clustering, but name nothing.
    """
    has_letter = np.array([any(character.isalpha() for character in term) for term in vocabulary], np.bool_)
    overall = np.asarray(rows.mean(axis=0)).ravel()
    found = []
    for cluster in range(num_clusters):
        members = rows[clusters == cluster]
        excess = np.asarray(members.sum(axis=0)).ravel() / max(members.shape[0], 1) - overall
        excess[~has_letter] = 0.0
        order = np.argsort(-excess, kind="stable")[:TOP_TERMS]
        found.append(tuple(vocabulary[i] for i in order if excess[i] > 0))
    return tuple(found)


@numba.njit(cache=True, nogil=True)
@no_type_check
def _divide_by_length(values, row_ends):
    """In place, as scikit-learn's ``normalize`` does it: squares in FP32, their sum and the quotient in FP64."""
    for row in range(len(row_ends) - 1):
        total = 0.0
        for i in range(row_ends[row], row_ends[row + 1]):
            total += np.float64(values[i] * values[i])
        length = math.sqrt(total)
        for i in range(row_ends[row], row_ends[row + 1]):
            values[i] = values[i] / length
