"""Do dense estimates of a fixed objective equal what their definition says, and their errors the closed forms?"""

from math import inf

import numpy as np
import pytest
import torch

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma import theory
from thinwire.soma.fixed_objective import (
    FixedObjective,
    Forwards,
    averaged_estimates,
    coefficients,
    dense_forwards,
    pool_gradients,
    squared_errors,
)
from thinwire.soma.model import Expert, exact_gradient, initial_expert

SHAPE = ExpertShape(width=4, depth=1, embed_width=4)
APART, TOGETHER = [[0], [1]], [[0, 1]]


def objective(*, coordinates: int = 24, epsilon: float = 1e-4) -> FixedObjective:
    generator = np.random.default_rng(5)
    experts = [
        Expert(one.theta.double(), one.decoder.double()) for one in (initial_expert(SHAPE, seed=s) for s in (1, 2))
    ]
    chosen = [np.sort(generator.choice(SHAPE.num_parameters, coordinates, replace=False)) for _ in experts]
    return FixedObjective(experts, SHAPE, chosen, epsilon)


def text(windows: int = 2) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(32, 122, (windows, 9), dtype=np.uint8))


def test_differences_are_directional_derivatives_of_the_chosen_coordinates() -> None:
    chosen, windows = objective(), text()
    forwards = dense_forwards(chosen, windows=windows, directions=5, generator=np.random.default_rng(1))
    weights = coefficients(forwards.losses, groups=APART, epsilon=1e-4, difference="central")
    for index, expert in enumerate(chosen.experts):
        exact = exact_gradient(expert, shape=SHAPE, windows=windows).theta.numpy()[chosen.coordinates[index]]
        np.testing.assert_allclose(weights[index], forwards.probes[index] @ exact, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(pool_gradients(chosen, windows=windows).mean[1], exact, rtol=1e-10)
    assert set(np.unique(forwards.probes)) == {-1, 1}


def test_a_summed_loss_gives_every_expert_the_sum_of_differences() -> None:
    losses = np.random.default_rng(2).normal(size=(2, 3, 2))
    apart = coefficients(losses, groups=APART, epsilon=0.5, difference="central")
    together = coefficients(losses, groups=TOGETHER, epsilon=0.5, difference="central")
    np.testing.assert_allclose(apart, losses[..., 0] - losses[..., 1])
    np.testing.assert_allclose(together, np.broadcast_to(apart.sum(axis=0), (2, 3)))
    one_sided = coefficients(losses, groups=APART, epsilon=0.5, difference="one_sided")
    upper = losses[..., 0]
    for j in range(3):  # the baseline is the mean of the other directions
        others = np.delete(upper, j, axis=1).mean(axis=1)
        np.testing.assert_allclose(one_sided[:, j], (upper[:, j] - others) / 0.5)


def test_averages_are_of_disjoint_runs_of_directions() -> None:
    generator = np.random.default_rng(4)
    forwards = Forwards(2 * generator.integers(0, 2, (2, 4, 6), dtype=np.int8) - 1, generator.normal(size=(2, 4, 2)))
    found = averaged_estimates(forwards, groups=APART, average=2, epsilon=1.0)
    slopes = (forwards.losses[..., 0] - forwards.losses[..., 1]) / 2
    by_hand = np.einsum("ej,ejd->ed", slopes[:, 2:], forwards.probes[:, 2:].astype(float)) / 2
    np.testing.assert_allclose(found[:, 1], by_hand)
    gradient = generator.normal(size=(2, 6))
    expected = ((by_hand - gradient) ** 2).sum() / (gradient**2).sum()
    assert squared_errors(found, gradient=gradient)[1] == pytest.approx(expected)


@pytest.mark.parametrize("groups", [APART, TOGETHER])
def test_errors_follow_the_closed_form(groups: list[list[int]]) -> None:
    chosen, windows = objective(), text()
    gradient = pool_gradients(chosen, windows=windows).mean
    forwards = dense_forwards(chosen, windows=windows, directions=6000, generator=np.random.default_rng(6))
    terms = theory.dense_terms(48 // len(groups), nu=0.0)
    for difference in ("central", "one_sided"):
        estimates = averaged_estimates(forwards, groups=groups, average=4, epsilon=1e-4, difference=difference)
        predicted = theory.relative_variance(terms, directions=4, batch=inf, difference=difference)
        assert squared_errors(estimates, gradient=gradient).mean() == pytest.approx(predicted, rel=0.1)


def test_nu_is_the_variance_of_a_draw_from_the_pool() -> None:
    pool = pool_gradients(objective(), windows=text(5))
    apart = pool.each - pool.mean
    assert pool.nu == pytest.approx((apart**2).sum(axis=(1, 2)).mean() / (pool.mean**2).sum())
    assert pool.nu > 0
