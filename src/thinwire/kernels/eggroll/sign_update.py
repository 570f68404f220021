"""How do weights move?  By the sign of the fitness-weighted sum of the perturbations, where it is large enough.

Z = sum_i f_i a_i b_i^T over pairs, a product over pairs in blocks of ``PAIRS_PER_BLOCK`` that begin at multiples of it:
added in FP64 in their order, so ranges of whole blocks, summed in order, are the whole sum.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from thinwire.kernels.eggroll.cpu_impl import pair_rows
from thinwire.kernels.eggroll.noise import NoiseAddress
from thinwire.kernels.eggroll.reference import factors
from thinwire.kernels.eggroll.shape import EggrollRules, EggrollShape

PAIRS_PER_BLOCK = 256


class Moved(NamedTuple):
    """Attributes:
    theta: [M], the weights after the update.
    moved_fraction: the part of the weights that moved; alpha in expectation where the signs are random.
    """

    theta: Tensor
    moved_fraction: float


def perturbation_sum(
    signs: np.ndarray, *, shape: EggrollShape, address: NoiseAddress, first_pair: int = 0
) -> np.ndarray:
    """float64 [M]: sum_i f_i of a_i b_i^T (matrices) or n_i m_i (vectors), normals drawn again by address.

    Args:
        signs: [n], f of the pairs from ``first_pair`` on.
    """
    total, last = np.zeros(shape.num_parameters), first_pair + len(signs)
    starts = [first_pair, *range(first_pair - first_pair % PAIRS_PER_BLOCK + PAIRS_PER_BLOCK, last, PAIRS_PER_BLOCK)]
    for first in starts:
        some = range(first, min(first - first % PAIRS_PER_BLOCK + PAIRS_PER_BLOCK, last))
        f = np.asarray(signs[some.start - first_pair : some.stop - first_pair], np.float64)[:, None]
        normals = torch.from_numpy(pair_rows(address, shape=shape, pairs=some).astype(np.float64))
        noise = factors(normals, shape=shape)
        for slot in shape.slots:
            a, b = (part.numpy() for part in noise[slot.name])
            weighted = f * a
            found = weighted.T @ b if len(slot.shape) == 2 else (weighted * b).sum(axis=0)
            total[slot.start : slot.stop] += found.ravel()
    return total


def threshold(num_pairs: int, *, rules: EggrollRules) -> float:
    """Phi^-1(1 - alpha/2) sqrt(P): random signs give each weight's Z the variance P."""
    exact = float(ndtri(1 - rules.alpha / 2) * np.sqrt(num_pairs))
    return float(np.rint(exact)) if rules.threshold == "whole" else exact


def move(theta: Tensor, total: np.ndarray, *, num_pairs: int, rules: EggrollRules) -> Moved:
    """``theta + float_step sign(Z)`` where |Z| reaches the threshold."""
    # choice: P counts every pair, also those whose members scored alike (f = 0).
    reaches = np.abs(total) >= threshold(num_pairs, rules=rules)
    steps = rules.float_step * np.where(reaches, np.sign(total), 0.0)
    return Moved(theta + torch.from_numpy(steps).to(theta.dtype), float(reaches.mean()))
