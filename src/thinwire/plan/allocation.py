"""Which n_pert and B, exactly, for what an update may cost?  Eq. (18) over integers, with any measured cost."""

from collections.abc import Callable

from thinwire.soma.config import Difference
from thinwire.soma.theory import FEWEST_DIRECTIONS, Allocation, NoiseTerms, relative_variance

DirectionCost = Callable[[int], float]
"""B -> what one direction costs on a batch of B windows; never falls where B rises. n_pert of them are an update."""
LARGEST_BATCH = 1 << 16


def best_allocation_within(
    terms: NoiseTerms, *, direction_cost: DirectionCost, limit: float, difference: Difference
) -> Allocation | None:
    """The integers of least variance with ``n_pert direction_cost(B) <= limit``; None where there are none.

    ``theory.best_allocation`` is the case of a cost of B. v falls in n_pert, so for every B only the largest that
    fits matters; and once a / n_pert alone exceeds the best v, no larger B can do better.
    """
    fewest, best = FEWEST_DIRECTIONS[difference], None
    for batch in range(1, LARGEST_BATCH + 1):
        directions = _most_directions(direction_cost(batch), limit=limit)
        if directions < fewest or (best is not None and terms.a / directions > best.variance):
            break
        variance = relative_variance(terms, directions=directions, batch=batch, difference=difference)
        if best is None or variance < best.variance:
            best = Allocation(directions, batch, variance)
    return best


def _most_directions(cost: float, *, limit: float) -> int:
    """The largest n with ``n cost <= limit``, whichever way the division was rounded."""
    guess = int(limit / cost)
    return max(n for n in (guess - 1, guess, guess + 1) if n * cost <= limit)
