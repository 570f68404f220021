"""Is U(theta) what the exponential says, however it is computed?"""

import math

import pytest
import torch
from torch import Tensor

from thinwire.subspaces.basis import random_basis
from thinwire.subspaces.rotation import (
    Rotation,
    generators,
    orthonormality_defect,
    principal_angles,
    reference_rotation,
    squash,
)

WIDTH, RANK = 12, 3


def _generators(count: int, *, norm: str = "spectral", width: int = WIDTH) -> Tensor:
    return generators(5, layer=2, side="key", width=width, count=count, norm=norm)


def _basis(*, width: int = WIDTH, rank: int = RANK) -> Tensor:
    return random_basis(5, layer=2, side="key", width=width, rank=rank)


def _thetas(*shape: int) -> Tensor:
    return 2 * torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 1


def _taylor(count: int, order: int, method: str = "auto") -> Rotation:
    return Rotation(_basis(), _generators(count), exponential="taylor", order=order, theta_max=1.0, method=method)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("method", ["cached", "iterated"])
def test_the_frame_is_the_reference_rotation_of_the_basis(count: int, order: int, method: str) -> None:
    thetas = _thetas(4, count)
    expected = [reference_rotation(theta, _generators(count), order=order) @ _basis() for theta in thetas]
    frames = _taylor(count, order, method).rotate(thetas)
    torch.testing.assert_close(frames, torch.stack(expected), rtol=0, atol=1e-14)


