"""Which fixed frame Ubar do keys and values start from?  Top directions, computed once at plug-in (section 3.4).

Every frame is made in float64 and has the sign of each column fixed, so that the same input gives the same frame.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from thinwire.base.seeds import numpy_generator
from thinwire.subspaces.rotation import Side


def weight_basis(weight: Float[Tensor, "w d"], rank: int) -> Float[Tensor, "w r"]:
    """The top right singular vectors of B, where Z = X B and ``weight`` is B^T (the paper's "principal components").

    They span the best rank-r subspace for Z when X is white.

    Raises:
        ValueError: rank is not within 1..w.
    """
    wide = weight.detach().double()
    return _top_directions(wide @ wide.mT, rank=rank).to(_frame_dtype(weight))


def activation_basis(z: Float[Tensor, "n w"], rank: int) -> Float[Tensor, "w r"]:
    """The top right singular vectors of keys or values seen on text: the best rank-r subspace for just these rows.

    choice: rows are not centred, because the projector that uses the frame has no mean to add back.

    Raises:
        ValueError: rank is not within 1..w.
    """
    wide = z.detach().double()
    return _top_directions(wide.mT @ wide, rank=rank).to(_frame_dtype(z))


def random_basis(seed: int, *, layer: int, side: Side, width: int, rank: int) -> Float[Tensor, "w r"]:
    """A frame drawn uniformly, from an addressed stream; float64.

    Raises:
        ValueError: rank is not within 1..width.
    """
    _check_rank(rank, width=width)
    normal = numpy_generator(seed, f"random basis of layer {layer}, {side}").standard_normal((width, rank))
    return _fix_signs(torch.linalg.qr(torch.from_numpy(normal)).Q)


def _top_directions(gram: Tensor, *, rank: int) -> Tensor:
    _check_rank(rank, width=gram.shape[0])
    return _fix_signs(torch.linalg.eigh(gram).eigenvectors[:, -rank:].flip(-1))


def _fix_signs(frame: Tensor) -> Tensor:
    """Makes the entry of largest size in each column positive."""
    largest = frame.gather(0, frame.abs().argmax(dim=0, keepdim=True))
    return (frame * torch.where(largest < 0, -1.0, 1.0)).contiguous()


def _frame_dtype(source: Tensor) -> torch.dtype:
    return torch.promote_types(source.dtype, torch.float32)


def _check_rank(rank: int, *, width: int) -> None:
    if not 1 <= rank <= width:
        raise ValueError(f"a frame of {rank} columns does not fit into d_kv = {width}")
