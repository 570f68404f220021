"""How far does a second-order rotation leave the rotations?  Exactly (theta A)^4 / 4, and little at the angles used."""

import math

import pytest
import torch
from torch import Tensor

from thinwire.subspaces.basis import random_basis
from thinwire.subspaces.rotation import Rotation, generators, principal_angles, reference_rotation

WIDTH, RANK = 256, 13
PAPER_WIDTH = 2048


def _setting(count: int = 1, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A basis and generators in the paper's norm."""
    basis = random_basis(seed, layer=0, side="value", width=WIDTH, rank=RANK)
    return basis, generators(seed, layer=0, side="value", width=WIDTH, count=count, norm="frobenius")


def _frames(theta: float, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(Ubar, second order, exact) at a theta of the paper's width: the angle of theta A goes with theta / sqrt(d)."""
    basis, skew = _setting(seed=seed)
    scaled = torch.tensor([theta * math.sqrt(WIDTH / PAPER_WIDTH)], dtype=torch.float64)
    second = Rotation(basis, skew, exponential="taylor", order=2, theta_max=40.0)
    exact = Rotation(basis, skew, exponential="exact", order=2, theta_max=40.0)
    return basis, second.rotate(scaled), exact.rotate(scaled)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", [0.5, 5.0, 20.0])
def test_second_order_is_orthogonal_but_for_the_fourth_power(count: int, size: float) -> None:
    basis, skew = _setting(count)
    theta = size * torch.linspace(1.0, -0.5, count, dtype=torch.float64)
    exponent = torch.einsum("k,kij->ij", theta, skew)
    fourth = torch.linalg.matrix_power(exponent, 4) / 4
    rotation = reference_rotation(theta, skew, order=2)
    eye = torch.eye(WIDTH, dtype=torch.float64)
    torch.testing.assert_close(rotation.mT @ rotation, eye + fourth, rtol=0, atol=1e-12)
    frame = Rotation(basis, skew, exponential="taylor", order=2, theta_max=20.0).rotate(theta)
    expected = torch.eye(RANK, dtype=torch.float64) + basis.mT @ fourth @ basis
    torch.testing.assert_close(frame.mT @ frame, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("theta", "degrees"), [(1.0, 1.25), (10.0, 12.5), (20.0, 25.0)])
def test_how_far_a_theta_turns_at_the_papers_width(theta: float, degrees: float, seed: int) -> None:
    basis, _, exact = _frames(theta, seed=seed)
    turned = torch.rad2deg(principal_angles(basis, exact)).mean().item()
    assert 0.95 * degrees < turned < 1.01 * degrees


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("theta", "error"), [(10.0, 5e-3), (20.0, 4e-2)])
def test_error_of_the_second_order(theta: float, error: float, seed: int) -> None:
    """The stated error lies between the mean over columns and the worst direction."""
    _, second, exact = _frames(theta, seed=seed)
    worst = torch.linalg.matrix_norm(second - exact, ord=2).item()
    mean = (second - exact).norm().item() / math.sqrt(RANK)
    assert 0.7 * error < mean < error < worst < 1.3 * error


def test_the_error_falls_with_the_third_power_of_theta() -> None:
    errors = [(second - exact).norm().item() for _, second, exact in (_frames(theta) for theta in (8.0, 4.0, 2.0))]
    assert 7.5 < errors[0] / errors[1] < 8.1
    assert 7.9 < errors[1] / errors[2] < 8.1


def test_an_exact_rotation_keeps_the_frame_orthonormal() -> None:
    _, _, exact = _frames(40.0)
    torch.testing.assert_close(exact.mT @ exact, torch.eye(RANK, dtype=torch.float64), rtol=0, atol=1e-13)


def test_the_spectral_norm_of_a_generator_of_frobenius_norm_one() -> None:
    _, skew = _setting()
    largest = torch.linalg.matrix_norm(skew[0], ord=2).item()
    assert 0.93 * 2 / math.sqrt(WIDTH) < largest < 2 / math.sqrt(WIDTH)
