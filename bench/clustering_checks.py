"""Is the clustering right, before the benchmark says how fast it is?  Word counts, sizes, routes, threads."""

import numpy as np
from scipy.sparse import csr_matrix

from thinwire.soma.balanced_kmeans import fit_balanced_kmeans
from thinwire.soma.clusters import fit_router, nearest_clusters
from thinwire.soma.config import ClusterConfig
from thinwire.soma.router import Router
from thinwire.soma.similarity import unit_rows
from thinwire.soma.text_features import decoded, tfidf_rows, tfidf_vectorizer
from thinwire.soma.word_counts import WordIndex

PREFIX_BYTES = 256
ACTIVE_EXPERTS = 4
SEED = 1


def failures(windows: np.ndarray, *, num_clusters: int) -> list[str]:
    """What is wrong on a few windows and on random bytes; empty where nothing is."""
    noise = np.random.default_rng(0).integers(0, 256, (64, windows.shape[1]), np.uint8)
    texts = [window.tobytes() for window in np.concatenate([windows, noise])]
    return wrong_features(texts) + wrong_sizes() + wrong_routes(windows, num_clusters=num_clusters)


def compiled_rows(texts: list[bytes], *, vocabulary: tuple[str, ...], idf: np.ndarray) -> csr_matrix:
    return tfidf_rows(WordIndex.of(vocabulary).count(texts), idf=idf)


def wrong_features(texts: list[bytes]) -> list[str]:
    vectorizer = tfidf_vectorizer(max_features=50_000).fit(decoded(texts))
    expected = csr_matrix(vectorizer.transform(decoded(texts)))
    actual = compiled_rows(
        texts, vocabulary=tuple(vectorizer.get_feature_names_out().tolist()), idf=vectorizer.idf_.astype(np.float32)
    )
    names = {"indptr": "row ends", "indices": "terms", "data": "tf-idf values"}
    return [
        f"{what} differ from scikit-learn's"
        for name, what in names.items()
        if not np.array_equal(getattr(actual, name), getattr(expected, name))
    ]


def wrong_sizes() -> list[str]:
    generator = np.random.default_rng(0)
    points = unit_rows((generator.normal(size=(2003, 16)) + generator.normal(size=16) / 2).astype(np.float32))
    sizes = fit_balanced_kmeans(points, num_clusters=32, iterations=5, seed=0).sizes
    return [] if sizes.sum() == 2003 and sizes.max() - sizes.min() <= 1 else [f"unbalanced sizes {sizes.tolist()}"]


def wrong_routes(windows: np.ndarray, *, num_clusters: int) -> list[str]:
    """Of a router fitted on these few windows."""
    num_clusters = min(num_clusters, len(windows) // 32)
    config = ClusterConfig(num_clusters=num_clusters, components=32, iterations=3, min_documents=2)
    router = fit_router(lambda some: windows[some], num_windows=len(windows), config=config, seed=SEED)
    prefixes = [window[:PREFIX_BYTES].tobytes() for window in windows[:200]]
    active = min(ACTIVE_EXPERTS, num_clusters)
    together = router.route(prefixes, active_experts=active)
    alone = [router.route([prefix], active_experts=active) for prefix in prefixes]
    wrong = []
    if not np.array_equal(together.similarity, np.concatenate([one.similarity for one in alone])):
        wrong.append("a prefix routed alone has another similarity than in a batch")
    if not np.array_equal(nearest_by_threads(router, windows, threads=2), nearest_by_threads(router, windows)):
        wrong.append("two threads assign otherwise than one")
    return wrong


def nearest_by_threads(router: Router, windows: np.ndarray, *, threads: int = 1) -> np.ndarray:
    return nearest_clusters(lambda some: windows[some], router=router, num_windows=len(windows), threads=threads)
