"""Is the curvature that noise meets tr H S / tr S?  The whole Hessian of a tiny expert in FP64."""

from math import sqrt

import numpy as np
import pytest
import torch

from thinwire.soma import exact_gradients
from thinwire.soma.curvature import hessian_products, noise_curvature
from thinwire.soma.exact_gradients import probe_density, window_gradients
from thinwire.soma.model import Expert
from tiny_expert import SHAPE, tiny_expert, windows


@pytest.fixture(scope="module")
def expert() -> Expert:
    return tiny_expert()


def whole_hessian(expert: Expert, text: torch.Tensor) -> torch.Tensor:
    def gradient(theta: torch.Tensor) -> torch.Tensor:
        at = Expert(theta, expert.decoder)
        return window_gradients(at, shape=SHAPE, windows=text)[0].mean(dim=0)

    step, theta = 1e-5, expert.theta
    moves = step * torch.eye(SHAPE.num_parameters, dtype=torch.float64)
    return torch.stack([(gradient(theta + move) - gradient(theta - move)) / (2 * step) for move in moves])


@pytest.mark.parametrize("chunk_bytes", [1, 200_000, 2**28])
def test_products_are_the_hessians_and_do_not_depend_on_chunks(
    expert: Expert, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = windows(5)
    monkeypatch.setattr(exact_gradients, "CHUNK_BYTES", chunk_bytes)
    directions = torch.from_numpy(np.random.default_rng(3).standard_normal((7, SHAPE.num_parameters)))
    products = hessian_products(expert, shape=SHAPE, windows=text, directions=directions)
    expected = directions @ whole_hessian(expert, text)
    torch.testing.assert_close(products, expected, rtol=0, atol=1e-7)


def test_each_noise_meets_its_own_curvature(expert: Expert) -> None:
    noisy, text = windows(6, seed=1), windows(5, seed=2)
    generator = np.random.default_rng(0)
    halves = tuple(window_gradients(expert, shape=SHAPE, windows=windows(3, seed=s))[0].mean(dim=0) for s in (3, 4))
    found = noise_curvature(
        expert,
        shape=SHAPE,
        noisy=noisy,
        windows=text,
        halves=(halves[0].numpy(), halves[1].numpy()),
        generator=generator,
        num_probes=4000,
    )
    hessian, q = whole_hessian(expert, text), torch.from_numpy(probe_density(SHAPE))
    gradients = window_gradients(expert, shape=SHAPE, windows=noisy)[0]
    covariance = torch.cov(gradients.T) * q[:, None] * q
    first, second = (half * q for half in halves)
    assert found.batch == pytest.approx(float((hessian * covariance).sum() / covariance.trace()), abs=1e-7)
    assert found.gradient == pytest.approx(float(second @ hessian @ first / (second @ first)), abs=1e-7)
    # z^T H z has mean sum q H_ii; its spread is at most that of dense probes, 2 |H|^2, and of |z|^2
    expected = float((q * hessian.diagonal()).sum() / q.sum())
    spread = sqrt(2 * float(hessian.square().sum()) + 2 * float(hessian.diagonal().square().sum())) / float(q.sum())
    assert abs(found.probe - expected) < 5 * spread / sqrt(4000)


def test_one_window_has_no_noise(expert: Expert) -> None:
    mean, generator = np.ones(SHAPE.num_parameters), np.random.default_rng(0)
    with pytest.raises(ValueError, match="fewer than two"):
        noise_curvature(
            expert, shape=SHAPE, noisy=windows(1), windows=windows(2), halves=(mean, mean), generator=generator
        )
