"""Which frame does a theta name?  U(theta) = exp(sum_l theta_l A_l) Ubar, without ever building the rotation (3.2-3.4).

The series of the exponential is applied to the frame, not to the identity: U = Ubar + S Ubar + S^2 Ubar / 2 + ... with
S = sum_l theta_l A_l.  Sorted by products of thetas it is a sum of fixed w x r matrices, which are made once; with one
generator these are A^p Ubar / p!.  Any order then costs about as much as reading them.

To second order R^T R = I + S^4 / 4 exactly, so the frame leaves orthonormality with the fourth power of the angle.
"""

import math
from itertools import combinations_with_replacement
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from thinwire.base.seeds import numpy_generator
from thinwire.subspaces.config import Exponential, GeneratorNorm

Side = Literal["key", "value"]
Method = Literal["auto", "cached", "iterated"]

MAX_CACHED_MATRICES = 64
LARGEST_EXACT_STEP = 2.0


def generators(
    seed: int, *, layer: int, side: Side, width: int, count: int, norm: GeneratorNorm
) -> Float[Tensor, "k w w"]:
    """The skew-symmetric A_l that every rank draws for itself (section 3.4, "In implementation").

    Args:
        seed: the run's seed.
        layer: the decoder block.
        side: keys and values have generators of their own.
        width: w = d_kv, at least 2.
        count: k.
        norm: which norm of each A_l is 1; ``frobenius`` is the paper's.

    Returns:
        float64 [k, w, w].

    Raises:
        ValueError: width below 2, where nothing can turn.

    choice: the paper says "preshared" without saying whether layers share them; here every layer and side has its own.
    """
    if width < 2:
        raise ValueError(f"a rotation needs a width of at least 2, not {width}")
    drawn = []
    for number in range(count):
        normal = numpy_generator(seed, f"generator {number} of layer {layer}, {side}").standard_normal((width, width))
        skew = normal - normal.T
        size = float(np.linalg.norm(skew)) if norm == "frobenius" else _largest_singular_value(skew)
        drawn.append(torch.from_numpy(skew / size))
    return torch.stack(drawn)


def squash(x: Float[Tensor, "*shape"], theta_max: float) -> Float[Tensor, "*shape"]:
    """theta = theta_max tanh(x / theta_max): the identity near zero, never beyond +-theta_max.

    choice: the paper does not bound theta, but its second order wants it small; a hard clamp has no gradient outside.
    """
    return theta_max * torch.tanh(x / theta_max)


