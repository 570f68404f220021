"""How does the tied matrix E learn without backpropagation?  The delta rule on the decoder path alone (Eq. 7)."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


def decoder_gradient(
    hidden: Float[Tensor, "B T dE"], *, decoder: Float[Tensor, "256 dE"], targets: UInt8[Tensor, "B T"]
) -> Float[Tensor, "256 dE"]:
    """1/(BT) sum_bt (softmax(E h_bt) - onehot(y_bt)) h_bt^T, with h held fixed.

    Args:
        hidden: h, the decoder's inputs of one unperturbed forward pass.
        targets: y, the byte after each position.

    Exact for the path through the decoder; the paths through the embedding and the body are left out on purpose.
    """
    h = hidden.reshape(-1, hidden.shape[-1])
    residual = torch.softmax(h @ decoder.T, dim=-1)
    rows = torch.arange(len(h), device=h.device)
    residual[rows, targets.reshape(-1).long()] -= 1.0
    return residual.T @ h / len(h)
