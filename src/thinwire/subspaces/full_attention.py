"""How does one process attend to a whole sequence?  Plain causal attention: the stock model's, and the reference's."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from thinwire.subspaces.config import LlamaConfig
from thinwire.subspaces.llama import apply_rope, rope_angles


class KeysAndValues(NamedTuple):
    """[b, kv_heads, t, head_width] each; keys after RoPE."""

    key: Tensor
    value: Tensor


def split_heads(x: Float[Tensor, "b t columns"], *, head_width: int) -> Float[Tensor, "b heads t w"]:
    return x.unflatten(-1, (-1, head_width)).transpose(1, 2)


def join_heads(x: Float[Tensor, "b heads t w"]) -> Float[Tensor, "b t columns"]:
    return x.transpose(1, 2).flatten(2)


class FullAttention:
    """``Attend`` over all tokens at once; with a cache, over those of earlier calls as well.

    Args:
        config: head counts and RoPE.
        cache: layer -> keys and values so far; each call adds its own, so that text can be generated token by token.
    """

    def __init__(self, config: LlamaConfig, *, cache: dict[int, KeysAndValues] | None = None) -> None:
        self.config, self.cache = config, cache

    def begin(self, layer: int, stream: int, *, hidden: Tensor, key: Tensor, value: Tensor) -> KeysAndValues:  # noqa: ARG002
        before = None if self.cache is None else self.cache.get(layer)
        start = 0 if before is None else before.key.shape[2]
        cos, sin = self._angles(hidden, start)
        width = self.config.head_width
        keys = apply_rope(split_heads(functional.linear(hidden, key), head_width=width), cos, sin)
        found = KeysAndValues(keys, split_heads(functional.linear(hidden, value), head_width=width))
        if before is not None:
            found = KeysAndValues(*(torch.cat(pair, dim=2) for pair in zip(before, found, strict=True)))
        if self.cache is not None:
            self.cache[layer] = found
        return found

    def finish(self, begun: KeysAndValues, *, query: Tensor) -> Tensor:
        num_keys, num_queries = begun.key.shape[2], query.shape[1]
        cos, sin = self._angles(query, num_keys - num_queries)
        queries = apply_rope(split_heads(query, head_width=self.config.head_width), cos, sin)
        if num_queries == num_keys:
            mask, causal = None, True
        else:
            reach = torch.arange(num_keys - num_queries, num_keys, device=query.device)
            mask, causal = torch.arange(num_keys, device=query.device) <= reach[:, None], False
        out = functional.scaled_dot_product_attention(
            queries, begun.key, begun.value, attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        return join_heads(out)

    def _angles(self, rows: Tensor, start: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, start + rows.shape[1], device=rows.device)
        return rope_angles(positions, head_width=self.config.head_width, base=self.config.rope_base, dtype=rows.dtype)
