"""Are the frames orthonormal, the best of their rank, and the same every time?"""

import pytest
import torch
from torch import Tensor

from thinwire.subspaces.basis import activation_basis, random_basis, weight_basis
from thinwire.subspaces.rotation import orthonormality_defect, principal_angles


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _every_basis(rank: int) -> list[Tensor]:
    return [
        weight_basis(_normal(8, 20), rank),
        activation_basis(_normal(50, 8), rank),
        random_basis(1, layer=0, side="key", width=8, rank=rank),
    ]


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_columns_are_orthonormal(rank: int) -> None:
    for basis in _every_basis(rank):
        assert basis.shape == (8, rank)
        assert basis.is_contiguous()
        assert orthonormality_defect(basis) < 1e-14


def test_columns_are_orthonormal_where_the_weight_has_a_lower_rank() -> None:
    weight = _normal(8, 2) @ _normal(2, 20, seed=1)
    for basis in (weight_basis(weight, 5), weight_basis(torch.zeros_like(weight), 5), activation_basis(weight.mT, 5)):
        assert orthonormality_defect(basis) < 1e-14


def test_weight_basis_is_the_top_right_singular_vectors_of_what_maps_x_to_z() -> None:
    weight = _normal(8, 20)
    right = torch.linalg.svd(weight.mT, full_matrices=False).Vh.mT
    basis = weight_basis(weight, 3)
    torch.testing.assert_close((basis * right[:, :3]).sum(0).abs(), torch.ones(3, dtype=torch.float64))
    assert principal_angles(basis, right[:, :3]).max() < 1e-12


def test_weight_basis_loses_least() -> None:
    weight = _normal(8, 20)
    lost = torch.linalg.svdvals(weight)[3:].square().sum()
    for basis, relation in ((weight_basis(weight, 3), "equal"), (_every_basis(3)[2], "more")):
        left = (weight - basis @ basis.mT @ weight).square().sum()
        assert (abs(left - lost) < 1e-12) if relation == "equal" else (left > lost + 0.1)


def test_activation_basis_is_the_top_right_singular_vectors_of_the_rows() -> None:
    z = _normal(50, 8) + 1.0  # a mean that centring would remove
    right = torch.linalg.svd(z, full_matrices=False).Vh.mT
    assert principal_angles(activation_basis(z, 2), right[:, :2]).max() < 1e-12


def test_white_activations_lead_to_the_weight_basis() -> None:
    weight = _normal(8, 20)
    white = torch.linalg.qr(_normal(200, 20, seed=3)).Q
    assert principal_angles(activation_basis(white @ weight.mT, 3), weight_basis(weight, 3)).max() < 1e-12


def test_signs_are_fixed() -> None:
    weight = _normal(8, 20)
    assert torch.equal(weight_basis(weight, 3), weight_basis(weight, 3))
    torch.testing.assert_close(weight_basis(weight, 3), weight_basis(-weight, 3), rtol=0, atol=1e-13)
    for basis in _every_basis(3):
        assert (basis.gather(0, basis.abs().argmax(0, keepdim=True)) > 0).all()


def test_a_random_basis_has_an_address() -> None:
    first = random_basis(1, layer=0, side="key", width=8, rank=3)
    assert torch.equal(first, random_basis(1, layer=0, side="key", width=8, rank=3))
    assert not torch.allclose(first, random_basis(1, layer=0, side="value", width=8, rank=3))
    assert not torch.allclose(first, random_basis(1, layer=1, side="key", width=8, rank=3))


def test_types() -> None:
    assert weight_basis(_normal(8, 20).float(), 2).dtype == torch.float32
    assert weight_basis(_normal(8, 20).bfloat16(), 2).dtype == torch.float32
    assert activation_basis(_normal(8, 20), 2).dtype == torch.float64
    assert not weight_basis(_normal(8, 20).requires_grad_(True), 2).requires_grad


@pytest.mark.parametrize("rank", [0, 9])
def test_a_rank_that_does_not_fit_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="d_kv = 8"):
        weight_basis(_normal(8, 20), rank)
    with pytest.raises(ValueError, match="d_kv = 8"):
        activation_basis(_normal(20, 8), rank)
    with pytest.raises(ValueError, match="d_kv = 8"):
        random_basis(1, layer=0, side="key", width=8, rank=rank)
