"""Do all ranks get the same bits, those of a sum in rank order, for the bytes that the formula says?"""

import json
import math
from typing import Any

import pytest
import torch

from gloo_ranks import RankPool
from thinwire.comm.collectives import (
    accumulator,
    barrier,
    broadcast,
    gather_json,
    peers_after,
    piece_lengths,
    sum_bytes,
    sum_in_rank_order,
)
from thinwire.comm.group import Group, alone

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


def share(rank: int, *, length: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings: numbers of very different sizes, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randn(length, generator=generator, dtype=torch.float64)
    return (numbers * 10.0 ** torch.randint(0, 8, (length,), generator=generator)).to(dtype)


def summed(group: Group, length: int, dtype: torch.dtype, wire: torch.dtype | None) -> tuple[torch.Tensor, int]:
    before = group.ledger.total(tag="sync")
    own = share(group.rank, length=length, dtype=dtype)
    total = sum_in_rank_order(group, own, wire=wire, tag="sync")
    assert torch.equal(own, share(group.rank, length=length, dtype=dtype)), "the argument stays as it was"
    return total, group.ledger.total(tag="sync") - before


def reference(ranks: int, *, length: int, dtype: torch.dtype, wire: torch.dtype) -> torch.Tensor:
    total = torch.zeros(length, dtype=accumulator(dtype))
    for rank in range(ranks):
        total += share(rank, length=length, dtype=dtype).to(wire).to(total.dtype)
    return total.to(wire).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 3, 1000])
def test_a_sum_is_the_same_bits_everywhere(rank_pool: RankPool, ranks: int, length: int, dtype: torch.dtype) -> None:
    results = rank_pool.run(summed, length, dtype, None, ranks=ranks)
    expected = reference(ranks, length=length, dtype=dtype, wire=dtype)
    for total, _ in results:
        assert total.dtype == dtype
        assert torch.equal(total, expected)
    assert sum(num_bytes for _, num_bytes in results) == sum_bytes(length, size=ranks, wire=dtype)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("wire", [torch.bfloat16, torch.float32], ids=str)
def test_numbers_may_travel_in_another_type(rank_pool: RankPool, ranks: int, wire: torch.dtype) -> None:
    results = rank_pool.run(summed, 101, torch.float32, wire, ranks=ranks)
    expected = reference(ranks, length=101, dtype=torch.float32, wire=wire)
    assert all(torch.equal(total, expected) for total, _ in results)
    assert sum(num_bytes for _, num_bytes in results) == sum_bytes(101, size=ranks, wire=wire)


def test_the_order_of_a_sum_shows_in_these_numbers() -> None:
    """Otherwise the tests above could not fail."""
    parts = [share(rank, length=1000, dtype=torch.float32) for rank in range(3)]
    assert not torch.equal(parts[0] + parts[1] + parts[2], parts[2] + parts[1] + parts[0])


def test_one_rank_sums_nothing() -> None:
    numbers = torch.tensor([1.2345, 2.0])
    total = sum_in_rank_order(alone(), numbers, wire=torch.bfloat16, tag="sync")
    assert torch.equal(total, numbers)
    assert total.data_ptr() != numbers.data_ptr()


def spread(group: Group, root: int) -> list[torch.Tensor]:
    tensors = [torch.full((2, 3), float(group.rank), dtype=torch.float64), torch.tensor([group.rank])]
    return broadcast(group, tensors, root=root, tag="bases")


@pytest.mark.parametrize("root", [0, 2])
def test_a_broadcast_reaches_all(rank_pool: RankPool, root: int) -> None:
    for matrix, vector in rank_pool.run(spread, root, ranks=3):
        assert torch.equal(matrix, torch.full((2, 3), float(root), dtype=torch.float64))
        assert torch.equal(vector, torch.tensor([root]))


def told(group: Group) -> list[Any]:
    barrier(group)
    return gather_json(group, {"rank": group.rank, "text": "ä" * group.rank, "third": 1 / 3, "none": None})


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_values_of_all_ranks_are_known_to_all(rank_pool: RankPool, ranks: int) -> None:
    for values in rank_pool.run(told, ranks=ranks):
        assert values == [{"rank": r, "text": "ä" * r, "third": 1 / 3, "none": None} for r in range(ranks)]


def control_bytes(group: Group, value: Any) -> int:
    before = group.ledger.total(tag="control")
    gather_json(group, value)
    return group.ledger.total(tag="control") - before


def test_control_messages_are_counted(rank_pool: RankPool) -> None:
    value = {"loss": 1.25}
    assert rank_pool.run(control_bytes, value, ranks=3) == [2 * (8 + len(json.dumps(value)))] * 3


def order(group: Group) -> list[int]:
    return peers_after(group)


def test_ranks_send_to_different_receivers_at_a_time(rank_pool: RankPool) -> None:
    orders = rank_pool.run(order, ranks=4)
    assert orders[1] == [2, 3, 0]
    for receivers in zip(*orders, strict=True):
        assert sorted(receivers) == [0, 1, 2, 3]


@pytest.mark.parametrize(("length", "size"), [(0, 3), (2, 3), (10, 4), (12, 4)])
def test_pieces_are_nearly_equal(length: int, size: int) -> None:
    pieces = piece_lengths(length, size=size)
    assert (len(pieces), sum(pieces)) == (size, length)
    assert max(pieces) - min(pieces) <= 1
    assert max(pieces) == math.ceil(length / size)
