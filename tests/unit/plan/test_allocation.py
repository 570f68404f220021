"""Is the planner's n_pert and B the best of all integers that fit?  Against every pair, one by one."""

import math

import pytest

from thinwire.plan.allocation import best_allocation_within
from thinwire.soma.theory import (
    FEWEST_DIRECTIONS,
    FORWARDS_PER_DIRECTION,
    best_allocation,
    dense_terms,
    relative_variance,
)


def lanes(batch: int) -> float:
    """A cost that rises in steps, as where 16 lanes are filled by powers of two."""
    return 0.7 + (1 << (batch - 1).bit_length() if batch <= 16 else 16 * -(-batch // 16))


def straight(batch: int) -> float:
    return float(batch)


def everyone(terms, *, cost, limit, difference, weight):
    """Least noise over every feasible pair, without any thought."""
    most = math.floor(limit / min(cost(batch) for batch in range(1, 3)))
    pairs = [
        (directions, batch)
        for batch in range(1, math.floor(limit) + 2)  # none costs less than its windows
        for directions in range(FEWEST_DIRECTIONS[difference], most + 2)
        if directions * cost(batch) <= limit
    ]
    return min((noise(terms, n, b, difference=difference, weight=weight) for n, b in pairs), default=None)


def noise(terms, directions, batch, *, difference, weight):
    setting = {"directions": directions, "batch": batch, "difference": difference}
    return relative_variance(terms, **setting, batch_weight=weight)


@pytest.mark.parametrize("cost", [straight, lanes])
@pytest.mark.parametrize("difference", ["central", "one_sided"])
@pytest.mark.parametrize("nu", [0.5, 15.0, 400.0])
@pytest.mark.parametrize("limit", [1.0, 3.5, 40.0, 260.0])
@pytest.mark.parametrize("weight", [1.0, 37.0])
def test_no_pair_of_integers_is_better(cost, difference, nu: float, limit: float, weight: float) -> None:
    terms = dense_terms(90, nu=nu)
    found = best_allocation_within(terms, direction_cost=cost, limit=limit, difference=difference, batch_weight=weight)
    best = everyone(terms, cost=cost, limit=limit, difference=difference, weight=weight)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert found.directions * cost(int(found.batch)) <= limit
    assert found.directions >= FEWEST_DIRECTIONS[difference]
    directions, batch, variance = found
    assert noise(terms, directions, batch, difference=difference, weight=weight) == pytest.approx(best, rel=1e-12)
    assert variance == pytest.approx(noise(terms, directions, batch, difference=difference, weight=1.0), rel=1e-12)


@pytest.mark.parametrize("weight", [1.0, 37.0])
@pytest.mark.parametrize("difference", ["central", "one_sided"])
@pytest.mark.parametrize("forwards", [4, 100, 8192, 100_003])
def test_where_cost_is_windows_it_is_the_theory(difference, forwards: int, weight: float) -> None:
    terms, signs = dense_terms(32_928, nu=63.0), FORWARDS_PER_DIRECTION[difference]
    rule = {"difference": difference, "batch_weight": weight}
    found = best_allocation_within(
        terms, direction_cost=lambda batch: float(signs * batch), limit=float(forwards), **rule
    )
    expected = best_allocation(terms, window_forwards=forwards, **rule)
    assert found is not None
    assert found.variance == pytest.approx(expected.variance, rel=1e-12)


def test_rounding_loses_no_direction() -> None:
    """0.1 goes ten times into 1.0, though neither is exact in binary."""
    terms = dense_terms(1000, nu=0.0)
    found = best_allocation_within(terms, direction_cost=lambda batch: 0.1 * batch, limit=1.0, difference="central")
    assert found is not None
    assert (found.directions, found.batch) == (10, 1)
