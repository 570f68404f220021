"""What is attention over one block of keys, and which part of the gradient belongs to that block?

Definition in PyTorch, any device and dtype: S = q k^T / sqrt(w), lse = log sum exp S, out = exp(S - lse) v.  With lse
and out of *all* blocks the softmax of the whole row is P = exp(S - lse), so that a block's share of every gradient
needs nothing else of the other blocks (Dao et al., FlashAttention, 2022, appendix B; Liu et al., Ring Attention, 2023).
Half-precision inputs are computed in float32.  Legend: B batch, H query heads, G key heads, T queries, S keys, w width.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

SCORES_PER_PIECE_BYTES = 32 * 2**20


def repeat_heads(x_BGSw: Tensor, *, num_heads: int) -> Tensor:
    """[B, H, S, w]: every key head once for each of the H / G query heads that read it."""
    group = num_heads // x_BGSw.shape[1]
    return x_BGSw if group == 1 else x_BGSw.repeat_interleave(group, dim=1)


def sum_over_groups(x_BHSw: Tensor, *, num_key_heads: int) -> Tensor:
    """[B, G, S, w]: the transpose of ``repeat_heads``."""
    if x_BHSw.shape[1] == num_key_heads:
        return x_BHSw
    return x_BHSw.unflatten(1, (num_key_heads, -1)).sum(dim=2)


def _row_pieces(q_BHTw: Tensor, k_BHSw: Tensor) -> Iterator[slice]:
    """Queries in pieces, so that the scores of one piece stay within ``SCORES_PER_PIECE_BYTES``."""
    batch, heads, queries, _ = q_BHTw.shape
    row_bytes = batch * heads * max(1, k_BHSw.shape[2]) * q_BHTw.element_size()
    step = max(1, SCORES_PER_PIECE_BYTES // row_bytes)
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))


def _scores(q_BHtw: Tensor, k_BHSw: Tensor, *, first_row: int, mask: str) -> Tensor:
    """S of rows first_row, first_row + 1, ...; minus infinity where a causal query may not look."""
    scores = q_BHtw @ k_BHSw.transpose(-1, -2) / q_BHtw.shape[-1] ** 0.5
    if mask == "causal":
        rows = torch.arange(first_row, first_row + q_BHtw.shape[2], device=q_BHtw.device)
        keys = torch.arange(k_BHSw.shape[2], device=q_BHtw.device)
        scores = scores.masked_fill(keys > rows[:, None], -torch.inf)
    return scores


def _working(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def partial_attention(
    q: Float[Tensor, "B H T w"], k: Float[Tensor, "B G S w"], v: Float[Tensor, "B G S w"], *, mask: str
) -> tuple[Float[Tensor, "B H T w"], Float[Tensor, "B H T"]]:
    """(out, lse); a query without any key has out = 0 and lse = -inf."""
    heads = q.shape[1]
    q_BHTw = _working(q)
    k_BHSw, v_BHSw = (_working(repeat_heads(x, num_heads=heads)) for x in (k, v))
    out_BHTw, lse_BHT = torch.empty_like(q_BHTw), q_BHTw.new_empty(q.shape[:3])
    for rows in _row_pieces(q_BHTw, k_BHSw):
        scores = _scores(q_BHTw[:, :, rows], k_BHSw, first_row=rows.start, mask=mask)
        lse = torch.logsumexp(scores, dim=-1)
        out_BHTw[:, :, rows] = torch.exp(scores - lse[..., None]) @ v_BHSw
        lse_BHT[:, :, rows] = lse
    return out_BHTw.to(q.dtype), lse_BHT


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
    heads, key_heads, scale = q.shape[1], k.shape[1], q.shape[-1] ** -0.5
    q_BHTw, grad_BHTw, out_BHTw, lse_BHT = (_working(x) for x in (q, grad_out, out, lse))
    k_BHSw, v_BHSw = (_working(repeat_heads(x, num_heads=heads)) for x in (k, v))
    dq_BHTw, dk_BHSw, dv_BHSw = torch.empty_like(q_BHTw), torch.zeros_like(k_BHSw), torch.zeros_like(v_BHSw)
    for rows in _row_pieces(q_BHTw, k_BHSw):
        grad, queries = grad_BHTw[:, :, rows], q_BHTw[:, :, rows]
        p = torch.exp(_scores(queries, k_BHSw, first_row=rows.start, mask=mask) - lse_BHT[:, :, rows, None])
        mean_dp = (grad * out_BHTw[:, :, rows]).sum(dim=-1, keepdim=True)  # sum_s P dP over all blocks' keys
        ds = p * (grad @ v_BHSw.transpose(-1, -2) - mean_dp) * scale
        dq_BHTw[:, :, rows] = ds @ k_BHSw
        dk_BHSw += ds.transpose(-1, -2) @ queries
        dv_BHSw += p.transpose(-1, -2) @ grad
    dk, dv = (sum_over_groups(x, num_key_heads=key_heads) for x in (dk_BHSw, dv_BHSw))
    return dq_BHTw.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
