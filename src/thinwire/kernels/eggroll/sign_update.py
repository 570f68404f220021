"""How do weights move?  By the sign of the fitness-weighted sum of the perturbations, where it is large enough.

Z = sum_i f_i a_i b_i^T over pairs, a product over pairs in blocks of ``PAIRS_PER_BLOCK`` that begin at multiples of it:
added in FP64 in their order, so ranges of whole blocks, summed in order, are the whole sum.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from thinwire.kernels import arguments
from thinwire.kernels.eggroll.cpu_impl import pair_rows
from thinwire.kernels.eggroll.noise import NoiseAddress
from thinwire.kernels.eggroll.reference import factors
from thinwire.kernels.eggroll.shape import EggrollRules, EggrollShape
from thinwire.kernels.threads import for_each

PAIRS_PER_BLOCK = 256


class Moved(NamedTuple):
    """Attributes:
    theta: [M], the weights after the update.
    moved_fraction: the part of the weights that moved; alpha in expectation where the signs are random.
    """

    theta: Tensor
    moved_fraction: float


def perturbation_sum(
    signs: np.ndarray, *, shape: EggrollShape, address: NoiseAddress, first_pair: int = 0, threads: int = 1
) -> np.ndarray:
    """float64 [M]: sum_i f_i of a_i b_i^T (matrices) or n_i m_i (vectors), normals drawn again by address.

    Args:
        signs: [n], f of the pairs from ``first_pair`` on.
        threads: as many blocks at once, added in their order; each needs M numbers of memory.

    Raises:
        ValueError: where the signs are not [n], or a pair or a part of the address is no 32-bit word.
    """
    arguments.check_numbers_of(np.asarray(signs), name="signs", first=first_pair)
    arguments.check_address(**address._asdict())
    total, last = np.zeros(shape.num_parameters), first_pair + len(signs)
    second = first_pair - first_pair % PAIRS_PER_BLOCK + PAIRS_PER_BLOCK
    edges = [first_pair, *range(second, last, PAIRS_PER_BLOCK), last]
    blocks = [range(start, stop) for start, stop in itertools.pairwise(edges)]
    parts = np.empty((min(threads, len(blocks)), shape.num_parameters))
    for first in range(0, len(blocks), len(parts)):
        some = blocks[first : first + len(parts)]

        def add(index: int, _: None, some: list[range] = some) -> None:
            pairs = some[index]
            f = np.asarray(signs[pairs.start - first_pair : pairs.stop - first_pair], np.float64)
            _sum_block(f, pairs, shape=shape, address=address, out=parts[index])

        for_each(range(len(some)), add, make_workspace=lambda: None, threads=threads)
        for part in parts[: len(some)]:
            total += part
    return total


def _sum_block(f: np.ndarray, pairs: range, *, shape: EggrollShape, address: NoiseAddress, out: np.ndarray) -> None:
    noise = factors(torch.from_numpy(pair_rows(address, shape=shape, pairs=pairs)), shape=shape)
    for slot in shape.slots:
        a, b = (part.numpy() for part in noise[slot.name])
        weighted, target = f[:, None] * a, out[slot.start : slot.stop]
        if len(slot.shape) == 2:
            np.matmul(weighted.T, b, out=target.reshape(slot.shape))
        else:
            (weighted * b).sum(axis=0, out=target)


def threshold(num_pairs: int, *, rules: EggrollRules) -> float:
    """Phi^-1(1 - alpha/2) sqrt(P): random signs give each weight's Z the variance P."""
    exact = float(ndtri(1 - rules.alpha / 2) * np.sqrt(num_pairs))
    return float(np.rint(exact)) if rules.threshold == "whole" else exact


def move(theta: Tensor, total: np.ndarray, *, num_pairs: int, rules: EggrollRules) -> Moved:
    """``theta + float_step sign(Z)`` where |Z| reaches the threshold.

    Raises:
        ValueError: where the sum has another length than theta, or is of no pair, so that any weight would move.
    """
    if total.shape != tuple(theta.shape) or num_pairs < 1:
        raise ValueError(
            f"a sum over at least one pair is {list(theta.shape)} as theta, not {list(total.shape)} over {num_pairs}"
        )
    # choice: P counts every pair, also those whose members scored alike (f = 0).
    reaches = np.abs(total) >= threshold(num_pairs, rules=rules)
    steps = rules.float_step * np.where(reaches, np.sign(total), 0.0)
    return Moved(theta + torch.from_numpy(steps).to(theta.dtype), float(reaches.mean()))
