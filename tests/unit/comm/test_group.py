"""Do messages arrive whole, in order in their slot, and are their bytes counted where they are sent?"""

import threading
import time
from typing import Any

import pytest
import torch

from gloo_ranks import RankPool, RanksFailedError
from thinwire.base.errors import RunFailedError, UserError
from thinwire.comm.collectives import barrier, sum_in_rank_order
from thinwire.comm.group import Group, TensorSpec, alone, connect, spec_of
from thinwire.comm.ledger import LedgerRow
from thinwire.comm.link import Link
from thinwire.comm.process import open_store

NUMBERS = (TensorSpec((4,), torch.float32),)


def message(group: Group) -> list[torch.Tensor]:
    """Of mixed types, one of them misaligned in the message."""
    return [torch.arange(3, dtype=torch.bfloat16) + group.rank, torch.full((2, 2), group.rank, dtype=torch.float64)]


def exchange(group: Group) -> tuple[list[Any], list[LedgerRow]]:
    """Everybody sends to everybody, and waits in another order than messages were sent."""
    group.ledger.forget_steps(before=1000)
    group.step = 1000
    peers = [peer for peer in range(group.size) if peer != group.rank]
    specs = [spec_of(tensor) for tensor in message(group)]
    pending = {peer: group.receive(specs, source=peer, slot=3, tag="kv-forward") for peer in peers}
    for peer in peers:
        group.send(message(group), to=peer, slot=3, tag="kv-forward").wait()
    received = [pending[peer].wait() for peer in reversed(peers)]
    return received, [row for row in group.ledger.rows() if row.step == 1000]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_message_arrives_whole_and_is_counted_once(rank_pool: RankPool, ranks: int) -> None:
    for rank, (received, rows) in enumerate(rank_pool.run(exchange, ranks=ranks)):
        peers = [peer for peer in range(ranks) if peer != rank]
        for peer, (small, large) in zip(reversed(peers), received, strict=True):
            assert torch.equal(small, torch.arange(3, dtype=torch.bfloat16) + peer)
            assert torch.equal(large, torch.full((2, 2), peer, dtype=torch.float64))
        expected = [LedgerRow("send", "kv-forward", 1000, peer, 3 * 2 + 4 * 8, 1) for peer in peers]
        assert [row for row in rows if row.tag == "kv-forward"] == expected


def slots(group: Group) -> list[float]:
    peer = 1 - group.rank
    pending = {(slot, i): group.receive(NUMBERS, source=peer, slot=slot, tag="x") for slot in (1, 2) for i in (0, 1)}
    for slot in (2, 1):
        for i in (0, 1):
            group.send([torch.full((4,), 10.0 * slot + i)], to=peer, slot=slot, tag="x")
    return [float(pending[key].wait()[0][0]) for key in sorted(pending, reverse=True)]


def test_slots_are_queues_of_their_own(rank_pool: RankPool) -> None:
    assert rank_pool.run(slots, ranks=2) == [[21.0, 20.0, 11.0, 10.0]] * 2


def sent_then_changed(group: Group) -> float:
    if group.rank == 1:
        barrier(group)
        return float(group.receive(NUMBERS, source=0, slot=0, tag="x").wait()[0].sum())
    numbers = torch.ones(4)
    group.send([numbers], to=1, slot=0, tag="x")
    numbers.zero_()
    del numbers
    barrier(group)
    return 4.0


def test_a_send_needs_no_wait_and_keeps_what_it_sent(rank_pool: RankPool) -> None:
    assert rank_pool.run(sent_then_changed, ranks=2) == [4.0, 4.0]


def empty(group: Group) -> tuple[tuple[int, ...], int]:
    peer, before = 1 - group.rank, group.ledger.total()
    pending = group.receive([TensorSpec((0, 3), torch.float32)], source=peer, slot=0, tag="x")
    assert group.send([torch.empty(0, 3)], to=peer, slot=0, tag="x").wait() == ()
    return tuple(pending.wait()[0].shape), group.ledger.total() - before


def test_no_bytes_do_not_travel(rank_pool: RankPool) -> None:
    assert rank_pool.run(empty, ranks=2) == [((0, 3), 0)] * 2


def twice(group: Group) -> bool:
    peer = 1 - group.rank
    pending = group.receive(NUMBERS, source=peer, slot=0, tag="x")
    group.send([torch.ones(4)], to=peer, slot=0, tag="x")
    return bool(torch.equal(pending.wait()[0], pending.wait()[0]))


def test_a_receive_may_be_waited_for_again(rank_pool: RankPool) -> None:
    assert rank_pool.run(twice, ranks=2) == [True, True]


