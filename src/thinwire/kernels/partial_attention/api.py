"""Attention over one block of keys, merged exactly with other blocks; what context parallelism needs of attention."""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.kernels.partial_attention import cpu_impl, reference

Mask = Literal["causal", "full"]
"""``causal``: query t sees keys 0..t of the block, equally many of both; ``full``: every query sees every key."""
IMPLEMENTATIONS = ("flash", "reference")


class Partial(NamedTuple):
    """Attention over the keys seen so far.

    Attributes:
        out: [B, H, T, w], normalised over these keys.
        lse: [B, H, T], log of the sum of exp(scores) in nats; float32, or float64 for float64; -inf before any key.
    """

    out: Float[Tensor, "B H T w"]
    lse: Float[Tensor, "B H T"]


class Gradients(NamedTuple):
    """dq [B, H, T, w], dk and dv [B, G, S, w]: one block's share."""

    dq: Float[Tensor, "B H T w"]
    dk: Float[Tensor, "B G S w"]
    dv: Float[Tensor, "B G S w"]


def choose(name: str, *, like: Tensor) -> Literal["flash", "reference"]:
    """The implementation for tensors like ``like``: ``auto`` takes ``flash`` wherever it can run.

    Raises:
        UserError: where the name is unknown or the named implementation cannot run on such tensors.
    """
    able = like.device.type == "cpu" and like.dtype in cpu_impl.DTYPES
    if name == "auto":
        return "flash" if able else "reference"
    if name == "flash" and not able:
        raise UserError(
            f"the flash kernels compute in floating point on the CPU, not {like.dtype} on {like.device}",
            where="attention implementation = flash",
            fix="use reference, or auto",
        )
    if name == "flash":
        return "flash"
    if name == "reference":
        return "reference"
    raise UserError(
        f"there is no implementation '{name}'",
        where="attention implementation",
        fix=f"one of auto, {', '.join(IMPLEMENTATIONS)}",
    )


def partial_attention(
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B G S w"],
    v: Float[Tensor, "B G S w"],
    *,
    mask: Mask,
    implementation: str = "auto",
) -> Partial:
    """Softmax attention of the queries over this block alone, scores scaled by 1 / sqrt(w).

    Args:
        q: T queries of H heads.
        k: S keys of G heads; query head h reads key head h // (H / G).
        v: their values.
        mask: with ``causal`` T = S.
        implementation: ``auto``, ``flash`` (CPU) or ``reference`` (PyTorch, any device and dtype).

    Not differentiable by autograd: the backward needs what all blocks gave, see ``partial_attention_backward``.

    Raises:
        UserError: where the named implementation cannot run on such tensors.
        ValueError: where the shapes do not fit the mask or each other, or there is no such mask.
    """
    _check(q, k, v, mask=mask)
    module = cpu_impl if choose(implementation, like=q) == "flash" else reference
    with torch.no_grad():
        return Partial(*module.partial_attention(q, k, v, mask=mask))


def partial_attention_backward(
    grad_out: Float[Tensor, "B H T w"],
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B G S w"],
    v: Float[Tensor, "B G S w"],
    *,
    out: Float[Tensor, "B H T w"],
    lse: Float[Tensor, "B H T"],
    mask: Mask,
    implementation: str = "auto",
) -> Gradients:
    """This block's exact share of the gradients of attention over all blocks.

    Args:
        grad_out: gradient of the merged output.
        q: the queries, as in the forward.
        k: this block's keys.
        v: this block's values.
        out: merged over all blocks.
        lse: merged over all blocks.
        mask: this block's mask, as in the forward.
        implementation: as in the forward.

    ``dq`` is to be added over blocks; ``dk`` and ``dv`` over the query blocks that read these keys.

    Raises:
        UserError: where the named implementation cannot run on such tensors.
        ValueError: where the shapes do not fit the mask or each other, or there is no such mask.
    """
    _check(q, k, v, mask=mask)
    if grad_out.shape != q.shape or out.shape != q.shape or lse.shape != q.shape[:3]:
        raise ValueError(
            f"the output and its gradient are as the queries, {list(q.shape)}, and lse as they without the last axis, "
            f"not {list(out.shape)}, {list(grad_out.shape)} and {list(lse.shape)}"
        )
    module = cpu_impl if choose(implementation, like=q) == "flash" else reference
    with torch.no_grad():
        return Gradients(*module.partial_attention_backward(grad_out, q, k, v, out=out, lse=lse, mask=mask))


def merge(into: Partial, block: Partial) -> Partial:
    """Attention over the keys of both: each output weighted by its share of exp(lse).

    A side without keys (lse = -inf) leaves the other as it is, to the bit; of two such sides the first is returned.
    Computed in the precision of lse, returned in the dtype of ``into.out``.
    """
    share = torch.sigmoid(block.lse - into.lse).nan_to_num(nan=0.0)  # -inf - -inf
    working = into.lse.dtype
    out = torch.lerp(into.out.to(working), block.out.to(working), share[..., None])
    return Partial(out.to(into.out.dtype), torch.logaddexp(into.lse, block.lse))


def _check(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask) -> None:
    if mask not in get_args(Mask):
        raise ValueError(f"a mask is one of {', '.join(get_args(Mask))}, not {mask!r}")
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(
            "queries are [B, H, T, w], keys and values both [B, G, S, w], not "
            f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads equally")
    if k.shape[2] == 0 or q.shape[2] == 0:
        raise ValueError("a block without queries or keys needs no attention")
    if mask == "causal" and q.shape[2] != k.shape[2]:
        raise ValueError(f"a causal block has equally many queries and keys, not {q.shape[2]} and {k.shape[2]}")
