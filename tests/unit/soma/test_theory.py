"""Do the closed forms say what they claim?  Every probe of a tiny problem enumerated; integers searched one by one."""

from itertools import product
from math import inf, sqrt

import numpy as np
import pytest

from thinwire.soma import theory
from thinwire.soma.config import Difference
from thinwire.soma.theory import CoordinateGroup

DENSITY = np.array([0.5, 0.5, 1.0])
GRADIENTS = np.array([[0.8, -1.1, 0.3], [0.2, 0.5, -0.9]])  # of two equally likely sequences
PROBES = np.array([z for z in product((-1, 0, 1), repeat=3) if z[2] != 0], float)
CHANCE = np.prod(np.where(PROBES == 0, 1 - DENSITY, DENSITY / 2), axis=1)


def terms() -> theory.NoiseTerms:
    mean, variance = GRADIENTS.mean(axis=0), GRADIENTS.var(axis=0)
    sparse = CoordinateGroup(2, 0.5, float((mean[:2] ** 2).sum()), float(variance[:2].sum()))
    gain = CoordinateGroup(1, 1.0, float(mean[2] ** 2), float(variance[2]))
    return theory.recorded_terms([[sparse, gain]])


def enumerated(difference: Difference, *, directions: int, batch: int) -> tuple[float, float]:
    """Relative variance around the mean and relative error against g, over all batches and probes."""
    g = GRADIENTS.mean(axis=0)
    mean, second, error, total = np.zeros(3), 0.0, 0.0, 0.0
    for sequences in product(range(2), repeat=batch):
        slopes = PROBES @ GRADIENTS[list(sequences)].mean(axis=0)
        for chosen in product(range(len(PROBES)), repeat=directions):
            index = list(chosen)
            chance = float(np.prod(CHANCE[index])) / 2**batch
            coefficients = slopes[index]
            if difference == "one_sided":
                coefficients = (coefficients - coefficients.mean()) * directions / (directions - 1)
            estimate = coefficients @ PROBES[index] / directions
            mean += chance * estimate
            second += chance * float(estimate @ estimate)
            error += chance * float((estimate - g) @ (estimate - g))
            total += chance
    assert total == pytest.approx(1)
    np.testing.assert_allclose(mean, DENSITY * g, atol=1e-12)
    square = float(mean @ mean)
    return (second - square) / square, error / float(g @ g)


@pytest.mark.parametrize(
    ("difference", "directions", "batch"),
    [("central", 1, 1), ("central", 2, 2), ("one_sided", 2, 1), ("one_sided", 2, 2), ("one_sided", 3, 1)],
)
def test_variance_and_error_equal_an_enumeration(difference: Difference, directions: int, batch: int) -> None:
    variance, error = enumerated(difference, directions=directions, batch=batch)
    setting = {"directions": directions, "batch": batch, "difference": difference}
    assert theory.relative_variance(terms(), **setting) == pytest.approx(variance, rel=1e-12)
    assert theory.relative_error(terms(), **setting) == pytest.approx(error, rel=1e-12)


def test_density_one_gives_the_dense_forms() -> None:
    all_dense = theory.recorded_terms([[CoordinateGroup(40, 1.0, 2.0, 6.0), CoordinateGroup(60, 1.0, 1.0, 3.0)]])
    assert all_dense == pytest.approx(theory.dense_terms(100, nu=3.0))
    fixed = theory.centred_variance(all_dense, directions=7, difference="central")
    assert fixed == pytest.approx(theory.dense_variance(100, directions=7)) == pytest.approx(99 / 7)
    a, nu, n, batch = 99, 3.0, 7, 5
    total = theory.relative_variance(all_dense, directions=n, batch=batch, difference="central")
    assert total == pytest.approx(a / n + nu / batch + a * nu / (n * batch))
    apart = theory.separate_batches_variance(all_dense, directions=n, batch=batch)
    assert apart == pytest.approx((a + (a + 1) * nu / batch) / n)
    assert theory.expected_cosine(all_dense, variance=total) == pytest.approx(1 / sqrt(1 + total))


def test_independent_losses_divide_the_variance_by_their_number() -> None:
    assert theory.independent_over_summed(1000, num_experts=4) == pytest.approx(249 / 999)
    assert theory.independent_over_summed(1e9, num_experts=4) == pytest.approx(1 / 4, rel=1e-6)
    blocks = [[CoordinateGroup(250, 1.0, square)] for square in (1.0, 2.0, 0.5, 4.0)]
    own, together = theory.recorded_terms(blocks), theory.recorded_terms(theory.summed(blocks))
    assert own.a / together.a == pytest.approx(249 / 999)
    sparse = [[CoordinateGroup(1000, 0.5, square), CoordinateGroup(8, 1.0, 0.1)] for square in (1.0, 2.0, 0.5, 4.0)]
    ratio = theory.recorded_terms(theory.summed(sparse)).a / theory.recorded_terms(sparse).a
    assert ratio == pytest.approx(4, rel=0.01)


