"""Which N directions divide unit vectors into equally many parts?

Balanced spherical k-means (appendix D): points and centroids have length one, similarity is the cosine, and every
cluster holds floor(n/N) or ceil(n/N) points while fitting.  Alternates two steps, each of which can only raise the mean
similarity: the exact balanced assignment, then each centroid to its members' mean direction.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Silent
from thinwire.base.seeds import numpy_generator
from thinwire.soma.balanced_assignment import balanced_assignment
from thinwire.soma.similarity import similarities, unit_rows

INITIAL_POINTS = 32_768
"""choice: initial centroids are drawn among so many points; with 256 clusters that is still 128 points each."""


@dataclass(frozen=True)
class BalancedClusters:
    """A fitted division.

    Attributes:
        centroids: rows of length one.
        clusters: of each point.
        mean_similarity: of the points to their centroids, after every iteration's assignment; never falls.
        is_converged: the last iteration changed no point's cluster.
    """

    centroids: Float32[np.ndarray, "N C"]
    clusters: Int32[np.ndarray, " n"]
    mean_similarity: tuple[float, ...]
    is_converged: bool

    @property
    def sizes(self) -> Int64[np.ndarray, " N"]:
        return np.bincount(self.clusters, minlength=len(self.centroids)).astype(np.int64)


def fit_balanced_kmeans(
    points: Float32[np.ndarray, "n C"],
    *,
    num_clusters: int,
    iterations: int,
    seed: int,
    progress: Progress | None = None,
) -> BalancedClusters:
    """Fit at most ``iterations`` rounds; memory beyond the points is one FP32 matrix [n, N].

    The result depends on (points, num_clusters, iterations, seed) alone: one thread, one order.

    Raises:
        UserError: fewer points than clusters.
    """
    if len(points) < num_clusters:
        raise UserError(
            f"{len(points)} windows cannot fill {num_clusters} clusters",
            where="clusters.num_clusters",
            fix="ask for fewer clusters, or give more text",
        )
    task = (progress or Silent()).task("clusters", iterations)
    centroids = initial_centroids(points, num_clusters=num_clusters, seed=seed)
    clusters, prices, history, is_converged = None, None, [], False
    for _ in range(iterations):
        similarity = similarities(points, centroids)
        assigned = balanced_assignment(similarity, prices=prices)
        history.append(float(np.mean(similarity[np.arange(len(points)), assigned.clusters], dtype=np.float64)))
        is_converged = clusters is not None and bool(np.array_equal(clusters, assigned.clusters))
        clusters, prices = assigned.clusters, assigned.prices
        task.advance()
        task.note(f"mean similarity {history[-1]:.4f}")
        if is_converged:
            break
        centroids = mean_directions(points, clusters, previous=centroids)
    task.close()
    assert clusters is not None
    return BalancedClusters(centroids, clusters, tuple(history), is_converged)


def mean_directions(
    points: Float32[np.ndarray, "n C"], clusters: Int32[np.ndarray, " n"], *, previous: Float32[np.ndarray, "N C"]
) -> Float32[np.ndarray, "N C"]:
    """Each cluster's mean direction; a cluster whose members cancel keeps its previous one."""
    sums = np.stack([np.sum(points[clusters == j], axis=0, dtype=np.float64) for j in range(len(previous))])
    is_zero = np.linalg.norm(sums, axis=1) < 1e-12
    return np.where(is_zero[:, None], previous, unit_rows(sums.astype(np.float32)))


def initial_centroids(
    points: Float32[np.ndarray, "n C"], *, num_clusters: int, seed: int
) -> Float32[np.ndarray, "N C"]:
    """Greedy k-means++ (Arthur and Vassilvitskii, 2007): each next centroid is the best of a few points drawn with
    probability proportional to the squared distance 2 - 2 cos from the centroids so far.

    Centroids are drawn among at most ``INITIAL_POINTS`` points.
    """
    generator = numpy_generator(seed, "k-means++")
    if len(points) > INITIAL_POINTS:
        points = points[np.sort(generator.choice(len(points), INITIAL_POINTS, replace=False, shuffle=False))]
    num_trials = 2 + int(np.log(num_clusters))  # choice: as scikit-learn
    chosen = [int(generator.integers(len(points)))]
    distance = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < num_clusters:
        cumulative = np.cumsum(distance, dtype=np.float64)
        if cumulative[-1] <= 0:  # fewer distinct points than clusters
            chosen.append(int(generator.integers(len(points))))
            continue
        drawn = np.searchsorted(cumulative, generator.random(num_trials) * cumulative[-1], side="right")
        drawn = np.minimum(drawn, len(points) - 1)
        reduced = np.minimum(distance[:, None], _squared_distances(points, points[drawn]))
        best = int(np.argmin(np.sum(reduced, axis=0, dtype=np.float64)))
        chosen.append(int(drawn[best]))
        distance = reduced[:, best]
    return points[chosen]


def _squared_distances(points: Float32[np.ndarray, "n C"], chosen: Float32[np.ndarray, "t C"]) -> np.ndarray:
    return np.maximum(2.0 - 2.0 * similarities(points, chosen), 0.0)
