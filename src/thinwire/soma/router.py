"""Which experts answer for this text?

Word-level tf-idf -> truncated SVD -> minus the mean -> length one -> cosine to each cluster's centroid (appendix D and
N.1).  The same fitted pipeline assigns training windows and routes a prompt by its first bytes.  Saved as arrays
(safetensors) and JSON; nothing is pickled, and a damaged file is refused.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from scipy.sparse import csr_matrix

from thinwire.base.errors import UserError
from thinwire.base.files import atomic_write, canonical_json, read_json, sha256_file, sha256_text, write_json
from thinwire.soma.similarity import similarities, unit_rows
from thinwire.soma.text_features import tfidf_rows
from thinwire.soma.word_counts import WordIndex

FORMAT = "thinwire-router-1"
COLD_BYTES = 32
"""A shorter prefix is not routed: choice: two or three words say too little about the subject."""


@dataclass(frozen=True)
class Routes:
    """Who answers for each prefix.

    Attributes:
        experts: nearest first; by falling prior where cold.
        similarity: cosine to the experts' centroids; zero where cold.
        weights: of the experts' probabilities, each row sums to one: 1/k, or proportional to the prior where cold.
        is_cold: the prefix has no known word or fewer than ``COLD_BYTES`` bytes.
    """

    experts: Int32[np.ndarray, "n k"]
    similarity: Float32[np.ndarray, "n k"]
    weights: Float64[np.ndarray, "n k"]
    is_cold: Bool[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class Router:
    """A fitted division of text.

    Attributes:
        vocabulary: F terms; column f of the tf-idf rows is ``vocabulary[f]``.
        idf: inverse document frequency of each term.
        components: right singular vectors, one a row.
        mean: of the training sample after the SVD.
        centroids: rows of length one.
        cluster_sizes: windows of each cluster after nearest-centroid assignment; the sample's until measured.
        top_terms: per cluster, the terms by which its windows differ most from all windows.
        settings: what it was fitted with.
    """

    vocabulary: tuple[str, ...]
    idf: Float32[np.ndarray, " F"]
    components: Float32[np.ndarray, "C F"]
    mean: Float32[np.ndarray, " C"]
    centroids: Float32[np.ndarray, "N C"]
    cluster_sizes: Int64[np.ndarray, " N"]
    top_terms: tuple[tuple[str, ...], ...]
    settings: dict[str, Any]

    @classmethod
    def single(cls, *, num_windows: int = 1) -> "Router":
        """One cluster, hence nothing to fit: every text goes to expert 0."""
        return cls(
            vocabulary=(),
            idf=np.zeros(0, np.float32),
            components=np.zeros((1, 0), np.float32),
            mean=np.zeros(1, np.float32),
            centroids=np.ones((1, 1), np.float32),
            cluster_sizes=np.array([num_windows], np.int64),
            top_terms=((),),
            settings={"num_clusters": 1},
        )

    @property
    def num_clusters(self) -> int:
        return len(self.centroids)

    @cached_property
    def prior(self) -> Float64[np.ndarray, " N"]:
        """Share of the training windows in each cluster."""
        return self.cluster_sizes / np.sum(self.cluster_sizes)

    def with_sizes(self, cluster_sizes: Int64[np.ndarray, " N"]) -> "Router":
        """The same router with measured cluster sizes, hence prior."""
        return dataclasses.replace(self, cluster_sizes=cluster_sizes.astype(np.int64))

    @cached_property
    def _words(self) -> WordIndex:
        return WordIndex.of(self.vocabulary)

    @cached_property
    def _projection(self) -> Float32[np.ndarray, "F C"]:
        """Contiguous transpose (appendix N.1): a sparse row reads whole rows of it."""
        return np.ascontiguousarray(self.components.T)

    @cached_property
    def _centroids(self) -> Float32[np.ndarray, "N C"]:
        """In the memory order that ``similarities`` reads."""
        return np.asfortranarray(self.centroids)

    def features(self, texts: list[bytes]) -> csr_matrix:
        """tf-idf rows of length one, FP32 [n, F]; bytes that are not UTF-8 are passed over (appendix D)."""
        return tfidf_rows(self._words.count(texts), idf=self.idf)

    def embed(self, texts: list[bytes]) -> Float32[np.ndarray, "n C"]:
        """Unit vectors; a text without known words goes where the zero row goes, opposite to the mean."""
        if self.num_clusters == 1:
            return np.ones((len(texts), self.centroids.shape[1]), np.float32)
        return self.embed_features(self.features(texts))

    def embed_features(self, rows: csr_matrix) -> Float32[np.ndarray, "n C"]:
        """``embed`` of rows made by ``features``."""
        return unit_rows(np.asarray(rows @ self._projection, np.float32) - self.mean)

    def nearest(self, texts: list[bytes]) -> Int32[np.ndarray, " n"]:
        """The cluster of most similar centroid; the lower index among equals."""
        return np.argmax(similarities(self.embed(texts), self._centroids), axis=1).astype(np.int32)

    def route(self, prefixes: list[bytes], *, active_experts: int) -> Routes:
        """The ``active_experts`` nearest clusters of each prefix; the lower index among equals.

        A row does not depend on which other prefixes stand beside it.

        Raises:
            UserError: ``active_experts`` is below one or above the number of clusters.
        """
        if not 1 <= active_experts <= self.num_clusters:
            raise UserError(
                f"{active_experts} active experts were asked for, and the run has {self.num_clusters}",
                where="routing.active_experts",
                fix=f"choose 1 to {self.num_clusters}",
            )
        shape = (len(prefixes), active_experts)
        if self.num_clusters == 1:  # one expert is never in doubt, so no prefix is cold
            is_cold = np.zeros(len(prefixes), np.bool_)
            return Routes(np.zeros(shape, np.int32), np.ones(shape, np.float32), np.ones(shape), is_cold)
        rows = self.features(prefixes)
        similarity = similarities(self.embed_features(rows), self._centroids)
        experts = _largest(similarity, active_experts)
        similarity = np.take_along_axis(similarity, experts, axis=1)
        weights = np.full(shape, 1.0 / active_experts)
        is_cold = (np.diff(rows.indptr) == 0) | np.array([len(prefix) < COLD_BYTES for prefix in prefixes], np.bool_)
        # choice: the paper leaves short prompts open. Average by cluster prior, over the k largest clusters so that a
        # cold prefix costs no more experts than any other.
        if is_cold.any():
            likely = _largest(self.prior[None, :], active_experts)[0]
            experts[is_cold], similarity[is_cold] = likely, 0.0
            weights[is_cold] = self.prior[likely] / np.sum(self.prior[likely])
        return Routes(experts.astype(np.int32), similarity, weights, is_cold)

    def save(self, folder: Path) -> None:
        """Write ``router.safetensors``, then ``router.json``, which holds the former's hash and its own."""
        names = ("idf", "components", "mean", "centroids")
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in names}  # safetensors saves memory order
        atomic_write(folder / "router.safetensors", safetensors.numpy.save(arrays))
        record = {
            "format": FORMAT,
            "num_clusters": self.num_clusters,
            "cluster_sizes": self.cluster_sizes.tolist(),
            "cluster_fractions": self.prior.tolist(),
            "top_terms": [list(terms) for terms in self.top_terms],
            "settings": self.settings,
            "vocabulary": list(self.vocabulary),
            "arrays_sha256": sha256_file(folder / "router.safetensors"),
        }
        write_json(folder / "router.json", record | {"record_sha256": sha256_text(canonical_json(record))})

    @classmethod
    def load(cls, folder: Path) -> "Router":
        """Read what ``save`` wrote.

        Raises:
            UserError: a file is missing, damaged, or not a router's.
        """
        path = folder / "router.json"
        record = read_json(path)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            fix = "give the folder 'router' of a SOMA run"
            raise UserError(f"not a router of format {FORMAT}", where=str(path), fix=fix)
        stated = record.pop("record_sha256", None)
        if stated != sha256_text(canonical_json(record)):
            raise _damaged(path)
        arrays = _load_arrays(folder / "router.safetensors", sha256=record["arrays_sha256"])
        return cls(
            vocabulary=tuple(record["vocabulary"]),
            cluster_sizes=np.array(record["cluster_sizes"], np.int64),
            top_terms=tuple(tuple(terms) for terms in record["top_terms"]),
            settings=record["settings"],
            **arrays,
        )


def _largest(values: np.ndarray, count: int) -> Int64[np.ndarray, "n k"]:
    """Indices of the largest values of each row, largest first, the lower index among equals."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def _load_arrays(path: Path, *, sha256: str) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError("a file is missing", where=str(path), fix="restore it from a copy, or cluster again")
    if sha256_file(path) != sha256:
        raise _damaged(path)
    try:
        return safetensors.numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> UserError:
    return UserError(
        "the router is damaged, or its two files are of different runs",
        where=str(path),
        fix="restore the folder 'router' from a copy, or cluster again",
    )
