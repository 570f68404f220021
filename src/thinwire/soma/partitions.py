"""Which windows may an expert draw from?  Its semantic cluster, a random shard, or the whole stream (appendix D.1).

The two controls hold everything else equal: the same windows, the same split into training and validation, the same
number of experts.  Neither knows anything about a text, so neither has a router to fit.
"""

import numpy as np
from jaxtyping import Int32

from thinwire.base.progress import Progress
from thinwire.base.seeds import numpy_generator
from thinwire.soma.clusters import ReadWindows, assign, fit_router
from thinwire.soma.config import ClusterConfig
from thinwire.soma.router import Router


def divide(
    read_windows: ReadWindows,
    *,
    num_windows: int,
    config: ClusterConfig,
    seed: int,
    threads: int = 1,
    progress: Progress | None = None,
) -> tuple[Router, Int32[np.ndarray, " num_windows"]]:
    """The router, with measured sizes, and each window's ``shard_of``.

    Raises:
        UserError: ``fit_router``'s and ``assign``'s, for the semantic partition.
    """
    if config.partition == "semantic":
        router = fit_router(read_windows, num_windows=num_windows, config=config, seed=seed, progress=progress)
        assignment = assign(read_windows, router=router, num_windows=num_windows, threads=threads, progress=progress)
        return router.with_sizes(np.bincount(assignment, minlength=router.num_clusters)), assignment
    if config.partition == "random":
        assignment = random_shards(num_windows, num_shards=config.num_clusters, seed=seed)
    else:
        assignment = np.zeros(num_windows, np.int32)
    sizes = np.array([np.sum(assignment == shard_of(k, config=config)) for k in range(config.num_clusters)], np.int64)
    return blind_router(sizes, config=config), assignment


def shard_of(expert: int, *, config: ClusterConfig) -> int:
    """The value that marks an expert's windows in the assignment; one for all under ``iid``."""
    return 0 if config.partition == "iid" else expert


def random_shards(num_windows: int, *, num_shards: int, seed: int) -> Int32[np.ndarray, " num_windows"]:
    """Disjoint shards that together hold every window; their sizes differ by one at most."""
    order = numpy_generator(seed, "random-partition").permutation(num_windows)
    assignment = np.empty(num_windows, np.int32)
    assignment[order] = np.arange(num_windows) * num_shards // num_windows
    return assignment


def blind_router(sizes: np.ndarray, *, config: ClusterConfig) -> Router:
    """A router that knows no word, so that it finds every prefix cold and chooses by the shards' sizes.

    choice: the paper does not say how experts of random or IID shards are chosen. No text belongs to any of them, so
    the k largest answer (the first k among equals), weighted by size: with k = N all are averaged.
    """
    num_clusters = len(sizes)
    if num_clusters == 1:
        return Router.single(num_windows=int(sizes[0]))
    return Router(
        vocabulary=(),
        idf=np.zeros(0, np.float32),
        components=np.zeros((1, 0), np.float32),
        mean=np.zeros(1, np.float32),
        centroids=np.ones((num_clusters, 1), np.float32),
        cluster_sizes=sizes.astype(np.int64),
        top_terms=((),) * num_clusters,
        settings={"num_clusters": num_clusters, "partition": config.partition},
    )
