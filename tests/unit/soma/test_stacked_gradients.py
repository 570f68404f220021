"""Are gradients of many experts at once those of each alone, and their moments those of single windows?"""

import numpy as np
import pytest
import torch

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.exact_gradients import gradient_moments
from thinwire.soma.model import Expert, exact_gradient, initial_expert
from thinwire.soma.stacked_gradients import StackedExperts, stacked_gradients, stacked_moments, train_stacked

SHAPE = ExpertShape(width=6, depth=2, embed_width=4)


def experts(count: int = 3) -> StackedExperts:
    alone = [initial_expert(SHAPE, seed=seed) for seed in range(count)]
    stacked = StackedExperts(torch.stack([one.theta for one in alone]), torch.stack([one.decoder for one in alone]))
    return stacked.double()


def windows(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(32, 122, shape, dtype=np.uint8))


def test_every_experts_gradient_is_its_own() -> None:
    stacked, text = experts(), windows(3, 2, 9)
    found = stacked_gradients(stacked, shape=SHAPE, windows=text)
    for index in range(3):
        alone = exact_gradient(stacked.expert(index), shape=SHAPE, windows=text[index])
        torch.testing.assert_close(found.theta[index], alone.theta, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(found.decoder[index], alone.decoder, rtol=1e-10, atol=1e-14)
        assert float(found.losses[index]) == pytest.approx(alone.loss_nats_per_byte, rel=1e-12)


def test_moments_of_single_windows() -> None:
    stacked, text = experts(), windows(6, 9)
    found = stacked_moments(stacked, shape=SHAPE, windows=text, together=1)
    for index in range(3):
        alone = gradient_moments(stacked.expert(index), shape=SHAPE, windows=text)
        np.testing.assert_allclose(found.of(index).mean, alone.mean, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(found.of(index).variance, alone.variance, rtol=1e-9, atol=1e-14)
        assert found.of(index).num_windows == 6


def test_windows_together_have_the_spread_of_single_ones_on_average() -> None:
    stacked, text = experts(1), windows(256, 9)
    single = stacked_moments(stacked, shape=SHAPE, windows=text, together=1).variance.sum()
    together = stacked_moments(stacked, shape=SHAPE, windows=text, together=4).variance.sum()
    assert together == pytest.approx(single, rel=0.25)
    with pytest.raises(ValueError, match="two or more passes"):
        stacked_moments(stacked, shape=SHAPE, windows=text, together=100)


def test_training_lowers_each_experts_loss_and_goes_on_as_if_never_stopped() -> None:
    start = StackedExperts.all_alike(Expert(*experts(1).expert(0)), num_experts=2)
    text = windows(2, 4, 17)
    rule = {"shape": SHAPE, "batch_of": lambda _: text, "learning_rate": 1e-2}
    whole, _ = train_stacked(start, updates=range(1, 21), **rule)
    half, states = train_stacked(start, updates=range(1, 11), **rule)
    rest, _ = train_stacked(half, updates=range(11, 21), states=states, **rule)
    assert torch.equal(whole.theta, rest.theta)
    assert torch.equal(whole.decoder, rest.decoder)
    losses = [stacked_gradients(one, shape=SHAPE, windows=text).losses for one in (start, whole)]
    assert bool((losses[1] < losses[0] - 0.3).all())
