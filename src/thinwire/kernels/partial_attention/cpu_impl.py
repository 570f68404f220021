"""PyTorch's flash attention for the CPU, by the operator below ``scaled_dot_product_attention``, which gives lse too.

The operator has equally many heads on both sides.  With the full mask no row differs from another, so the query heads
of one key head are laid one after the other as rows of that head, and no key is copied; with the causal mask heads of
keys are repeated.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from thinwire.kernels.partial_attention.reference import repeat_heads, sum_over_groups

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NO_DROPOUT = 0.0


def _unit_stride(x: Tensor) -> Tensor:
    """The operator reads rows of the last axis as contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def partial_attention(
    q: Float[Tensor, "B H T w"], k: Float[Tensor, "B G S w"], v: Float[Tensor, "B G S w"], *, mask: str
) -> tuple[Float[Tensor, "B H T w"], Float[Tensor, "B H T"]]:
    """(out, lse); lse is float32, or float64 for float64."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    heads, key_heads, causal = q.shape[1], k.shape[1], mask == "causal"
    if causal:
        k, v = (repeat_heads(x, num_heads=heads) for x in (k, v))
        return attend(*map(_unit_stride, (q, k, v)), NO_DROPOUT, causal)
    rows = _fold(q, key_heads=key_heads)
    out, lse = attend(*map(_unit_stride, (rows, k, v)), NO_DROPOUT, causal)
    return out.reshape(q.shape), lse.reshape(q.shape[:3])


def partial_attention_backward(
    grad_out: Float[Tensor, "B H T w"],
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B G S w"],
    v: Float[Tensor, "B G S w"],
    *,
    out: Float[Tensor, "B H T w"],
    lse: Float[Tensor, "B H T"],
    mask: str,
) -> tuple[Float[Tensor, "B H T w"], Float[Tensor, "B G S w"], Float[Tensor, "B G S w"]]:
    """(dq, dk, dv), this block's share, from out and lse of all blocks."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    heads, key_heads, causal = q.shape[1], k.shape[1], mask == "causal"
    grad_out, out = grad_out.to(q.dtype), out.to(q.dtype)
    lse = lse.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    if causal:
        k, v = (repeat_heads(x, num_heads=heads) for x in (k, v))
        tensors = map(_unit_stride, (grad_out, q, k, v, out))
        dq, dk, dv = backward(*tensors, lse, NO_DROPOUT, causal)
        return dq, *(sum_over_groups(x, num_key_heads=key_heads) for x in (dk, dv))
    grad_rows, q_rows, out_rows = (_fold(x, key_heads=key_heads) for x in (grad_out, q, out))
    lse_rows = lse.reshape(*q_rows.shape[:3])
    dq, dk, dv = backward(*map(_unit_stride, (grad_rows, q_rows, k, v, out_rows)), lse_rows, NO_DROPOUT, causal)
    return dq.reshape(q.shape), dk, dv


def _fold(x_BHTw: Tensor, *, key_heads: int) -> Tensor:
    """[B, G, (H / G) T, w]: the query heads of one key head as rows of that head."""
    batch, _, _, width = x_BHTw.shape
    return x_BHTw.reshape(batch, key_heads, -1, width)
