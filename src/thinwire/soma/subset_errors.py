"""What error have estimates of any n_pert and B, from one set of forwards?  All subsets of blocks, as in appendix K.

Some directions are evaluated on each of K blocks of windows. The estimate of n directions on s blocks is
g_hat = (1/n) sum_j z_j D_j(S), D_j(S) the mean of D_jb over the blocks b of S, and so, g_ref held fixed,

    E|g_hat - g_ref|^2 = E|X_j(S)|^2 / n + (1 - 1/n) E X_i(S).X_j(S) - 2 E X_j(S).g_ref + |g_ref|^2,    X_j = z_j D_j.

The mean over all subsets S of s blocks of D_i(S) D_j(S) is (1/s) mean_b D_ib D_jb + (1 - 1/s) mean_{b != c} D_ib D_jc.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe
from thinwire.soma.config import Difference
from thinwire.soma.spsa import derivatives, differences_of
from thinwire.soma.variance import SIGNS, Subject


class BlockForwards(NamedTuple):
    """What the forwards of J directions on K blocks said.

    Attributes:
        central: float64 [J, K], directional derivatives by central differences on each block.
        one_sided: float64 [J], by one-sided differences on all blocks together, each against all J.
        products: float64 [J, J], z_i . z_j.
        slopes: float64 [R, J], z_j . g of each of R reference gradients.
    """

    central: np.ndarray
    one_sided: np.ndarray
    products: np.ndarray
    slopes: np.ndarray


def block_forwards(
    subject: Subject,
    *,
    blocks: UInt8[Tensor, "K B T1"],
    address: ProbeAddress,
    directions: int,
    references: Float64[np.ndarray, "R M"],
) -> BlockForwards:
    """Evaluate the directions 0..J-1 of an address on every block, through the losses that train."""
    losses = np.stack(
        [
            expert_losses(
                subject.expert.theta,
                shape=subject.shape,
                decoder=subject.expert.decoder,
                windows=block,
                address=address,
                directions=range(directions),
                epsilon=subject.epsilon,
                signs=SIGNS,
                implementation=subject.implementation,
                threads=subject.threads,
            ).numpy()
            for block in blocks
        ],
        axis=1,
    )
    probes = np.stack(
        [sign_probe(address, shape=subject.shape, direction=direction) for direction in range(directions)]
    ).astype(np.float32)  # products of at most 2^24 signs are exact
    return BlockForwards(
        central=(losses[..., 0] - losses[..., 1]) / (2 * subject.epsilon),
        one_sided=_one_sided(losses[..., 0].mean(axis=1), epsilon=subject.epsilon),
        products=(probes @ probes.T).astype(np.float64),
        slopes=np.stack([probes.astype(np.float64) @ reference for reference in references]),
    )


def _one_sided(losses: np.ndarray, *, epsilon: float) -> np.ndarray:
    difference: Difference = "one_sided"
    found = differences_of(torch.from_numpy(losses[:, None].copy()), difference=difference)
    return derivatives(found.differences, epsilon=epsilon, difference=difference)


def subset_products(central: Float64[np.ndarray, "J K"], *, blocks: int) -> Float64[np.ndarray, "J J"]:
    """Mean over all subsets of s blocks of D_i(S) D_j(S)."""
    _, count = central.shape
    same = central @ central.T / count
    if count == 1:
        return same
    mean = central.mean(axis=1)
    different = (count * np.outer(mean, mean) - same) / (count - 1)
    return same / blocks + (1 - 1 / blocks) * different


def subset_error(
    forwards: BlockForwards, *, directions: int, blocks: int, reference: int, squared_reference: float
) -> float:
    """Unbiased E|g_hat - g_ref|^2 of central differences, for any n_pert and any s up to K.

    Args:
        directions: n_pert; may exceed the J that were sampled.
        reference: which of the reference gradients.
        squared_reference: its squared norm.
    """
    count = len(forwards.central)
    products = subset_products(forwards.central, blocks=blocks) * forwards.products
    own = float(np.trace(products)) / count
    others = (float(products.sum()) - float(np.trace(products))) / (count * (count - 1))
    along = float(forwards.slopes[reference] @ forwards.central.mean(axis=1)) / count
    return own / directions + (1 - 1 / directions) * others - 2 * along + squared_reference


def one_sided_error(forwards: BlockForwards, *, reference: int, squared_reference: float) -> float:
    """|g_hat - g_ref|^2 of the one-sided estimate of all J directions on all blocks."""
    weights = forwards.one_sided / len(forwards.one_sided)
    squared = float(weights @ forwards.products @ weights)
    return squared - 2 * float(weights @ forwards.slopes[reference]) + squared_reference
