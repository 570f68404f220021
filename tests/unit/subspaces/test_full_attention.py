"""Does attention over a whole sequence see the past, all of it, and nothing else?"""

import math

import pytest
import torch
from torch import Tensor

from thinwire.subspaces.config import LlamaConfig
from thinwire.subspaces.full_attention import FullAttention, join_heads, split_heads
from thinwire.subspaces.llama import apply_rope, rope_angles

CONFIG = LlamaConfig(layers=1, width=10, heads=4, kv_heads=2, head_width=6, hidden=8, rope_base=100.0)


def inputs(tokens: int = 7) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return {"hidden": drawn(2, tokens, 10), "key": drawn(12, 10), "value": drawn(12, 10), "query": drawn(2, tokens, 24)}


def attended(given: dict[str, Tensor], attend: FullAttention) -> Tensor:
    begun = attend.begin(0, 0, hidden=given["hidden"], key=given["key"], value=given["value"])
    return attend.finish(begun, query=given["query"])


def test_a_masked_softmax_of_all_scores() -> None:
    given = inputs()
    angles = rope_angles(torch.arange(7), head_width=6, base=100.0, dtype=torch.float64)
    query = apply_rope(split_heads(given["query"], head_width=6), *angles)
    key = apply_rope(split_heads(given["hidden"] @ given["key"].T, head_width=6), *angles)
    value = split_heads(given["hidden"] @ given["value"].T, head_width=6)
    key, value = (x.repeat_interleave(2, dim=1) for x in (key, value))
    scores = query @ key.mT / math.sqrt(6) + torch.full((7, 7), -math.inf, dtype=torch.float64).triu(1)
    wanted = join_heads(scores.softmax(-1) @ value)
    torch.testing.assert_close(attended(given, FullAttention(CONFIG)), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changed", [0, 3, 6])
def test_a_token_moves_itself_and_what_follows(changed: int) -> None:
    given = inputs()
    before = attended(given, FullAttention(CONFIG))
    other = {**given, "hidden": given["hidden"].clone()}
    other["hidden"][:, changed] += 1.0
    moved = (attended(other, FullAttention(CONFIG)) - before).abs().amax((0, 2))
    assert not moved[:changed].any()
    assert float(moved[changed:].min()) > 1e-6


@pytest.mark.parametrize("pieces", [(1,) * 7, (3, 4), (6, 1), (2, 2, 3)], ids=str)
def test_a_cache_continues_where_it_stopped(pieces: tuple[int, ...]) -> None:
    given = inputs()
    attend, parts, first = FullAttention(CONFIG, cache={}), [], 0
    for count in pieces:
        rows = slice(first, first + count)
        parts.append(attended({**given, "hidden": given["hidden"][:, rows], "query": given["query"][:, rows]}, attend))
        first += count
    whole = attended(given, FullAttention(CONFIG))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)


def test_heads_split_and_join() -> None:
    x = torch.arange(48.0).view(2, 4, 6)
    assert split_heads(x, head_width=3).shape == (2, 2, 4, 3)
    assert torch.equal(split_heads(x, head_width=3)[1, 1, 2], x[1, 2, 3:])
    assert torch.equal(join_heads(split_heads(x, head_width=3)), x)
