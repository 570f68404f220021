"""Routed scores by definition: every chosen expert over every window, in PyTorch, any dtype (Eq. 1, appendix N)."""

import torch
from jaxtyping import Float, Float64, Int, UInt8
from torch import Tensor

from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_shape import ExpertShape


def routed_scores(
    thetas: Float[Tensor, "N M"],
    *,
    shape: ExpertShape,
    decoder: Float[Tensor, "... 256 dE"],
    windows: UInt8[Tensor, "n T1"],
    experts: Int[Tensor, "n k"],
    first_target: int,
) -> Float64[Tensor, "n k S"]:
    """log p_e(target) for every window and chosen expert; targets before ``first_target`` are dropped."""
    length = windows.shape[1] - 1
    scores = torch.empty(*experts.shape, length - first_target, dtype=torch.float64)
    for expert in torch.unique(experts).tolist():
        rows, slots = torch.nonzero(experts == expert, as_tuple=True)
        one = decoder[expert] if decoder.dim() == 3 else decoder
        with torch.no_grad():
            log_p = reference.log_probabilities(
                thetas[expert : expert + 1], shape=shape, decoder=one, windows=windows[rows]
            )
        scores[rows, slots] = log_p[0, :, first_target:].double().cpu()
    return scores
