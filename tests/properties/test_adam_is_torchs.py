"""Is our Adam with coupled decay ``torch.optim.Adam(weight_decay=...)``?  (Eq. 8, appendix E)"""

import pytest
import torch

from thinwire.soma.updates import AdamState, adam


def gradients(*, steps: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Different sizes by coordinate and over time; one coordinate gets none."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-6, 2, 40, dtype=torch.float64)
    drawn = [sizes * torch.randn(40, generator=generator, dtype=torch.float64) / (1 + s) for s in range(steps)]
    for gradient in drawn:
        gradient[7] = 0.0
    return [gradient.to(dtype) for gradient in drawn]


def ours(start: torch.Tensor, *, steps: int, learning_rate: float, weight_decay: float) -> torch.Tensor:
    weights, state = start, AdamState.zeros_like(start)
    for gradient in gradients(steps=steps, dtype=start.dtype):
        weights, state = adam(weights, gradient, state=state, learning_rate=learning_rate, weight_decay=weight_decay)
    assert state.updates == steps
    return weights


def torchs(
    kind: type[torch.optim.Optimizer], start: torch.Tensor, *, steps: int, learning_rate: float, weight_decay: float
) -> torch.Tensor:
    weights = start.clone().requires_grad_(True)
    optimizer = kind([weights], lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
    for gradient in gradients(steps=steps, dtype=start.dtype):
        weights.grad = gradient.clone()
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize("weight_decay", [0.0, 1e-4, 0.3])
@pytest.mark.parametrize("learning_rate", [1e-3, 0.1])
def test_fifty_steps_equal_torchs(weight_decay: float, learning_rate: float) -> None:
    start = torch.linspace(-2, 2, 40, dtype=torch.float64)
    setting = {"steps": 50, "learning_rate": learning_rate, "weight_decay": weight_decay}
    expected = torchs(torch.optim.Adam, start, **setting)
    assert float((ours(start, **setting) - expected).abs().max()) < 1e-13
    assert float((expected - start).abs().max()) > learning_rate


def test_decay_is_coupled_not_adamws() -> None:
    start = torch.linspace(-2, 2, 40, dtype=torch.float64)
    setting = {"steps": 50, "learning_rate": 0.01, "weight_decay": 0.1}
    assert float((ours(start, **setting) - torchs(torch.optim.AdamW, start, **setting)).abs().max()) > 0.01


def test_first_step_is_the_learning_rate_against_the_sign() -> None:
    start = torch.zeros(3, dtype=torch.float64)
    gradient = torch.tensor([2.0, -1e-3, 0.0], dtype=torch.float64)
    moved = adam(start, gradient, state=AdamState.zeros_like(start), learning_rate=0.5, weight_decay=0.0)
    expected = torch.tensor([-0.5, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(moved.weights, expected, rtol=2e-5, atol=0.0)  # stabilizer 1e-8 against 1e-3


def test_nothing_is_changed_in_place_and_the_dtype_stays() -> None:
    start = torch.linspace(-1, 1, 40)
    state = AdamState.zeros_like(start)
    gradient = torch.ones(40, dtype=torch.float64)  # estimates are FP64, weights FP32
    moved = adam(start, gradient, state=state, learning_rate=0.1, weight_decay=0.1)
    assert moved.weights.dtype == moved.state.first.dtype == moved.state.second.dtype == torch.float32
    assert torch.equal(start, torch.linspace(-1, 1, 40))
    assert not state.first.any()
    assert not state.second.any()
    assert torch.equal(gradient, torch.ones(40, dtype=torch.float64))
