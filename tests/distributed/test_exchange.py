"""Are gradients that come back summed as finely as they should be, in the order of the ranks?"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gloo_ranks import RankPool
from thinwire.comm.group import Group
from thinwire.subspaces.codecs.base import Coded
from thinwire.subspaces.codecs.plain import PlainCodec
from thinwire.subspaces.exchange import Angles, CodecPair, Exchange, KeyValue, Place
from thinwire.subspaces.sequence import make_layout

RANKS, TOKENS, WIDTH = 4, 3, 2
SMALL = 2.0**-9
"""A quarter of the distance from 1 to the next number of bfloat16: three of them count together, none alone."""


class Type(NamedTuple):
    """How a rank computes and how numbers travel; what the first rank's own gradient is, and the sum it must find."""

    dtype: torch.dtype
    wire: torch.dtype
    own: float
    total: float


HALF = Type(torch.bfloat16, torch.bfloat16, 1.0, 1.0 + 2.0**-7)
HALF_WIRE = Type(torch.float32, torch.bfloat16, 1.0 + 2.0**-20, 1.0 + 3 * SMALL + 2.0**-20)
SINGLE = Type(torch.float32, torch.float32, 1.0 + 2.0**-20, 1.0 + 3 * SMALL + 2.0**-20)
DOUBLE = Type(torch.float64, torch.float64, 1.0 + 2.0**-40, 1.0 + 3 * SMALL + 2.0**-40)
SINGLE_WIRE = Type(torch.float64, torch.float32, 1.0 + 2.0**-40, 1.0 + 3 * SMALL + 2.0**-40)
NAMES = ["half", "single over half", "single", "double", "double over single"]


def summed_on_rank(group: Group, kind: Type) -> list[Tensor]:
    """Chunk c lies on rank c; each later rank returns a small gradient for it. The sum for keys, then for values."""
    layout = make_layout(num_tokens=RANKS * TOKENS, num_chunks=RANKS, num_ranks=RANKS, order="contiguous")
    place = Place(group, layout, 1, 1, kind.dtype, torch.device("cpu"))
    codecs = CodecPair(*(PlainCodec(width=WIDTH, wire=kind.wire) for _ in range(2)))
    like = torch.ones(1, TOKENS, WIDTH, dtype=kind.dtype)
    exchange = Exchange(
        place, codecs, Angles(like, like), 0, {}, {group.rank: KeyValue(Coded((like,)), Coded((like,)))}
    )
    exchange.expect_gradients()
    for owner in exchange.others():
        received = exchange.received_from(owner)
        exchange.return_gradients(owner, dict.fromkeys(received, (SMALL * like, -SMALL * like)))
    own = torch.full_like(like, kind.own, dtype=torch.float64).to(kind.dtype)
    return exchange.sum_gradients([own, -own])


@pytest.mark.parametrize("kind", [HALF, HALF_WIRE, SINGLE, DOUBLE, SINGLE_WIRE], ids=NAMES)
def test_returned_gradients_are_summed_in_single_precision_at_least(kind: Type, pool: RankPool) -> None:
    """Summed in the wire's type, or rounded on the way, the small ones would be lost, or the own one's end."""
    key, value = pool.run(summed_on_rank, kind, ranks=RANKS)[0]
    assert key.dtype == value.dtype == kind.dtype
    assert torch.equal(key.double(), torch.full((1, TOKENS, WIDTH), kind.total, dtype=torch.float64))
    assert torch.equal(value, -key)
