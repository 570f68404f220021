"""Is the zero-order estimate the gradient the formulas promise?  (Eqs. 2 and 8, appendices F and G.1)

Everything here is FP64 and goes through the product's own probes, losses and estimate.

A probe's matrix Z [n, M] holds directions as rows. With n >= M directions the estimate is Z^T Z g / n, an invertible
image of the gradient, so every coordinate of an exact g can be checked through ``estimate`` itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe import cpu_impl as cpu_probes
from thinwire.kernels.sign_probe import reference as reference_probes
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe
from thinwire.soma.model import Expert, exact_gradient
from thinwire.soma.spsa import SIGNS, Difference, derivatives, differences_of, estimate, gradient_from_differences

SMALL = ExpertShape(width=3, depth=1, embed_width=3)  # M = 153
PROJECTED = ExpertShape(width=3, depth=1, embed_width=2)  # M = 165
KEY = stream_key(8, "probe", 0)


class Problem(NamedTuple):
    """A small FP64 expert, one batch, and its exact gradient [M]."""

    shape: ExpertShape
    expert: Expert
    windows: Tensor
    gradient: np.ndarray


def problem(shape: ExpertShape, *, seed: int = 0) -> Problem:
    generator = np.random.default_rng(seed)
    theta = torch.from_numpy(0.6 * generator.standard_normal(shape.num_parameters))
    last_gain = next(slot for slot in shape.slots if slot.name == "norm")
    theta[last_gain.start : last_gain.stop] = 2.0  # else almost all of the gradient would lie in this gain
    expert = Expert(theta, torch.from_numpy(generator.standard_normal((256, shape.embed_width))))
    windows = torch.from_numpy(generator.integers(0, 256, (2, 5), dtype=np.uint8))
    gradient = exact_gradient(expert, shape=shape, windows=windows).theta.numpy()
    return Problem(shape, expert, windows, gradient)


def losses_of(
    given: Problem, *, directions: int, epsilon: float, difference: Difference
) -> Callable[[ProbeAddress], Tensor]:
    def losses(address: ProbeAddress) -> Tensor:
        return expert_losses(
            given.expert.theta,
            shape=given.shape,
            decoder=given.expert.decoder,
            windows=given.windows,
            address=address,
            directions=range(directions),
            epsilon=epsilon,
            signs=SIGNS[difference],
        )

    return losses


def estimated(
    given: Problem, *, directions: int, epsilon: float, difference: Difference, update: int = 0
) -> np.ndarray:
    losses = losses_of(given, directions=directions, epsilon=epsilon, difference=difference)
    result = estimate(
        losses,
        addresses=[ProbeAddress(KEY, update)],
        shape=given.shape,
        epsilon=epsilon,
        difference=difference,
    )
    return result.gradient.numpy()


def probes(given: Problem, *, directions: int, update: int = 0) -> np.ndarray:
    address = ProbeAddress(KEY, update)
    return np.stack([sign_probe(address, shape=given.shape, direction=j) for j in range(directions)]).astype(float)


def density(shape: ExpertShape) -> np.ndarray:
    q = np.full(shape.num_parameters, 0.5)
    for slot in shape.slots:
        if "norm" in slot.name:
            q[slot.start : slot.stop] = 1.0
    return q


@pytest.mark.parametrize("shape", [SMALL, PROJECTED])
def test_all_coordinate_directions_give_the_exact_gradient(shape: ExpertShape) -> None:
    given, epsilon = problem(shape), 1e-5
    unit = torch.eye(shape.num_parameters, dtype=torch.float64)
    endpoints = torch.stack([given.expert.theta + epsilon * unit, given.expert.theta - epsilon * unit], dim=1)
    with torch.no_grad():
        flat = endpoints.reshape(-1, shape.num_parameters)
        losses = reference.mean_loss(flat, shape=shape, decoder=given.expert.decoder, windows=given.windows)
    batch = differences_of(losses.reshape(-1, 2), difference="central")
    along = derivatives(batch.differences, epsilon=epsilon, difference="central")
    assert np.linalg.norm(along - given.gradient) < 1e-6 * np.linalg.norm(given.gradient)
    assert np.max(np.abs(along - given.gradient)) < 1e-6


@pytest.mark.parametrize("shape", [SMALL, PROJECTED])
@pytest.mark.parametrize(
    ("difference", "epsilon", "tolerance"),
    # truncation is O(eps^2) for central, O(eps) for one-sided differences; FP64 rounding is 1e-15 / eps
    [("central", 1e-5, 1e-6), ("one_sided", 1e-7, 1e-4)],
)
def test_a_full_set_of_probes_determines_the_exact_gradient(
    shape: ExpertShape, difference: Difference, epsilon: float, tolerance: float
) -> None:
    given, directions = problem(shape), 4 * shape.num_parameters
    z = probes(given, directions=directions)
    image = z.T @ z / directions
    if difference == "one_sided":
        image = z.T @ (z - z.mean(axis=0)) / (directions - 1)
    actual = estimated(given, directions=directions, epsilon=epsilon, difference=difference)
    recovered = np.linalg.solve(image, actual)
    assert np.linalg.norm(recovered - given.gradient) < tolerance * np.linalg.norm(given.gradient)


def squared_errors(given: Problem, target: np.ndarray, *, directions: int, updates: int) -> np.ndarray:
    """|g_hat - target|^2 / |g|^2 of independent updates."""
    errors = [
        estimated(given, directions=directions, epsilon=1e-5, difference="central", update=update) - target
        for update in range(updates)
    ]
    return (np.array(errors) ** 2).sum(axis=1) / (given.gradient**2).sum()


@pytest.mark.parametrize("directions", [1, 5])
def test_dense_probes_have_relative_variance_d_minus_1_over_n(directions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense: every coordinate marked as a gain is, so the product's probes become Rademacher (Proposition 1)."""

    def all_active(shape: ExpertShape) -> np.ndarray:
        return np.full((-(-shape.num_parameters // 64), 4), 0x55555555, np.uint32)

    monkeypatch.setattr(cpu_probes, "gain_words", all_active)
    monkeypatch.setattr(reference_probes, "gain_words", all_active)
    given = problem(SMALL)
    assert np.all(np.abs(probes(given, directions=2)) == 1)
    errors = squared_errors(given, given.gradient, directions=directions, updates=400)
    predicted = (SMALL.num_parameters - 1) / directions
    standard_error = errors.std(ddof=1) / np.sqrt(len(errors))
    assert abs(errors.mean() - predicted) < 3 * standard_error
    assert standard_error < 0.1 * predicted


def test_sparse_probes_have_the_variance_of_the_recorded_distribution() -> None:
    """R_g = sum q (1 + s - 2 q) g^2 / (n |g|^2), s = sum q (appendix G.1)."""
    given, directions = problem(SMALL), 4
    q, g = density(SMALL), given.gradient
    errors = squared_errors(given, q * g, directions=directions, updates=400)
    predicted = float((q * (1 + q.sum() - 2 * q) * g**2).sum() / (directions * (g**2).sum()))
    standard_error = errors.std(ddof=1) / np.sqrt(len(errors))
    assert abs(errors.mean() - predicted) < 3 * standard_error
    assert standard_error < 0.1 * predicted


def chi_square(contributions: np.ndarray, mean: np.ndarray) -> float:
    """Sum over coordinates of squared z-scores of the mean of contributions [n, M] against ``mean``."""
    standard_errors = contributions.std(axis=0, ddof=1) / np.sqrt(len(contributions))
    return float((((contributions.mean(axis=0) - mean) / standard_errors) ** 2).sum())


def test_the_mean_is_q_times_the_gradient() -> None:
    """No rescaling by density (appendix E): ordinary weights see half of their gradient, gains all of it."""
    given, directions = problem(SMALL), 6000
    q, g = density(SMALL), given.gradient
    ordinary = q == 0.5
    assert (g[ordinary] ** 2).sum() > 0.1 * (g**2).sum()  # so that the two kinds can be told apart
    losses = losses_of(given, directions=directions, epsilon=1e-5, difference="central")
    batch = differences_of(losses(ProbeAddress(KEY, 0)), difference="central")
    along = derivatives(batch.differences, epsilon=1e-5, difference="central")
    contributions = along[:, None] * probes(given, directions=directions)
    actual = gradient_from_differences(
        [batch.differences], addresses=[ProbeAddress(KEY, 0)], shape=SMALL, epsilon=1e-5, difference="central"
    )
    np.testing.assert_allclose(actual.numpy(), contributions.mean(axis=0), rtol=0, atol=1e-12)
    # 153 nearly independent z-scores: mean 153, standard deviation 17.5
    assert chi_square(contributions, q * g) < 153 + 4 * 17.5
    for wrong in (g, 0.5 * g, -q * g, 2 * q * g):
        assert chi_square(contributions, wrong) > 153 + 10 * 17.5


@pytest.mark.parametrize("difference", ["central", "one_sided"])
def test_both_differences_have_the_same_mean_at_three_directions(difference: Difference) -> None:
    """The baseline is the mean of the other directions: without its factor n/(n-1) the mean would be 2/3."""
    given, updates = problem(SMALL), 500
    target = density(SMALL) * given.gradient
    estimates = np.stack(
        [
            estimated(given, directions=3, epsilon=1e-6, difference=difference, update=update)
            for update in range(updates)
        ]
    )
    along = estimates @ target / (target @ target)
    standard_error = along.std(ddof=1) / np.sqrt(updates)
    assert abs(along.mean() - 1.0) < 3 * standard_error
    assert standard_error < 0.08


def test_accumulation_is_the_mean_of_separate_estimates() -> None:
    """A batches, each with its own windows and its own directions."""
    problems = [problem(PROJECTED)._replace(windows=problem(PROJECTED, seed=s).windows) for s in range(3)]
    addresses = [ProbeAddress(KEY, 4, a) for a in range(3)]
    setting = {"shape": PROJECTED, "epsilon": 1e-3, "difference": "central"}

    def losses(address: ProbeAddress) -> Tensor:
        own = problems[address.accumulation]
        return losses_of(own, directions=6, epsilon=1e-3, difference="central")(address)

    together = estimate(losses, addresses=addresses, **setting)
    separate = [estimate(losses, addresses=[address], **setting) for address in addresses]
    mean = torch.stack([one.gradient for one in separate]).mean(dim=0)
    torch.testing.assert_close(together.gradient, mean, rtol=1e-13, atol=1e-15)
    for batch, one in zip(together.batches, separate, strict=True):
        np.testing.assert_array_equal(batch.differences, one.batches[0].differences)
    assert not torch.allclose(separate[0].gradient, separate[1].gradient)
    replayed = gradient_from_differences([b.differences for b in together.batches], addresses=addresses, **setting)
    assert torch.equal(replayed, together.gradient)