def test_one_generator_caches_powers_applied_to_the_basis() -> None:
    (skew,), theta = _generators(1), torch.tensor([0.7], dtype=torch.float64)
    expected = _basis() + 0.7 * skew @ _basis() + 0.245 * skew @ skew @ _basis()
    torch.testing.assert_close(_taylor(1, 2).rotate(theta), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("theta_max", [0.1, 1.0, 6.0])
def test_exact_is_the_matrix_exponential(count: int, theta_max: float) -> None:
    skew, thetas = _generators(count), theta_max * _thetas(3, count)
    rotation = Rotation(_basis(), skew, exponential="exact", order=1, theta_max=theta_max)
    expected = torch.linalg.matrix_exp(torch.einsum("bk,kij->bij", thetas, skew)) @ _basis()
    torch.testing.assert_close(rotation.rotate(thetas), expected, rtol=0, atol=2e-14)
    assert orthonormality_defect(rotation.rotate(thetas)).max() < 2e-14


def test_exact_goes_to_the_rounding_of_its_own_type() -> None:
    single = Rotation(_basis().float(), _generators(1), exponential="exact", order=1, theta_max=1.0)
    double = Rotation(_basis(), _generators(1), exponential="exact", order=1, theta_max=1.0)
    assert single.order < double.order
    theta = _thetas(2, 1)
    assert single.rotate(theta).dtype == torch.float32
    torch.testing.assert_close(single.rotate(theta).double(), double.rotate(theta), rtol=0, atol=3e-7)


def test_many_products_are_not_cached() -> None:
    assert _taylor(3, 2).method == "cached"
    assert _taylor(6, 4).method == "iterated"
    with pytest.raises(ValueError, match="several steps"):
        Rotation(_basis(), _generators(3), exponential="exact", order=2, theta_max=9.0, method="cached")


@pytest.mark.parametrize("method", ["cached", "iterated"])
def test_theta_zero_is_the_basis_to_the_bit(method: str) -> None:
    frames = _taylor(3, 2, method).rotate(torch.zeros(2, 3, dtype=torch.float64))
    assert torch.equal(frames, _basis().expand(2, -1, -1))


def test_theta_zero_can_be_left() -> None:
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(WIDTH, RANK, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((_taylor(1, 2).rotate(theta) * direction).sum(), theta)
    expected = (direction * (_generators(1)[0] @ _basis())).sum()
    torch.testing.assert_close(gradient[0], expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("method", ["cached", "iterated"])
@pytest.mark.parametrize(("count", "order"), [(1, 2), (3, 2), (3, 3)])
def test_gradients_of_the_series(method: str, count: int, order: int) -> None:
    theta = _thetas(2, count).requires_grad_(True)
    assert torch.autograd.gradcheck(_taylor(count, order, method).rotate, (theta,))


@pytest.mark.parametrize(("count", "theta_max"), [(1, 1.0), (2, 4.0)])
def test_gradients_of_the_exact_exponential(count: int, theta_max: float) -> None:
    rotation = Rotation(_basis(), _generators(count), exponential="exact", order=2, theta_max=theta_max)
    assert torch.autograd.gradcheck(rotation.rotate, (_thetas(2, count).requires_grad_(True),))


@pytest.mark.parametrize("method", ["cached", "iterated"])
def test_each_theta_of_a_batch_has_its_own_frame(method: str) -> None:
    thetas, rotation = _thetas(2, 3, 2), _taylor(2, 2, method)
    frames = rotation.rotate(thetas)
    assert frames.shape == (2, 3, WIDTH, RANK)
    for row in range(2):
        for column in range(3):
            alone = rotation.rotate(thetas[row, column])
            torch.testing.assert_close(frames[row, column], alone, rtol=0, atol=1e-15)


def test_a_nan_theta_is_not_hidden() -> None:
    assert _taylor(1, 2).rotate(torch.tensor([math.nan])).isnan().any()


@pytest.mark.parametrize("width", [2, 5, 64])
def test_generators_are_skew_and_of_unit_norm(width: int) -> None:
    for norm, order in (("frobenius", "fro"), ("spectral", 2)):
        drawn = _generators(2, norm=norm, width=width)
        assert torch.equal(drawn, -drawn.mT)
        sizes = torch.linalg.matrix_norm(drawn, ord=order)
        torch.testing.assert_close(sizes, torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)


def test_generators_have_an_address() -> None:
    drawn = _generators(2)
    assert torch.equal(drawn, _generators(2))
    assert torch.equal(drawn[:1], _generators(1))
    others = [
        generators(5, layer=2, side="value", width=WIDTH, count=1, norm="spectral"),
        generators(5, layer=3, side="key", width=WIDTH, count=1, norm="spectral"),
        generators(6, layer=2, side="key", width=WIDTH, count=1, norm="spectral"),
        drawn[1:],
    ]
    assert not any(torch.allclose(drawn[:1], other) for other in others)


def test_one_dimension_cannot_turn() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        _generators(1, width=1)


def test_squash_is_bounded_and_keeps_a_slope() -> None:
    x = torch.tensor([0.0, 0.01, 3.0, -3.0], dtype=torch.float64, requires_grad=True)
    y = squash(x, 2.0)
    assert y[0] == 0
    assert abs(y[1].item() - 0.01) < 1e-7
    assert torch.equal(y[2], -y[3])
    assert y.abs().max() < 2.0
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope[0] == 1.0
    assert slope.min() > 0.1


@pytest.mark.parametrize("angle", [1e-9, 0.3, math.pi / 2 - 1e-9, math.pi / 2])
def test_principal_angles_of_a_turned_plane(angle: float) -> None:
    flat = torch.eye(4, dtype=torch.float64)[:, :2]
    turned = flat.clone()
    turned[:, 1] = torch.tensor([0, math.cos(angle), math.sin(angle), 0], dtype=torch.float64)
    found = principal_angles(flat, turned)
    torch.testing.assert_close(found, torch.tensor([0.0, angle], dtype=torch.float64), rtol=1e-9, atol=1e-15)


def test_principal_angles_see_spans_and_not_columns() -> None:
    mixed = _basis() @ torch.tensor([[2.0, 1, 0], [0, 3, 1], [1, 0, 1]], dtype=torch.float64)
    assert principal_angles(_basis(), mixed).max() < 1e-14


def test_orthonormality_defect_is_the_largest_entry() -> None:
    frame = torch.eye(4, dtype=torch.float64)[:, :2]
    frame[0, 0] = 1.1
    assert abs(orthonormality_defect(frame).item() - 0.21) < 1e-15