class Rotation:
    """U(theta) of one layer's keys or values.

    Args:
        basis: Ubar, orthonormal columns; its dtype and device are those of every frame.
        generators: A_l, skew.
        exponential: ``taylor`` cuts the series after ``order``; ``exact`` goes on until the rest is below rounding for
            all |theta_l| <= theta_max.
        order: of the series; not used by ``exact``.
        theta_max: the largest |theta_l|; used by ``exact`` alone.
        method: ``cached`` holds one w x r matrix for each product of thetas, ``iterated`` applies S to the frame once
            for each order; ``auto`` caches up to 64 matrices. Both give the same up to rounding.
    """

    def __init__(
        self,
        basis: Float[Tensor, "w r"],
        generators: Float[Tensor, "k w w"],
        *,
        exponential: Exponential,
        order: int,
        theta_max: float,
        method: Method = "auto",
    ) -> None:
        self.basis = basis.detach()
        self.num_generators = generators.shape[0]
        self.steps, self.order = 1, order
        if exponential == "exact":
            self.steps, self.order = _exact_plan(generators, theta_max=theta_max, dtype=basis.dtype)
        num_matrices = math.comb(self.num_generators + self.order, self.order) - 1
        if method == "auto":
            method = "cached" if self.steps == 1 and num_matrices <= MAX_CACHED_MATRICES else "iterated"
        if method == "cached" and self.steps > 1:
            raise ValueError("an exponential in several steps cannot be cached")
        self.method = method
        if method == "cached":
            self._products = list(_products(self.num_generators, self.order))
            # Row by row of U^T: products with tall frames of few columns, and their gradients, are faster so.
            self._flat_matrices = _series_matrices(self.basis, generators, self._products).mT.flatten(1)
            self._flat_basis = self.basis.mT.reshape(1, -1)
        else:
            self._generators = generators.to(self.basis)

    def rotate(self, theta: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch w r"]:
        """The frame of each theta, differentiable in theta."""
        theta = theta.to(self.basis.dtype)
        return self._from_cache(theta) if self.method == "cached" else self._by_iteration(theta)

    def _from_cache(self, theta: Tensor) -> Tensor:
        """Ubar + sum over the products of thetas of (product) (matrix)."""
        if self.num_generators == 1:  # few operations: a step makes a frame for every chunk that is read
            coefficients = torch.cat([theta**power for power in range(1, self.order + 1)], dim=-1)
        else:
            values: dict[tuple[int, ...], Tensor] = {(): torch.ones_like(theta[..., 0])}
            for product in self._products:
                values[product] = values[product[:-1]] * theta[..., product[-1]]
            coefficients = torch.stack([values[product] for product in self._products], dim=-1)
        rows = torch.addmm(self._flat_basis, coefficients.reshape(-1, len(self._products)), self._flat_matrices)
        return rows.view(*theta.shape[:-1], *self.basis.mT.shape).mT

    def _by_iteration(self, theta: Tensor) -> Tensor:
        """exp(S / steps), applied ``steps`` times (Al-Mohy and Higham, 2011, "Computing the action of the matrix
        exponential"); S is formed, its exponential is not."""
        width = self.basis.shape[0]
        generator = (theta @ self._generators.flatten(1)).unflatten(-1, (width, width)) / self.steps
        frame = self.basis.expand(*theta.shape[:-1], *self.basis.shape)
        for _ in range(self.steps):
            term = frame
            for power in range(1, self.order + 1):
                term = generator @ term / power
                frame = frame + term
        return frame


def reference_rotation(theta: Float[Tensor, " k"], generators: Float[Tensor, "k w w"], *, order: int) -> Tensor:
    """R(theta) itself, [w, w], to ``order``: what ``Rotation`` applies and never builds (section 3.4)."""
    generator = torch.einsum("k,kij->ij", theta, generators)
    rotation = term = torch.eye(generator.shape[0], dtype=generator.dtype, device=generator.device)
    for power in range(1, order + 1):
        term = term @ generator / power
        rotation = rotation + term
    return rotation


def principal_angles(u: Float[Tensor, "*batch w r"], v: Float[Tensor, "*batch w r"]) -> Float[Tensor, "*batch r"]:
    """Angles between two subspaces in radians, ascending.

    Sines and cosines together, so that small angles and right angles are both accurate (Bjorck and Golub, 1973).
    Columns need not be quite orthonormal: they are made so first.
    """
    u, v = torch.linalg.qr(u).Q, torch.linalg.qr(v).Q
    inner = u.mT @ v
    cosines = torch.linalg.svdvals(inner)
    sines = torch.linalg.svdvals(v - u @ inner).flip(-1)
    return torch.atan2(sines, cosines)


def orthonormality_defect(u: Float[Tensor, "*batch w r"]) -> Float[Tensor, "*batch"]:
    """The largest absolute entry of U^T U - I."""
    eye = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
    return (u.mT @ u - eye).abs().amax(dim=(-2, -1))


def _largest_singular_value(skew: np.ndarray) -> float:
    """||A||_2 by Lanczos iteration on A^T A; 0.2 s at w = 2,048, where all singular values take tens of seconds."""
    squared = LinearOperator(skew.shape, matvec=lambda x: skew.T @ (skew @ x), dtype=skew.dtype)
    largest = eigsh(squared, k=1, which="LA", v0=np.ones(len(skew)), tol=1e-12, return_eigenvectors=False)
    return math.sqrt(float(largest[0]))


def _exact_plan(generators: Tensor, *, theta_max: float, dtype: torch.dtype) -> tuple[int, int]:
    """(steps, order) for which the series' rest is below the rounding of ``dtype`` for every |theta_l| <= theta_max."""
    bound = theta_max * sum(_largest_singular_value(matrix.cpu().double().numpy()) for matrix in generators)
    steps = max(1, math.ceil(bound / LARGEST_EXACT_STEP))
    angle, order = bound / steps, 1
    while angle ** (order + 1) / math.factorial(order + 1) > torch.finfo(dtype).eps / 8:
        order += 1
    return steps, order


def _products(num_generators: int, order: int) -> list[tuple[int, ...]]:
    """All products of thetas up to ``order``, as sorted tuples of their indices, shorter ones first."""
    return [
        product
        for power in range(1, order + 1)
        for product in combinations_with_replacement(range(num_generators), power)
    ]


def _series_matrices(basis: Tensor, generators: Tensor, products: list[tuple[int, ...]]) -> Tensor:
    """The w x r matrix that stands at each product of thetas, made in float64.

    S^p Ubar / p! holds, for a product of p thetas, the sum of all its orders of A's; dropping the first factor of an
    order leaves an order of the product without it.
    """
    wide = generators.to(basis.device, torch.float64)
    made: dict[tuple[int, ...], Tensor] = {(): basis.double()}
    for product in products:
        parts = []
        for first in sorted(set(product)):
            rest = list(product)
            rest.remove(first)
            parts.append(wide[first] @ made[tuple(rest)])
        made[product] = torch.stack(parts).sum(0) / len(product)
    return torch.stack([made[product] for product in products]).to(basis.dtype)
