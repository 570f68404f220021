"""How is a stream of windows divided among experts, and which part does no expert train on?

Appendix D: tf-idf -> truncated SVD -> minus the mean -> length one -> balanced spherical k-means on a sample; then
every window goes to its nearest centroid, and each cluster is split 99/1 into training and validation.  Sizes after
the assignment are measured, not assumed.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt8

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Silent
from thinwire.base.seeds import StreamKey, numpy_generator, philox, stream_key
from thinwire.soma.balanced_kmeans import fit_balanced_kmeans
from thinwire.soma.config import ClusterConfig
from thinwire.soma.router import Router
from thinwire.soma.similarity import similarities
from thinwire.soma.text_features import FittedFeatures, TooFewWordsError, decoded, distinctive_terms, fit_features

ReadWindows = Callable[[np.ndarray], np.ndarray]
"""int64 [n] window indices -> uint8 [n, window_bytes]."""

CHUNK_WINDOWS = 8192
RUN_WINDOWS = 16
"""Neighbouring windows that are held out together."""
MIN_RUNS = 8
"""Places in the stream that a cluster is validated on, where it has so many windows to hold out."""


@dataclass(frozen=True)
class Members:
    """The windows of one cluster, ascending: what its expert trains on, and what it is validated on."""

    train: Int64[np.ndarray, " n"]
    validation: Int64[np.ndarray, " m"]


def fit_router(
    read_windows: ReadWindows,
    *,
    num_windows: int,
    config: ClusterConfig,
    seed: int,
    progress: Progress | None = None,
) -> Router:
    """Fit the whole pipeline on at most ``config.sample_windows`` windows drawn without replacement.

    The result depends on (windows, config, seed) alone, not on the number of threads. Its cluster sizes are the
    sample's by nearest centroid; ``Router.with_sizes`` takes those of ``assign``.

    Raises:
        UserError: fewer windows than clusters, or too few words occur in ``config.min_documents`` sampled windows.
    """
    num_clusters = config.num_clusters
    if num_windows < num_clusters:
        fix = "ask for fewer clusters, or give more text"
        what = f"the text has {num_windows} windows, fewer than the {num_clusters} clusters asked for"
        raise UserError(what, where="clusters.num_clusters", fix=fix)
    if num_clusters == 1:
        return Router.single(num_windows=num_windows)
    sample = sample_indices(num_windows, config.sample_windows, seed=seed)
    try:
        features = fit_features(
            _read_sample(read_windows, sample, progress or Silent()),
            max_features=config.max_features,
            min_documents=config.min_documents,
            num_components=config.components,
            seed=int(numpy_generator(seed, "cluster-svd").integers(2**31)),
            progress=progress,
        )
    except TooFewWordsError as error:
        raise _too_few_words(config, num_windows=len(sample)) from error
    if len(features.points) < num_clusters:
        raise _too_few_words(config, num_windows=len(sample))
    fitted = fit_balanced_kmeans(
        features.points, num_clusters=num_clusters, iterations=config.iterations, seed=seed, progress=progress
    )
    settings = dataclasses.asdict(config) | {"seed": seed, "sampled_windows": len(sample)}
    return _router(features, fitted.centroids, settings=settings)


def assign(
    read_windows: ReadWindows,
    *,
    router: Router,
    num_windows: int,
    threads: int = 1,
    progress: Progress | None = None,
) -> Int32[np.ndarray, " num_windows"]:
    """``nearest_clusters``, none of which may stay empty.

    Raises:
        UserError: no window is nearest to some cluster's centroid.
    """
    assignment = nearest_clusters(
        read_windows, router=router, num_windows=num_windows, threads=threads, progress=progress
    )
    sizes = np.bincount(assignment, minlength=router.num_clusters)
    if np.any(sizes == 0):
        empty = ", ".join(str(j) for j in np.flatnonzero(sizes == 0))
        raise UserError(
            f"no window is nearest to the centroid of cluster {empty}; the sizes are {sizes.tolist()}",
            where="clusters.num_clusters",
            fix=f"ask for fewer clusters than {router.num_clusters}, or give more text",
        )
    return assignment


def nearest_clusters(
    read_windows: ReadWindows,
    *,
    router: Router,
    num_windows: int,
    threads: int = 1,
    progress: Progress | None = None,
) -> Int32[np.ndarray, " num_windows"]:
    """Each window's nearest centroid, in chunks of ``CHUNK_WINDOWS``; the result does not depend on ``threads``.

    choice: a window without a known word goes where the pipeline puts the zero row (opposite to the mean), as the
    paper's own pipeline would; no rule of ours.

    Args:
        threads: chunks at work at once; compiled code does nearly all of it and holds no lock. Windows are read by
            the caller's thread, and at most two chunks a thread are held, so memory does not grow with the corpus.
    """
    assignment = np.zeros(num_windows, np.int32)
    if router.num_clusters > 1:
        starts = range(0, num_windows, CHUNK_WINDOWS)
        chunks = (np.arange(start, min(start + CHUNK_WINDOWS, num_windows)) for start in starts)
        task = (progress or Silent()).task("assign windows", num_windows)
        done = 0
        for nearest in _nearest_of_chunks(router, (read_windows(chunk) for chunk in chunks), threads=threads):
            assignment[done : done + len(nearest)] = nearest
            done += len(nearest)
            task.advance(len(nearest))
        task.close()
    return assignment


def split_members(
    assignment: Int32[np.ndarray, " num_windows"],
    *,
    cluster: int,
    validation_fraction: float,
    seed: int,
    purpose: str = "validation-split",
) -> Members:
    """Hold out ``round(validation_fraction n)`` of a cluster's n windows, at least one, at most n - 1.

    choice: whole runs of ``RUN_WINDOWS`` neighbouring windows of the stream are held out together (the last run in
    part, so that the fraction is exact), in the order of a hash of the run's address. Single windows would leave the
    halves of a sentence on both sides of the split, and the plateau rule would then watch half-known text.
    Where fewer than ``MIN_RUNS`` such runs are to be held out, runs are shorter, so that as many places are seen.

    Args:
        purpose: names the hash. Splits of the same windows by one seed and purpose nest: the runs that the smaller
            fraction holds out are among the larger's. A split for another use needs its own purpose.

    Raises:
        UserError: the cluster has fewer than two windows.
    """
    members = np.flatnonzero(assignment == cluster)
    if len(members) < 2:
        raise UserError(
            f"cluster {cluster} has {len(members)} windows; its expert needs one to train on and one held out",
            where="clusters.num_clusters",
            fix="ask for fewer clusters, or give more text",
        )
    num_validation = min(max(round(validation_fraction * len(members)), 1), len(members) - 1)
    run_windows = min(max(num_validation // MIN_RUNS, 1), RUN_WINDOWS)
    order = np.lexsort((members, _address_hash(members // run_windows, key=stream_key(seed, purpose))))
    is_held_out = np.zeros(len(members), np.bool_)
    is_held_out[order[:num_validation]] = True
    return Members(train=members[~is_held_out], validation=members[is_held_out])


def sample_indices(num_windows: int, sample_windows: int, *, seed: int) -> Int64[np.ndarray, " n"]:
    """``min(num_windows, sample_windows)`` different windows, ascending."""
    if num_windows <= sample_windows:
        return np.arange(num_windows, dtype=np.int64)
    drawn = numpy_generator(seed, "cluster-sample").choice(num_windows, sample_windows, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


def _read_sample(read_windows: ReadWindows, indices: np.ndarray, progress: Progress) -> list[str]:
    texts: list[str] = []
    task = progress.task("read sample", len(indices))
    for start in range(0, len(indices), CHUNK_WINDOWS):
        windows = read_windows(indices[start : start + CHUNK_WINDOWS])
        texts += decoded(_texts(windows))
        task.advance(len(windows))
    task.close()
    return texts


def _router(features: FittedFeatures, centroids: Float32[np.ndarray, "N C"], *, settings: dict[str, Any]) -> Router:
    nearest = np.argmax(similarities(features.points, centroids), axis=1)
    terms = distinctive_terms(features.rows, nearest, vocabulary=features.vocabulary, num_clusters=len(centroids))
    return Router(
        vocabulary=features.vocabulary,
        idf=features.idf,
        components=features.components,
        mean=features.mean,
        centroids=centroids,
        cluster_sizes=np.bincount(nearest, minlength=len(centroids)).astype(np.int64),
        top_terms=terms,
        settings=settings | {"fitted_components": len(features.components)},
    )


def _texts(windows: UInt8[np.ndarray, "n T"]) -> list[bytes]:
    return [window.tobytes() for window in windows]


def _nearest_of_chunks(router: Router, chunks: Iterator[np.ndarray], *, threads: int) -> Iterator[np.ndarray]:
    """In the order of the chunks."""
    router.nearest([b""])  # what the router makes once and keeps is made here, by one thread
    if threads <= 1:
        yield from (router.nearest(_texts(chunk)) for chunk in chunks)
        return
    waiting: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="assign") as pool:
        for chunk in chunks:
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(lambda windows: router.nearest(_texts(windows)), chunk))
        while waiting:
            yield waiting.popleft().result()


def _address_hash(indices: np.ndarray, *, key: StreamKey) -> np.ndarray:
    """uint64, one random number an address."""
    counters = np.zeros((len(indices), 4), np.uint32)
    counters[:, 0] = indices & 0xFFFFFFFF
    counters[:, 1] = indices >> 32
    words = philox(key, counters).astype(np.uint64)
    return words[:, 0] | (words[:, 1] << np.uint64(32))


def _too_few_words(config: ClusterConfig, *, num_windows: int) -> UserError:
    return UserError(
        f"too few words occur in at least {config.min_documents} of the {num_windows} sampled windows to tell "
        f"{config.num_clusters} clusters apart",
        where="clusters.min_documents",
        fix="lower clusters.min_documents (1 keeps every word), ask for fewer clusters, or give more text",
    )