def test_accumulation_is_equation_19_and_divides_everything() -> None:
    found, n, batch, a = terms(), 3, 2, 4
    one = theory.relative_variance(found, directions=n, batch=batch, difference="central")
    together = theory.relative_variance(found, directions=n, batch=batch, difference="central", accumulation=a)
    assert together == pytest.approx(one / a)
    within, between = found.a + found.a_nu / batch, found.nu / batch
    assert theory.accumulated_covariance(within, between=between, directions=n, accumulation=a) == pytest.approx(
        together
    )


def test_the_largest_step_grows_as_the_block_shrinks() -> None:
    of = {count: theory.largest_step(2.0, num_parameters=count, directions=64) for count in (1_000, 4_000, 1e12)}
    assert of[1_000] == pytest.approx(0.5 / (1 + 999 / 64))
    assert theory.largest_step(2.0, num_parameters=0.25e12, directions=64) / of[1e12] == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize("difference", ["central", "one_sided"])
@pytest.mark.parametrize("nu", [0.0, 3.0, 400.0])
@pytest.mark.parametrize("forwards", [4, 37, 700])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("weight", [1.0, 37.0])
def test_the_planner_equals_brute_force(
    difference: Difference, nu: float, forwards: int, accumulation: int, weight: float
) -> None:
    dense = theory.dense_terms(300, nu=nu)
    best = (inf, 0, 0)
    for n, batch in product(range(1, forwards + 1), repeat=2):
        cost = n * batch * accumulation * (2 if difference == "central" else 1)
        if cost > forwards or (difference == "one_sided" and n < 2):
            continue
        v = theory.relative_variance(
            dense,
            directions=n,
            batch=batch,
            difference=difference,
            accumulation=accumulation,
            batch_weight=weight,
        )
        best = min(best, (v, batch, n))
    rule = {"difference": difference, "accumulation": accumulation}
    found = theory.best_allocation(dense, window_forwards=forwards, batch_weight=weight, **rule)
    assert (found.batch, found.directions) == (best[1], best[2])
    plain = theory.relative_variance(dense, directions=found.directions, batch=found.batch, **rule)
    assert found.variance == pytest.approx(plain, rel=1e-14)


def test_a_noisy_step_comes_as_far_as_its_curvatures_say() -> None:
    """Every direction and batch of a quadratic whose gradient noise lies along its first axis, at the best step."""
    hessian, gradient = np.diag([1.0, 2.0, 4.0]), np.ones(3)
    noise, batch, n = np.array([2.0, 0.0, 0.0]), 1, 2
    falls, squares = [], []
    for sign in (-1, 1):
        for signs in product((-1, 1), repeat=3 * n):
            z = np.array(signs, float).reshape(n, 3)
            estimate = (z.T @ (z @ (gradient + sign * noise))) / n
            falls.append(gradient @ estimate)
            squares.append(estimate @ hessian @ estimate)
    fall, exact = np.mean(falls) ** 2 / np.mean(squares), (gradient @ gradient) ** 2 / (gradient @ hessian @ gradient)
    along_probes = np.trace(hessian) / 3
    costs = theory.NoiseCosts(batch=1.0 / along_probes, signal=(gradient @ hessian @ gradient / 3) / along_probes)
    terms = theory.recorded_terms([[CoordinateGroup(3, 1.0, 3.0, gradient_variance=4.0)]])
    share = theory.noiseless_share(terms, costs=costs, directions=n, batch=batch, difference="central")
    # the noise of probes on the batch's noise is not even over these three axes: 8/n on two of them, none on the first
    uneven = (2.0 + 4.0) * 4.0 / n / along_probes / 3 - terms.a_nu / n
    expected = costs.signal / (costs.signal / share + uneven)
    assert fall / exact == pytest.approx(expected, rel=1e-12)


def test_the_continuous_optimum_is_the_papers() -> None:
    """Figure 11: nu = 8.32, 128 to 512 coordinates, n B = 256; B of about 4.09, 2.89 and 2.04."""
    found = {count: theory.optimum(theory.dense_terms(count, nu=8.32), product=256) for count in (128, 256, 512)}
    assert [found[count].batch for count in (128, 256, 512)] == pytest.approx([4.09, 2.89, 2.04], abs=0.01)
    dense = theory.dense_terms(128, nu=8.32)
    for batch in (found[128].batch * 0.9, found[128].batch * 1.1):
        near = theory.relative_variance(dense, directions=256 / batch, batch=batch, difference="central")
        assert near > found[128].variance
    assert theory.optimum(theory.dense_terms(10_000, nu=1e-3), product=64)[:2] == (64, 1)
    assert theory.optimum(theory.dense_terms(2, nu=1e6), product=64)[:2] == (1, 64)
    assert theory.optimum(theory.dense_terms(1, nu=1.0), product=64)[:2] == (1, 64)


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="zero gradient"):
        theory.recorded_terms([[CoordinateGroup(3, 1.0, 0.0)]])
    with pytest.raises(ValueError, match="needs 2"):
        theory.best_allocation(terms(), window_forwards=1, difference="central")
    with pytest.raises(ValueError, match="needs 4"):
        theory.best_allocation(terms(), window_forwards=3, difference="one_sided", accumulation=2)
