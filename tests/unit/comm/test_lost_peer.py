"""Do all survivors learn soon who is lost, whomever they wait for; can they go on; does nothing hang at the end?"""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from gloo_ranks import RankPool
from thinwire.base.errors import ThinwireError
from thinwire.comm.collectives import barrier, gather_json, sum_in_rank_order
from thinwire.comm.group import Group, PeerLostError, TensorSpec, connect
from thinwire.comm.process import open_store

NUMBERS = (TensorSpec((4,), torch.float32),)
TIMEOUT_SECONDS = 2.0
Found = tuple[int, str]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks of its own, because one is killed, and how the others end is looked at."""
    with RankPool(4, timeout_seconds=30.0) as ranks:
        yield ranks


def meet(group: Group, *, port: int, name: str) -> Group:
    """The same ranks in another group, of a short patience."""
    store = open_store(host="127.0.0.1", port=port, serve=False, timeout_seconds=20.0)
    patience = {"timeout_seconds": TIMEOUT_SECONDS, "meet_seconds": 30.0}
    return connect(store, rank=group.rank, size=group.size, name=name, **patience)


def lose_one(group: Group, port: int, name: str, how: int) -> tuple[Found, int, float]:
    """Rank 3 gets a signal; rank 2 waits for it, 1 for 2, and 0 for 1. Who is lost, and what survivors then sum."""
    ring = meet(group, port=port, name=name)
    gather_json(ring, "all are here")
    pending = ring.receive(NUMBERS, source=(group.rank + 1) % 4, slot=0, tag="x")
    if group.rank != 3:
        ring.send([torch.ones(4)], to=3, slot=1, tag="x").wait()
    else:
        for peer in range(3):  # all have taken what rank 3 sent
            ring.receive(NUMBERS, source=peer, slot=1, tag="x").wait()
        os.kill(os.getpid(), how)
    try:
        pending.wait()
    except PeerLostError as error:
        found = (error.rank, error.reason)
    else:
        raise AssertionError("nobody sent anything")
    with pytest.raises(PeerLostError):  # the group stays lost
        ring.send([torch.ones(1)], to=(group.rank + 1) % 4, slot=1, tag="x")
    ring.close()
    if group.rank == 3:
        return found, 0, 0.0
    store = open_store(host="127.0.0.1", port=port, serve=False, timeout_seconds=20.0)
    survivors = connect(store, rank=group.rank, size=3, name=f"{name}, then", timeout_seconds=20.0)
    total = float(sum_in_rank_order(survivors, torch.ones(3), tag="x")[0])
    survivors.close()
    return found, survivors.size, total


def test_a_stopped_rank_is_named_by_all_and_learns_of_it_when_it_wakes(pool: RankPool) -> None:
    pool.start(lose_one, pool.port, "stopped", int(signal.SIGSTOP), ranks=4)
    results = pool.finish(range(3))
    os.kill(pool.processes[3].pid, signal.SIGCONT)
    ((rank, reason), _, _) = pool.finish([3])[0]
    for found, size, total in results:
        assert found == results[0][0]
        assert (found[0], size, total) == (3, 3, 3.0)
    assert rank == 3
    assert reason.startswith("the others went on without this process, rank 3: ")


def test_a_killed_rank_is_named_by_all_and_the_others_go_on(pool: RankPool) -> None:
    pool.start(lose_one, pool.port, "killed", int(signal.SIGKILL), ranks=4)
    assert pool.finish(range(3)) == [((3, "rank 3 closed the connection"), 3, 3.0)] * 3


def wait_in_a_row(group: Group, port: int) -> Found | None:
    """Rank 2 is busy with something else; 1 waits for it, and 0 for 1, since some time before."""
    row = meet(group, port=port, name="row")
    if group.rank == 2:
        barrier(group)
        return None
    pending = row.receive(NUMBERS, source=group.rank + 1, slot=0, tag="x")
    if group.rank == 1:
        time.sleep(0.7)
    with pytest.raises(PeerLostError) as caught:
        pending.wait()
    barrier(group)
    return caught.value.rank, caught.value.reason


def test_who_is_waited_for_but_waits_for_nobody_is_named(rank_pool: RankPool) -> None:
    found = (2, "rank 2 answers nothing, and rank 1 waits for it")
    assert rank_pool.run(wait_in_a_row, rank_pool.port, ranks=3) == [found, found, None]


def silent(group: Group, port: int) -> Found | None:
    """Rank 1 is well, but its code sends nothing."""
    pair = meet(group, port=port, name="silent")
    if group.rank == 1:
        barrier(group)
        return None
    with pytest.raises(PeerLostError) as caught:
        pair.receive(NUMBERS, source=1, slot=0, tag="x").wait()
    barrier(group)
    return caught.value.rank, caught.value.reason


def test_a_rank_that_sends_nothing_is_named_after_the_timeout(rank_pool: RankPool) -> None:
    assert rank_pool.run(silent, rank_pool.port, ranks=2)[0] == (1, "rank 1 answered nothing for 2 s")


def untaken(group: Group, port: int) -> Found | None:
    pair = meet(group, port=port, name="untaken")
    if group.rank == 1:
        barrier(group)
        return None
    with pytest.raises(PeerLostError) as caught:
        pair.send([torch.ones(4)], to=1, slot=0, tag="x").wait()
    barrier(group)
    return caught.value.rank, caught.value.reason


def test_a_send_that_nobody_takes_is_noticed_where_it_is_waited_for(rank_pool: RankPool) -> None:
    assert rank_pool.run(untaken, rank_pool.port, ranks=2)[0] == (1, "rank 1 answered nothing for 2 s")


def leave(group: Group, port: int) -> Found | None:
    """Rank 1 ends its group in an orderly way while rank 0 waits for a message from it."""
    pair = meet(group, port=port, name="left")
    if group.rank == 1:
        barrier(pair)
        pair.close()
        barrier(group)
        return None
    barrier(pair)
    with pytest.raises(PeerLostError) as caught:
        pair.receive(NUMBERS, source=1, slot=0, tag="x").wait()
    barrier(group)
    return caught.value.rank, caught.value.reason


def test_a_rank_that_left_is_lost_to_those_who_wait(rank_pool: RankPool) -> None:
    assert rank_pool.run(leave, rank_pool.port, ranks=2)[0] == (1, "rank 1 closed the connection")


def slow_but_alive(group: Group, port: int) -> float:
    """A send that the peer takes later than the timeout is no fault, as long as nobody waits."""
    pair = meet(group, port=port, name="slow")
    if group.rank == 0:
        pair.send([torch.ones(4)], to=1, slot=0, tag="x")
        barrier(group)
        return 4.0
    time.sleep(TIMEOUT_SECONDS + 0.5)
    barrier(group)
    return float(pair.receive(NUMBERS, source=0, slot=0, tag="x").wait()[0].sum())


def test_nobody_is_lost_while_nobody_waits(rank_pool: RankPool) -> None:
    assert rank_pool.run(slow_but_alive, rank_pool.port, ranks=2) == [4.0, 4.0]


def last_send(group: Group, port: int) -> float:
    """Closing finishes what was sent."""
    pair = meet(group, port=port, name="last")
    if group.rank == 0:
        pair.send([torch.ones(1 << 20)], to=1, slot=0, tag="x")
        pair.close()
        return 1.0
    time.sleep(0.5)
    return float(pair.receive([TensorSpec((1 << 20,), torch.float32)], source=0, slot=0, tag="x").wait()[0].mean())


def test_closing_finishes_what_was_sent(rank_pool: RankPool) -> None:
    assert rank_pool.run(last_send, rank_pool.port, ranks=2) == [1.0, 1.0]


def close_under_way(group: Group, port: int) -> Found:
    """One thread waits while another closes."""
    pair = meet(group, port=port, name="closed")
    pending = pair.receive(NUMBERS, source=1 - group.rank, slot=0, tag="x")
    threading.Timer(0.1, pair.close).start()
    with pytest.raises(PeerLostError) as caught:
        pending.wait()
    barrier(group)
    return caught.value.rank, caught.value.reason


def test_closing_ends_the_waits_of_other_threads(rank_pool: RankPool) -> None:
    for found in rank_pool.run(close_under_way, rank_pool.port, ranks=2):
        assert found in [
            (rank, reason)
            for rank in (0, 1)
            for reason in (f"this process, rank {rank}, has closed the group", f"rank {rank} closed the connection")
        ]


def generations(group: Group, port: int) -> tuple[int, int]:
    """Threads before and after many groups came and went."""
    before = threading.active_count()
    for index in range(10):
        other = meet(group, port=port, name=f"generation {index}")
        barrier(other)
        other.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    return before, threading.active_count()


def test_closed_groups_leave_no_threads(rank_pool: RankPool) -> None:
    for before, after in rank_pool.run(generations, rank_pool.port, ranks=2):
        assert after <= before


def test_a_lost_peer_is_no_bug() -> None:
    error = PeerLostError(2, "rank 2 closed the connection")
    assert isinstance(error, ThinwireError)
    assert str(error) == "rank 2 closed the connection"


LEFT_OVER: list[object] = []


def abandon(group: Group, port: int, keep: str) -> None:
    """Leave groups with unfinished receives and sends, some referred to, some not."""
    for index in range(3):
        left = meet(group, port=port, name=f"abandoned {keep} {index}")
        peer = (group.rank + 1) % group.size
        pending = left.receive(NUMBERS, source=peer, slot=0, tag="x")
        left.send([torch.zeros(1 << 20)], to=peer, slot=7, tag="x")
        if keep == "kept":
            LEFT_OVER.extend((left, pending))


def test_abandoned_groups_let_the_process_end(pool: RankPool) -> None:
    for keep in ("kept", "dropped"):
        pool.run(abandon, pool.port, keep, ranks=2)
    statuses = pool.close()
    assert (statuses[0], statuses[1]) == (0, 0)
