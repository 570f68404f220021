"""Is the delta rule the exact decoder-path gradient, and only that path's?  (Eq. 7, appendix E)"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import decoder_inputs
from thinwire.soma.decoder import decoder_gradient
from thinwire.soma.model import Expert, exact_gradient

SHAPES = (ExpertShape(width=6, depth=2, embed_width=6), ExpertShape(width=4, depth=1, embed_width=7))


def expert_and_windows(shape: ExpertShape) -> tuple[Expert, torch.Tensor]:
    generator = np.random.default_rng(0)
    theta = torch.from_numpy(0.5 * generator.standard_normal(shape.num_parameters))
    decoder = torch.from_numpy(generator.standard_normal((256, shape.embed_width)))
    return Expert(theta, decoder), torch.from_numpy(generator.integers(0, 256, (3, 8), dtype=np.uint8))


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_autograds_decoder_path_and_not_the_tied_gradient(shape: ExpertShape) -> None:
    expert, windows = expert_and_windows(shape)
    hidden = decoder_inputs(expert.theta, shape=shape, decoder=expert.decoder, windows=windows)
    actual = decoder_gradient(hidden, decoder=expert.decoder, targets=windows[:, 1:])

    matrix = expert.decoder.clone().requires_grad_(True)
    h = reference.decoder_inputs(expert.theta[None], shape=shape, decoder=expert.decoder, inputs=windows[:, :-1])[
        0
    ].detach()
    loss = functional.cross_entropy((h @ matrix.T).reshape(-1, 256), windows[:, 1:].reshape(-1).long())
    loss.backward()
    assert matrix.grad is not None
    assert float((actual - matrix.grad).abs().max()) < 1e-10

    full = exact_gradient(expert, shape=shape, windows=windows)
    assert full.loss_nats_per_byte == pytest.approx(float(loss.detach()), rel=1e-12)
    assert float((actual - full.decoder).norm()) > 0.05 * float(full.decoder.norm())


def test_rows_sum_to_zero_and_unused_inputs_still_move() -> None:
    """Softmax minus one-hot sums to zero over the vocabulary, so every column of the gradient does too."""
    expert, windows = expert_and_windows(SHAPES[0])
    hidden = decoder_inputs(expert.theta, shape=SHAPES[0], decoder=expert.decoder, windows=windows)
    gradient = decoder_gradient(hidden, decoder=expert.decoder, targets=windows[:, 1:])
    assert float(gradient.sum(dim=0).abs().max()) < 1e-14
    assert bool((gradient.abs().sum(dim=1) > 0).all())


def test_a_step_against_it_lowers_the_loss_with_hidden_states_fixed() -> None:
    expert, windows = expert_and_windows(SHAPES[0])
    targets = windows[:, 1:]
    hidden = decoder_inputs(expert.theta, shape=SHAPES[0], decoder=expert.decoder, windows=windows)
    gradient = decoder_gradient(hidden, decoder=expert.decoder, targets=targets)

    def loss(decoder: torch.Tensor) -> float:
        return float(functional.cross_entropy((hidden @ decoder.T).reshape(-1, 256), targets.reshape(-1).long()))

    slope = (loss(expert.decoder + 1e-6 * gradient) - loss(expert.decoder - 1e-6 * gradient)) / 2e-6
    assert slope == pytest.approx(float((gradient**2).sum()), rel=1e-6)


def test_float32_kernel_feeds_it_to_rounding() -> None:
    expert, windows = expert_and_windows(SHAPES[1])
    single = Expert(expert.theta.float(), expert.decoder.float())
    exact_hidden = decoder_inputs(
        single.theta.double(), shape=SHAPES[1], decoder=single.decoder.double(), windows=windows
    )
    exact = decoder_gradient(exact_hidden, decoder=single.decoder.double(), targets=windows[:, 1:])
    hidden = decoder_inputs(
        single.theta, shape=SHAPES[1], decoder=single.decoder, windows=windows, implementation="numba"
    )
    actual = decoder_gradient(hidden, decoder=single.decoder, targets=windows[:, 1:])
    assert float((actual.double() - exact).norm()) < 2e-6 * float(exact.norm())
