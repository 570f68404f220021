"""Does the closed sum over subsets equal going through them all, and its error that of estimates made one by one?"""

from itertools import combinations

import numpy as np
import pytest
import torch

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe
from thinwire.soma.model import exact_gradient, initial_expert
from thinwire.soma.subset_errors import BlockForwards, block_forwards, one_sided_error, subset_error, subset_products
from thinwire.soma.variance import Subject

SHAPE = ExpertShape(width=6, depth=1, embed_width=6)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_products_are_means_over_all_subsets(blocks: int) -> None:
    central = np.random.default_rng(1).normal(size=(3, 5))
    means = [central[:, list(chosen)].mean(axis=1) for chosen in combinations(range(5), blocks)]
    expected = np.mean([np.outer(mean, mean) for mean in means], axis=0)
    np.testing.assert_allclose(subset_products(central, blocks=blocks), expected, rtol=1e-12)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_error_of_two_directions_equals_every_pair_on_every_subset(blocks: int) -> None:
    generator = np.random.default_rng(2)
    probes, central, reference = generator.choice([-1.0, 1.0], (4, 7)), generator.normal(size=(4, 4)), np.ones(7)
    forwards = BlockForwards(central, np.zeros(4), probes @ probes.T, (probes @ reference)[None])
    errors = []
    for chosen in combinations(range(4), blocks):
        slopes = central[:, list(chosen)].mean(axis=1)
        for pair in combinations(range(4), 2):
            estimate = (slopes[list(pair), None] * probes[list(pair)]).mean(axis=0)
            errors.append(((estimate - reference) ** 2).sum())
    found = subset_error(forwards, directions=2, blocks=blocks, reference=0, squared_reference=7.0)
    assert found == pytest.approx(np.mean(errors), rel=1e-12)


def test_forwards_of_an_expert_give_its_own_estimate() -> None:
    expert = initial_expert(SHAPE, seed=1)
    text = torch.from_numpy(np.random.default_rng(3).integers(32, 122, (2, 4, 17), dtype=np.uint8))
    gradient = exact_gradient(expert, shape=SHAPE, windows=text.flatten(0, 1)).theta.double().numpy()
    address = ProbeAddress(stream_key(1, "test"), 0)
    subject = Subject(expert, SHAPE, 1e-3)
    found = block_forwards(subject, blocks=text, address=address, directions=6, references=gradient[None])
    probes = np.stack([sign_probe(address, shape=SHAPE, direction=j) for j in range(6)]).astype(float)
    np.testing.assert_allclose(found.central.mean(axis=1), probes @ gradient, rtol=2e-2, atol=2e-3)
    np.testing.assert_allclose(found.products, probes @ probes.T)
    np.testing.assert_allclose(found.slopes[0], probes @ gradient)
    estimate = found.one_sided @ probes / 6
    square = float(gradient @ gradient)
    by_hand = float(((estimate - gradient) ** 2).sum())
    assert one_sided_error(found, reference=0, squared_reference=square) == pytest.approx(by_hand, rel=1e-9)