def in_two_lanes(group: Group) -> list[float]:
    """The same slot in both lanes, waited for in the other order than sent."""
    peer = 1 - group.rank
    bulk = group.receive(NUMBERS, source=peer, slot=0, tag="x")
    express = group.receive(NUMBERS, source=peer, slot=0, tag="x", lane="express")
    group.send([torch.full((4,), 1.0)], to=peer, slot=0, tag="x")
    group.send([torch.full((4,), 2.0)], to=peer, slot=0, tag="x", lane="express")
    return [float(pending.wait()[0][0]) for pending in (express, bulk)]


def test_lanes_have_connections_of_their_own(rank_pool: RankPool) -> None:
    assert rank_pool.run(in_two_lanes, ranks=2) == [[2.0, 1.0]] * 2


def beside(group: Group, port: int) -> list[float]:
    """Sums in three threads: one has a group of its own, two share a group in different slots."""
    store = open_store(host="127.0.0.1", port=port, serve=False, timeout_seconds=20)
    other = connect(store, rank=group.rank, size=group.size, name=f"beside-{group.size}", timeout_seconds=20)
    sums: set[float] = set()

    def work(used: Group, number: float, slot: int) -> None:
        for _ in range(20):
            sums.update(sum_in_rank_order(used, torch.full((5,), number), tag="x", slot=slot).tolist())

    jobs = ((other, 1.0, 9), (group, 2.0, 9), (group, 3.0, 5))
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    work(group, 4.0, 6)
    for thread in threads:
        thread.join()
    other.close()
    return sorted(sums)


def test_threads_use_groups_and_slots_at_the_same_time(rank_pool: RankPool) -> None:
    assert rank_pool.run(beside, rank_pool.port, ranks=3) == [[3.0, 6.0, 9.0, 12.0]] * 3


def wrong(group: Group, peer: int) -> None:
    group.send([torch.ones(1)], to=peer, slot=0, tag="x")


@pytest.mark.parametrize("peer", [-1, 0, 2])
def test_a_rank_is_no_peer_of_itself_nor_of_strangers(rank_pool: RankPool, peer: int) -> None:
    with pytest.raises(RanksFailedError, match=f"rank {peer} is no peer of rank 0 among 2"):
        rank_pool.run(wrong, peer, ranks=2)


def test_a_group_of_one_has_nobody_to_talk_to() -> None:
    group = alone()
    barrier(group)
    with pytest.raises(ValueError, match="a group of one"):
        group.send([torch.ones(1)], to=0, slot=0, tag="x")
    group.close()
    group.close()


def test_ranks_that_do_not_come_are_missed() -> None:
    store = open_store(host="127.0.0.1", port=0, serve=True, timeout_seconds=5.0)
    with pytest.raises(RunFailedError, match="the 2 ranks did not meet within 1 s"):
        connect(store, rank=0, size=2, name="early", timeout_seconds=1.0)


def linked(group: Group, port: int) -> tuple[float, int]:
    """One message of 100,000 bytes over 8 Mbit/s, behind 0.05 s of work; the seconds it took, and the bytes counted."""
    store = open_store(host="127.0.0.1", port=port, serve=False, timeout_seconds=20)
    link = Link(bits_per_s=8e6, delay_seconds=0.02)
    slow = connect(store, rank=group.rank, size=2, name="linked", timeout_seconds=20, link=link)
    peer, specs = 1 - group.rank, [TensorSpec((100_000,), torch.uint8)]
    pending = slow.receive(specs, source=peer, slot=0, tag="x")
    barrier(group)
    start = time.monotonic()
    slow.send([torch.full((100_000,), 7, dtype=torch.uint8)], to=peer, slot=0, tag="x")
    time.sleep(0.05)
    (numbers,) = pending.wait()
    seconds = time.monotonic() - start
    assert bool((numbers == 7).all())
    slow.close()
    return seconds, slow.ledger.total()


def test_a_modelled_link_holds_a_message_back(rank_pool: RankPool) -> None:
    results = rank_pool.run(linked, rank_pool.port, ranks=2)
    assert [num_bytes for _, num_bytes in results] == [100_000, 100_000]
    # A rank's own clock may start just after the peer sent; the later of both cannot have been faster than the link.
    assert max(seconds for seconds, _ in results) >= 0.1 + 0.02


def test_a_link_is_no_matter_for_nccl() -> None:
    store = open_store(host="127.0.0.1", port=0, serve=True, timeout_seconds=5.0)
    with pytest.raises(UserError, match="gloo backend alone"):
        connect(store, rank=0, size=2, name="n", timeout_seconds=1.0, link=Link(bits_per_s=1e6), backend="nccl")
