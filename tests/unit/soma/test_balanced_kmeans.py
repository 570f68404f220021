"""Does the balanced division hold its sizes, reach the optimum, and repeat?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from thinwire.base.errors import UserError
from thinwire.soma.balanced_assignment import balanced_assignment
from thinwire.soma.balanced_kmeans import BalancedClusters, fit_balanced_kmeans, initial_centroids, mean_directions
from thinwire.soma.similarity import similarities, unit_rows


def best_total(similarity: np.ndarray) -> float:
    """The optimum by scipy: every cluster has floor(n/N) places for points and one that a dummy may take."""
    num_points, num_clusters = similarity.shape
    low, high = num_points // num_clusters, -(-num_points // num_clusters)
    places = np.repeat(np.arange(num_clusters), low)
    value = similarity[:, places].astype(np.float64)
    if high > low:
        value = np.hstack([value, similarity])
        dummies = np.full((num_clusters * high - num_points, value.shape[1]), -1e4)
        dummies[:, len(places) :] = 0.0
        value = np.vstack([value, dummies])
    rows, columns = linear_sum_assignment(value, maximize=True)
    return float(value[rows, columns].sum())


def blobs(num_points: int, *, seed: int, num_blobs: int = 6, num_components: int = 16) -> np.ndarray:
    """Unit vectors in blobs of very different sizes."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(num_blobs, num_components))
    blob = generator.choice(num_blobs, size=num_points, p=np.arange(1, num_blobs + 1) / sum(range(num_blobs + 1)))
    return unit_rows((centres[blob] + 0.7 * generator.normal(size=(num_points, num_components))).astype(np.float32))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 0.25]))
def test_assignment_is_scipys_optimum_with_sizes_floor_or_ceil(
    num_clusters: int, more: int, seed: int, grid: float
) -> None:
    num_points = num_clusters + more
    generator = np.random.default_rng(seed)
    similarity = generator.normal(size=(num_points, num_clusters)).astype(np.float32)
    if grid:  # many ties
        similarity = (np.round(similarity / grid) * grid).astype(np.float32)
    prices = generator.normal(size=num_clusters) if seed % 2 else None  # a bad start must not cost the optimum
    clusters = balanced_assignment(similarity, prices=prices).clusters
    sizes = np.bincount(clusters, minlength=num_clusters)
    assert sizes.min() >= num_points // num_clusters
    assert sizes.max() <= -(-num_points // num_clusters)
    total = similarity[np.arange(num_points), clusters].astype(np.float64).sum()
    assert total == pytest.approx(best_total(similarity), abs=1e-9)


def test_assignment_is_optimal_for_blobs_far_from_balance() -> None:
    points = blobs(600, seed=3)
    similarity = similarities(points, points[:7])
    clusters = balanced_assignment(similarity).clusters
    total = similarity[np.arange(600), clusters].astype(np.float64).sum()
    assert total == pytest.approx(best_total(similarity), abs=1e-9)
    assert total < similarity.max(axis=1).astype(np.float64).sum() - 1.0  # balance had a price here


def test_equal_points_are_divided_evenly() -> None:
    points = np.repeat(blobs(3, seed=0), 4000, axis=0)
    clusters = balanced_assignment(similarities(points, points[[0, 4000, 8000, 0, 0]])).clusters
    assert np.bincount(clusters).tolist() == [2400] * 5


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="2 points cannot fill 3 clusters"):
        balanced_assignment(np.zeros((2, 3), np.float32))
    with pytest.raises(UserError, match="2 windows cannot fill 3 clusters"):
        fit_balanced_kmeans(blobs(2, seed=0), num_clusters=3, iterations=2, seed=0)


@pytest.mark.parametrize(("num_points", "num_clusters"), [(500, 4), (503, 8), (64, 64), (10, 1)])
def test_fit_is_balanced_unit_length_and_never_falls(num_points: int, num_clusters: int) -> None:
    fitted = fit_balanced_kmeans(blobs(num_points, seed=1), num_clusters=num_clusters, iterations=25, seed=5)
    assert fitted.sizes.sum() == num_points
    assert fitted.sizes.max() - fitted.sizes.min() <= 1
    np.testing.assert_allclose(np.linalg.norm(fitted.centroids, axis=1), 1.0, atol=1e-6)
    assert np.all(np.diff(fitted.mean_similarity) >= -1e-7)
    if fitted.is_converged:
        assert len(fitted.mean_similarity) <= 25


def test_converged_fit_is_a_fixed_point() -> None:
    points = blobs(300, seed=2)
    fitted = fit_balanced_kmeans(points, num_clusters=4, iterations=100, seed=0)
    assert fitted.is_converged
    again = balanced_assignment(similarities(points, fitted.centroids)).clusters
    np.testing.assert_array_equal(again, fitted.clusters)
    centroids = mean_directions(points, again, previous=fitted.centroids)
    np.testing.assert_allclose(centroids, fitted.centroids, atol=1e-6)


def test_equal_blobs_are_found() -> None:
    generator = np.random.default_rng(0)
    truth = np.repeat(np.arange(5), 40)
    points = unit_rows((np.eye(5, 12)[truth] + 0.05 * generator.normal(size=(200, 12))).astype(np.float32))
    fitted = fit_balanced_kmeans(points, num_clusters=5, iterations=20, seed=9)
    pairs = {(int(a), int(b)) for a, b in zip(truth, fitted.clusters, strict=True)}
    assert len(pairs) == 5


def test_same_seed_same_bits_for_any_number_of_threads() -> None:
    """Of BLAS, whose sums over so many numbers do change with its threads."""
    points = blobs(4000, seed=4, num_components=300)

    def fitted(threads: int, *, seed: int = 1) -> BalancedClusters:
        with threadpool_limits(threads, user_api="blas"):
            return fit_balanced_kmeans(points.copy(), num_clusters=3, iterations=4, seed=seed)

    first = fitted(1)
    for threads in (2, 3, 4):
        again = fitted(threads)
        np.testing.assert_array_equal(first.centroids, again.centroids)
        np.testing.assert_array_equal(first.clusters, again.clusters)
    assert not np.array_equal(first.clusters, fitted(1, seed=2).clusters)


def test_initial_centroids_are_distinct_points_spread_over_blobs() -> None:
    points = unit_rows(np.repeat(np.eye(8, dtype=np.float32), 50, axis=0) + np.float32(1e-3))
    chosen = initial_centroids(points, num_clusters=8, seed=0)
    assert sorted(np.argmax(chosen, axis=1).tolist()) == list(range(8))


def test_more_clusters_than_distinct_points_still_fits() -> None:
    points = np.repeat(np.eye(2, 4, dtype=np.float32), 6, axis=0)
    assert fit_balanced_kmeans(points, num_clusters=4, iterations=5, seed=0).sizes.tolist() == [3, 3, 3, 3]


def test_similarity_of_a_row_does_not_depend_on_its_neighbours() -> None:
    points = blobs(300, seed=8)
    together = similarities(points, points[:33])
    alone = np.vstack([similarities(points[i : i + 1], points[:33]) for i in range(300)])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_allclose(together, points.astype(np.float64) @ points[:33].astype(np.float64).T, atol=1e-6)


def test_zero_rows_stay_zero() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(unit_rows(rows), [[0.6, 0.8], [0.0, 0.0]], atol=1e-7)
