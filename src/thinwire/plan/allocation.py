"""Which n_pert and B, exactly, for what an update may cost?  Eq. (18) over integers, with any measured cost."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from thinwire.soma.config import Difference
from thinwire.soma.theory import FEWEST_DIRECTIONS, Allocation, NoiseTerms, relative_variance

DirectionCost = Callable[[int], float]
"""B -> what one direction costs on a batch of B windows; never falls where B rises. n_pert of them are an update."""
LARGEST_BATCH = 1 << 16


def best_allocation_within(
    terms: NoiseTerms,
    *,
    direction_cost: DirectionCost,
    limit: float,
    difference: Difference,
    batch_weight: float = 1.0,
) -> Allocation | None:
    """The integers of least noise with ``n_pert direction_cost(B) <= limit``; None where there are none.

    ``theory.best_allocation`` is the case of a cost of B; noise is weighted as there. It falls in n_pert, so for every
    B only the largest n_pert that fits matters. Batches low..high have no noise below that of B = high with the n_pert
    of B = low; the interval of the least such bound is divided until none can hold anything better (branch and bound,
    exact).
    """

    def noise(directions: int, batch: int, *, weight: float = batch_weight) -> float:
        return relative_variance(terms, directions=directions, batch=batch, difference=difference, batch_weight=weight)

    least = inf
    best: Allocation | None = None
    intervals = [(0.0, 1, LARGEST_BATCH)]
    while intervals:
        bound, low, high = heappop(intervals)
        if bound > least:
            break
        directions = _most_directions(direction_cost(low), limit=limit)
        if directions < FEWEST_DIRECTIONS[difference]:
            continue  # and for every larger batch
        found = noise(directions, low)
        if best is None or (found, low) < (least, best.batch):
            least, best = found, Allocation(directions, low, noise(directions, low, weight=1.0))
        middle = (low + 1 + high) // 2
        for first, last in ((low + 1, middle), (middle + 1, high)):
            if first <= last:
                heappush(intervals, (noise(directions, last), first, last))
    return best


def _most_directions(cost: float, *, limit: float) -> int:
    """The largest n with ``n cost <= limit``, whichever way the division was rounded."""
    guess = int(limit / cost)
    return max(n for n in (guess - 1, guess, guess + 1) if n * cost <= limit)
