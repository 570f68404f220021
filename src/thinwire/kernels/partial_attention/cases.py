"""The shapes on which every implementation is compared with dense softmax in float64, and those a benchmark times."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from thinwire.base.seeds import numpy_generator


class AttentionCase(NamedTuple):
    """One comparison.

    Attributes:
        score_scale: standard deviation of the scores; hundreds saturate every softmax.
    """

    name: str
    mask: Literal["causal", "full"]
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    score_scale: float = 1.0


CASES = (
    AttentionCase("one token", "causal", 1, 1, 1, 1, 1, 8),
    AttentionCase("one query, many keys", "full", 2, 2, 2, 1, 37, 8),
    AttentionCase("many queries, one key", "full", 2, 2, 1, 37, 1, 8),
    AttentionCase("odd lengths", "causal", 2, 3, 3, 13, 13, 8),
    AttentionCase("grouped heads, causal", "causal", 2, 4, 2, 17, 17, 8),
    AttentionCase("grouped heads, full", "full", 2, 4, 2, 17, 9, 8),
    AttentionCase("one key head", "full", 1, 6, 1, 5, 31, 12),
    AttentionCase("odd width", "causal", 1, 2, 1, 19, 19, 5),
    AttentionCase("width one", "full", 1, 2, 2, 6, 7, 1),
    AttentionCase("longer than a block of the kernel, causal", "causal", 1, 2, 1, 701, 701, 16),
    AttentionCase("longer than a block of the kernel, full", "full", 1, 2, 1, 130, 1100, 16),
    AttentionCase("extreme scores, causal", "causal", 2, 4, 2, 40, 40, 8, score_scale=300.0),
    AttentionCase("extreme scores, full", "full", 2, 4, 2, 20, 40, 8, score_scale=300.0),
)

# Chunks of 256 to 1024 tokens of a small Llama: the local block and one that came over the wire.
BENCH_CASES = (
    AttentionCase("causal, 256 tokens, width 32", "causal", 4, 8, 4, 256, 256, 32),
    AttentionCase("full, 256 x 256, width 32", "full", 4, 8, 4, 256, 256, 32),
    AttentionCase("causal, 512 tokens, width 64", "causal", 2, 8, 4, 512, 512, 64),
    AttentionCase("full, 512 x 512, width 64", "full", 2, 8, 4, 512, 512, 64),
    AttentionCase("causal, 1024 tokens, width 64", "causal", 1, 8, 4, 1024, 1024, 64),
    AttentionCase("full, 1024 x 1024, width 64", "full", 1, 8, 4, 1024, 1024, 64),
)


class AttentionInputs(NamedTuple):
    """q and grad_out [B, H, T, w], k and v [B, G, S, w]."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor


def inputs_for(case: AttentionCase, *, dtype: torch.dtype) -> AttentionInputs:
    """The case's numbers, the same on every machine, first rounded to bfloat16 so that every dtype holds the same."""
    generator = numpy_generator(0, f"case {case.name}")

    def draw(heads: int, tokens: int, scale: float = 1.0) -> Tensor:
        values = scale * generator.standard_normal((case.batch, heads, tokens, case.width))
        return torch.from_numpy(values).to(torch.bfloat16).to(dtype)

    q = draw(case.heads, case.queries, case.score_scale)
    k, v = draw(case.key_heads, case.keys), draw(case.key_heads, case.keys)
    return AttentionInputs(q, k, v, draw(case.heads, case.queries))
