"""Are the moments of exact gradients the gradients' own?  FP64 finite differences, chunk by chunk and together."""

import numpy as np
import pytest
import torch

from thinwire.kernels.expert_losses import reference
from thinwire.soma import exact_gradients
from thinwire.soma.exact_gradients import gradient_moments, merged, probe_density, window_gradients
from thinwire.soma.model import Expert, exact_gradient
from tiny_expert import SHAPE, tiny_expert, windows


@pytest.fixture(scope="module")
def expert() -> Expert:
    return tiny_expert()


def test_each_windows_gradient_equals_finite_differences(expert: Expert) -> None:
    text, step = windows(3), 1e-5
    gradients, losses = window_gradients(expert, shape=SHAPE, windows=text)

    def loss(theta: torch.Tensor, window: torch.Tensor) -> float:
        with torch.no_grad():
            return float(reference.mean_loss(theta[None], shape=SHAPE, decoder=expert.decoder, windows=window[None])[0])

    for row, window in enumerate(text):
        assert float(losses[row]) == pytest.approx(loss(expert.theta, window), rel=1e-14)
        for index in range(0, SHAPE.num_parameters, 7):
            move = torch.zeros_like(expert.theta)
            move[index] = step
            difference = (loss(expert.theta + move, window) - loss(expert.theta - move, window)) / (2 * step)
            assert difference == pytest.approx(float(gradients[row, index]), abs=1e-8)


def test_moments_do_not_depend_on_chunks(expert: Expert, monkeypatch: pytest.MonkeyPatch) -> None:
    text = windows(7)
    gradients = window_gradients(expert, shape=SHAPE, windows=text)[0].numpy()
    whole = gradient_moments(expert, shape=SHAPE, windows=text)
    monkeypatch.setattr(exact_gradients, "CHUNK_BYTES", 1)
    assert exact_gradients.windows_per_chunk(SHAPE, window_bytes=5, value_bytes=8) == 1
    alone = gradient_moments(expert, shape=SHAPE, windows=text)
    parts = merged(*(gradient_moments(expert, shape=SHAPE, windows=part) for part in (text[:3], text[3:])))
    for moments in (whole, alone, parts):
        np.testing.assert_allclose(moments.mean, gradients.mean(axis=0), rtol=0, atol=1e-14)
        np.testing.assert_allclose(moments.variance, gradients.var(axis=0, ddof=1), rtol=1e-9, atol=1e-16)
        assert moments.num_windows == 7
        assert moments.loss_nats_per_byte == pytest.approx(whole.loss_nats_per_byte, rel=1e-13)
    batch = exact_gradient(expert, shape=SHAPE, windows=text)
    np.testing.assert_allclose(whole.mean, batch.theta.numpy(), rtol=0, atol=1e-14)
    assert whole.loss_nats_per_byte == pytest.approx(batch.loss_nats_per_byte, rel=1e-13)


def test_single_precision_is_close_and_one_window_has_no_spread(expert: Expert) -> None:
    text = windows(4)
    single = Expert(expert.theta.float(), expert.decoder.float())
    close = gradient_moments(single, shape=SHAPE, windows=text)
    exact = gradient_moments(expert, shape=SHAPE, windows=text)
    assert close.mean.dtype == np.float64
    assert np.linalg.norm(close.mean - exact.mean) < 1e-5 * np.linalg.norm(exact.mean)
    assert np.isnan(gradient_moments(expert, shape=SHAPE, windows=text[:1]).variance).all()
    with pytest.raises(ValueError, match="no window"):
        gradient_moments(expert, shape=SHAPE, windows=text[:0])


def test_density_is_one_on_gains_alone() -> None:
    q = probe_density(SHAPE)
    gains = sum(slot.size for slot in SHAPE.slots if "norm" in slot.name)
    assert (q == 1).sum() == gains
    assert (q == 0.5).sum() == SHAPE.num_parameters - gains
