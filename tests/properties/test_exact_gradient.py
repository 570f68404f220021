"""Is backpropagation, the judge of every estimate, itself right?  FP64 finite differences of both gradients."""

import numpy as np
import pytest
import torch

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.model import Expert, exact_gradient


@pytest.mark.parametrize("shape", [ExpertShape(width=3, depth=2, embed_width=3), ExpertShape(width=3, embed_width=2)])
def test_exact_gradient_equals_finite_differences(shape: ExpertShape) -> None:
    generator = np.random.default_rng(0)
    theta = torch.from_numpy(0.6 * generator.standard_normal(shape.num_parameters))
    decoder = torch.from_numpy(generator.standard_normal((256, shape.embed_width)))
    windows = torch.from_numpy(generator.integers(0, 256, (2, 6), dtype=np.uint8))
    exact = exact_gradient(Expert(theta, decoder), shape=shape, windows=windows)
    step, directions = 1e-5, 40

    def loss(theta: torch.Tensor, decoder: torch.Tensor) -> float:
        with torch.no_grad():
            return float(reference.mean_loss(theta[None], shape=shape, decoder=decoder, windows=windows)[0])

    assert exact.loss_nats_per_byte == pytest.approx(loss(theta, decoder), rel=1e-14)
    for index in generator.choice(shape.num_parameters, directions, replace=False):
        move = torch.zeros_like(theta)
        move[index] = step
        difference = (loss(theta + move, decoder) - loss(theta - move, decoder)) / (2 * step)
        assert difference == pytest.approx(float(exact.theta[index]), abs=1e-8)
    for row in windows.flatten()[:10].tolist():  # bytes that are embedded and decoded: both paths of the tied matrix
        move = torch.zeros_like(decoder)
        move[row, 1] = step
        difference = (loss(theta, decoder + move) - loss(theta, decoder - move)) / (2 * step)
        assert difference == pytest.approx(float(exact.decoder[row, 1]), abs=1e-8)


def test_the_given_expert_is_left_alone() -> None:
    shape = ExpertShape(width=2, depth=1, embed_width=2)
    expert = Expert(torch.ones(shape.num_parameters, dtype=torch.float64), torch.ones(256, 2, dtype=torch.float64))
    exact_gradient(expert, shape=shape, windows=torch.zeros(1, 3, dtype=torch.uint8))
    assert expert.theta.grad is None
    assert not expert.theta.requires_grad
    assert bool((expert.theta == 1).all())
