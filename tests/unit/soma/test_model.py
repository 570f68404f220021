"""Does an untrained expert have the stated start, and the same one for one seed?"""

import math

import numpy as np
import pytest
import torch

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.config import ModelConfig
from thinwire.soma.model import initial_expert, shape_of, stack_thetas


def test_gains_are_one_and_matrices_within_fan_in_bounds() -> None:
    shape = ExpertShape(width=24, depth=2, embed_width=32)
    theta = initial_expert(shape, seed=3).theta.numpy()
    assert theta.dtype == np.float32
    for slot in shape.slots:
        values = theta[slot.start : slot.stop]
        if "norm" in slot.name:
            assert np.all(values == 1.0)
            continue
        bound = 1 / math.sqrt({"mlp_down": 96, "project_in": 32}.get(slot.name.split(".")[-1], 24))
        assert np.abs(values).max() <= np.float32(bound)
        assert np.abs(values).max() > 0.97 * bound
        assert abs(values.std() - bound / math.sqrt(3)) < 0.1 * bound


def test_seeds_decide_the_weights() -> None:
    shape = ExpertShape(width=8, embed_width=8)
    first, again, other = (initial_expert(shape, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.theta, again.theta)
    assert torch.equal(first.decoder, again.decoder)
    assert not torch.equal(first.theta, other.theta)
    assert not torch.equal(first.decoder, other.decoder)
    assert stack_thetas([first, other]).shape == (2, shape.num_parameters)


@pytest.mark.parametrize("width", [32, 24])
def test_an_untrained_expert_guesses_about_uniformly(width: int) -> None:
    shape = shape_of(ModelConfig(width=width))
    expert = initial_expert(shape, seed=0)
    windows = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 33), dtype=np.uint8))
    loss = reference.mean_loss(expert.theta[None], shape=shape, decoder=expert.decoder, windows=windows)
    assert abs(float(loss) - math.log(256)) < 0.4


def test_shape_of_takes_every_size() -> None:
    assert shape_of(ModelConfig(width=7, depth=3, embed_width=5)) == ExpertShape(width=7, depth=3, embed_width=5)
