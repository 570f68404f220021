"""Which point goes to which cluster, when every cluster must get its fair share?

A transportation problem: maximise the sum of ``similarity[i, cluster(i)]`` with between floor(n/N) and ceil(n/N) points
in each cluster.  The paper says "balanced spherical k-means" (appendix D) and no more.

choice: exact, by prices and shortest paths on the graph of clusters (N nodes), because n is large and N small.
1. *Prices.* Cluster j costs p_j; each point prefers the cluster of largest ``similarity - price``.  An overfull
   cluster raises its price exactly so far that its surplus leaves (an auction that settles all bids of a sweep at
   once).  At most ``PRICE_SWEEPS`` sweeps; prices of an earlier, similar problem make it short.
2. *Exchanges.* The edge a -> b weighs what the cheapest point of a loses by moving to b.  While a cluster holds too
   many or too few points, one point moves along every edge of the cheapest path (Dijkstra; the prices keep edges
   non-negative).  Each such path repairs one place, so there are at most n.  Then places above floor(n/N) are
   exchanged while that gains anything, at most ``FREE_ROUNDS`` N times.
No cheaper path left means no better assignment exists (complementary slackness).
Memory beyond the similarities: O(n + N^2).  One thread, so the result never depends on how many there are.
"""

from typing import NamedTuple, no_type_check

import numba
import numpy as np
from jaxtyping import Float32, Float64, Int32

PRICE_SWEEPS = 64
PRICE_GAIN = 500
"""Four sweeps that settle fewer than one point in so many end the sweeps: exchanges are then quicker (measured)."""
FREE_ROUNDS = 8
TIE = 1e-12
"""Similarities this close are equal: FP64 sums of FP32 numbers of size one."""


class BalancedAssignment(NamedTuple):
    """Attributes: cluster of each point; the clusters' prices, which start the next similar problem; paths taken."""

    clusters: Int32[np.ndarray, " n"]
    prices: Float64[np.ndarray, " N"]
    num_exchanges: int


def balanced_assignment(
    similarity: Float32[np.ndarray, "n N"], *, prices: Float64[np.ndarray, " N"] | None = None
) -> BalancedAssignment:
    """The assignment of largest total similarity whose cluster sizes are floor(n/N) or ceil(n/N).

    Args:
        similarity: one row a point, n >= N.
        prices: of an earlier problem with nearly the same centroids; they change the time taken, and the result only
            among equally good ones.

    Raises:
        ValueError: fewer points than clusters.
    """
    num_points, num_clusters = similarity.shape
    if num_points < num_clusters:
        raise ValueError(f"{num_points} points cannot fill {num_clusters} clusters")
    low, high = num_points // num_clusters, -(-num_points // num_clusters)
    similarity = np.ascontiguousarray(similarity)
    prices = np.zeros(num_clusters) if prices is None else prices.copy()
    if num_clusters == 1:
        return BalancedAssignment(np.zeros(num_points, np.int32), prices, 0)
    prices = _raise_prices(similarity, prices, high, PRICE_SWEEPS)
    clusters = _preferred_clusters(similarity, prices, low, high)
    num_exchanges = _exchange(similarity, prices, clusters, low, high)
    return BalancedAssignment(clusters, prices, int(num_exchanges))


@numba.njit(cache=True, nogil=True)
@no_type_check
def _raise_prices(similarity, prices, high, max_sweeps):
    """Prices under which few points stand in overfull clusters."""
    num_points, num_clusters = similarity.shape
    choice = np.empty(num_points, np.int32)
    margin = np.empty(num_points, np.float64)
    best_prices, best_surplus, earlier_surplus = prices.copy(), num_points + 1, 2 * num_points
    for sweep in range(max_sweeps):
        counts = np.zeros(num_clusters, np.int64)
        for i in range(num_points):
            first, second, first_cluster = -np.inf, -np.inf, 0
            for j in range(num_clusters):
                value = similarity[i, j] - prices[j]
                if value > first:
                    first, second, first_cluster = value, first, j
                elif value > second:
                    second = value
            choice[i], margin[i] = first_cluster, first - second
            counts[first_cluster] += 1
        surplus = np.sum(np.maximum(counts - high, 0))
        if surplus < best_surplus:
            best_surplus = surplus
            best_prices[:] = prices
        if surplus == 0:
            break
        if sweep % 4 == 3:
            if (earlier_surplus - best_surplus) * PRICE_GAIN < num_points:
                break
            earlier_surplus = best_surplus
        for j in range(num_clusters):
            leaving = counts[j] - high
            if leaving > 0:
                prices[j] += np.partition(margin[choice == j], leaving - 1)[leaving - 1] + TIE
    return best_prices


@numba.njit(cache=True, nogil=True)
@no_type_check
def _preferred_clusters(similarity, prices, low, high):
    """Each point's cluster of largest similarity minus price; points indifferent between an overfull and an underfull
    cluster go to the latter, so that many equal points cost one pass instead of one path each."""
    num_points, num_clusters = similarity.shape
    clusters = np.empty(num_points, np.int32)
    counts = np.zeros(num_clusters, np.int64)
    for i in range(num_points):
        best = 0
        for j in range(1, num_clusters):
            if similarity[i, j] - prices[j] > similarity[i, best] - prices[best]:
                best = j
        clusters[i] = best
        counts[best] += 1
    for i in range(num_points):
        here = clusters[i]
        if counts[here] <= high:
            continue
        value = similarity[i, here] - prices[here]
        for j in range(num_clusters):
            if counts[j] < low and similarity[i, j] - prices[j] >= value - 2 * TIE:
                clusters[i] = j
                counts[here] -= 1
                counts[j] += 1
                break
    return clusters


@numba.njit(cache=True, nogil=True)
@no_type_check
def _exchange(similarity, prices, clusters, low, high):
    """Move points along cheapest paths, in place, until the sizes are right and no path gains. Returns paths taken."""
    num_points, num_clusters = similarity.shape
    counts = np.zeros(num_clusters, np.int64)
    first = np.full(num_clusters, -1, np.int64)
    following, preceding = np.full(num_points, -1, np.int64), np.full(num_points, -1, np.int64)
    for i in range(num_points - 1, -1, -1):
        counts[clusters[i]] += 1
        _insert(i, clusters[i], first, following, preceding)
    cost = np.full((num_clusters, num_clusters), np.inf)
    mover = np.full((num_clusters, num_clusters), -1, np.int64)
    for a in range(num_clusters):
        _find_movers(a, np.ones(num_clusters, np.bool_), similarity, first, following, cost, mover)
    for num_paths in range(num_points + FREE_ROUNDS * num_clusters):
        is_over, is_under = counts.max() > high, counts.min() < low
        source = counts > (high if is_over else low)
        sink = counts < (low if is_under else high)
        if not source.any() or not sink.any():
            return num_paths
        end, path_cost, parent = _cheapest_path(cost, prices, source, sink)
        if not (is_over or is_under) and path_cost >= -TIE:
            return num_paths
        b = end
        while parent[b] >= 0:  # from the end backwards, so that a row is read before it changes
            a = parent[b]
            point = mover[a, b]
            _remove(point, a, first, following, preceding)
            _find_movers(a, mover[a] == point, similarity, first, following, cost, mover)
            clusters[point] = b
            _insert(point, b, first, following, preceding)
            for j in range(num_clusters):
                loss = np.float64(similarity[point, b]) - similarity[point, j]
                if j != b and loss < cost[b, j]:
                    cost[b, j], mover[b, j] = loss, point
            b = a
        counts[b] -= 1
        counts[end] += 1
    return num_points + FREE_ROUNDS * num_clusters


@numba.njit(cache=True, nogil=True)
@no_type_check
def _cheapest_path(cost, prices, source, sink):
    """Dijkstra over N nodes on ``cost[a, b] - prices[a] + prices[b] >= 0`` from any source to the best sink.

    Updates the prices so that the edges stay non-negative after the points have moved.
    Returns the sink, the path's cost in similarity, and each node's parent (-1 at a source).
    """
    num_clusters = len(prices)
    lowest = prices.min()
    distance = np.full(num_clusters, np.inf)
    parent = np.full(num_clusters, -1, np.int64)
    is_done = np.zeros(num_clusters, np.bool_)
    for j in range(num_clusters):
        if source[j]:
            distance[j] = prices[j] - lowest
    for _ in range(num_clusters):
        a = -1
        for j in range(num_clusters):
            if not is_done[j] and (a < 0 or distance[j] < distance[a]):
                a = j
        if distance[a] == np.inf:
            break
        is_done[a] = True
        for b in range(num_clusters):
            reached = distance[a] + max(cost[a, b] - prices[a] + prices[b], 0.0)
            if not is_done[b] and reached < distance[b]:
                distance[b], parent[b] = reached, a
    end = -1
    for j in range(num_clusters):
        if sink[j] and (end < 0 or distance[j] - prices[j] < distance[end] - prices[end]):
            end = j
    path_cost = distance[end] - prices[end] + lowest
    limit = distance[end]
    for j in range(num_clusters):
        prices[j] -= min(distance[j], limit)
    return end, path_cost, parent


@numba.njit(cache=True, nogil=True)
@no_type_check
def _find_movers(a, wanted, similarity, first, following, cost, mover):
    """For each wanted b, the point of cluster a that loses least by moving to b.

    Called when a's cheapest point left: no other loses less than it did, so an equal one ends the search for that b,
    which makes many equal points cheap.
    """
    targets = np.flatnonzero(wanted)
    num_open = 0
    for b in targets:
        if b != a:
            targets[num_open] = b
            num_open += 1
    bound = np.where(mover[a] >= 0, cost[a], -np.inf)
    cost[a, targets[:num_open]] = np.inf
    mover[a, targets[:num_open]] = -1
    point = first[a]
    while point >= 0 and num_open > 0:
        here = np.float64(similarity[point, a])
        position = 0
        while position < num_open:
            b = targets[position]
            loss = here - similarity[point, b]
            if loss < cost[a, b]:
                cost[a, b], mover[a, b] = loss, point
            if loss <= bound[b]:
                num_open -= 1
                targets[position] = targets[num_open]
            else:
                position += 1
        point = following[point]


@numba.njit(cache=True, nogil=True)
@no_type_check
def _insert(point, cluster, first, following, preceding):
    head = first[cluster]
    following[point], preceding[point] = head, -1
    if head >= 0:
        preceding[head] = point
    first[cluster] = point


@numba.njit(cache=True, nogil=True)
@no_type_check
def _remove(point, cluster, first, following, preceding):
    before, after = preceding[point], following[point]
    if before >= 0:
        following[before] = after
    else:
        first[cluster] = after
    if after >= 0:
        preceding[after] = before
