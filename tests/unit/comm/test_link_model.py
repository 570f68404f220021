"""Does a message take as long as the model says, at both ends, exactly, whatever order it is waited for?"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gloo_ranks import RankPool
from thinwire.base.errors import UserError
from thinwire.comm.collectives import barrier
from thinwire.comm.group import Group, connect
from thinwire.comm.link import HEADER_BYTES, Link, LinkEnd, Timeline

SECOND = 1_000_000_000
NODE = Link(bits_per_s=8000.0, delay_seconds=0.5)
"""1,000 bytes take one second, and arrive half a second later."""
PAIR = Link(bits_per_s=8000.0, per="pair", delay_seconds=0.5)


class Clock:
    """All ranks' time; sleeping moves it."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class Ranks:
    def __init__(self, link: Link) -> None:
        self.clock = Clock()
        self._ends = [LinkEnd(link, clock=self.clock, sleep=self.clock.sleep) for _ in range(3)]

    def depart(self, source: int, to: int) -> torch.Tensor:
        return self._ends[source].depart(1000, to=to)

    def arrive(self, rank: int, header: torch.Tensor, source: int) -> float:
        """When the message of 1,000 bytes is there."""
        self._ends[rank].arrive(header, num_bytes=1000, source=source)
        return self.clock.now / SECOND


def test_one_message_takes_its_bits_and_the_delay() -> None:
    ranks = Ranks(NODE)
    header = ranks.depart(0, 1)
    assert header.numel() == HEADER_BYTES
    assert ranks.arrive(1, header, 0) == 1.5


def test_what_is_computed_meanwhile_is_hidden() -> None:
    ranks = Ranks(NODE)
    header = ranks.depart(0, 1)
    ranks.clock.now = 4 * SECOND
    assert ranks.arrive(1, header, 0) == 4.0


def test_a_nodes_messages_share_its_link() -> None:
    ranks = Ranks(NODE)
    first, second = ranks.depart(0, 1), ranks.depart(0, 2)
    assert ranks.arrive(1, first, 0) == 1.5
    assert ranks.arrive(2, second, 0) == 2.5


def test_pairs_do_not_share() -> None:
    ranks = Ranks(PAIR)
    first, second, third = ranks.depart(0, 1), ranks.depart(0, 2), ranks.depart(0, 1)
    assert ranks.arrive(1, first, 0) == 1.5
    assert ranks.arrive(2, second, 0) == 1.5
    assert ranks.arrive(1, third, 0) == 2.5


def test_two_senders_share_the_receivers_link() -> None:
    ranks = Ranks(NODE)
    first, second = ranks.depart(0, 2), ranks.depart(1, 2)
    assert ranks.arrive(2, first, 0) == 1.5
    assert ranks.arrive(2, second, 1) == 2.5


def test_directions_do_not_share() -> None:
    ranks = Ranks(NODE)
    there, back = ranks.depart(0, 1), ranks.depart(1, 0)
    assert ranks.arrive(1, there, 0) == 1.5
    assert ranks.arrive(0, back, 1) == 1.5


def test_a_late_message_waited_for_first_does_not_hold_up_an_early_one() -> None:
    ranks = Ranks(NODE)
    early = ranks.depart(0, 2)
    ranks.clock.now = 3 * SECOND
    late = ranks.depart(1, 2)
    assert ranks.arrive(2, late, 1) == 4.5
    assert ranks.arrive(2, early, 0) == 4.5, "it was there long ago"


def test_an_idle_link_does_not_save_up() -> None:
    ranks = Ranks(NODE)
    ranks.arrive(1, ranks.depart(0, 1), 0)
    ranks.clock.now = 10 * SECOND
    assert ranks.arrive(1, ranks.depart(0, 1), 0) == 11.5


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=30))
def test_work_takes_the_earliest_free_time(jobs: list[tuple[int, int]]) -> None:
    timeline, busy = Timeline(), set[int]()
    for earliest, duration in jobs:
        end, left, tick = earliest, duration, earliest
        while left:  # tick by tick
            if tick not in busy:
                busy.add(tick)
                left, end = left - 1, tick + 1
            tick += 1
        assert timeline.fill(duration, earliest=earliest) == end


@pytest.mark.parametrize(("rate", "delay"), [(0.0, 0.0), (-1.0, 0.0), (1e6, -0.1), (float("nan"), 0.0)])
def test_an_impossible_link_is_refused(rate: float, delay: float) -> None:
    with pytest.raises(UserError, match="a link of"):
        Link(bits_per_s=rate, delay_seconds=delay)


def test_a_process_has_one_link_for_all_its_groups() -> None:
    """What leaves through one group waits for what left through another."""
    end = LinkEnd(Link(8e6), clock=lambda: 0, sleep=lambda _: None)
    first, second = (end.depart(1_000_000, to=peer).view(torch.int64).tolist() for peer in (1, 2))
    assert first == [0, 1_000_000_000]
    assert second == [1_000_000_000, 2_000_000_000]


def test_the_express_lane_does_not_wait_for_the_bulk_lane() -> None:
    """It shares the link with it: half the rate for what is small, and the bulk lane ends so much later."""
    end = LinkEnd(Link(8e6), clock=lambda: 0, sleep=lambda _: None)
    end.depart(1_000_000, to=1)
    express = end.depart(1_000, to=1, lane="express").view(torch.int64).tolist()
    assert express == [0, 2_000_000]
    bulk = end.depart(1_000_000, to=1).view(torch.int64).tolist()
    assert bulk == [1_001_000_000, 2_001_000_000]


def test_an_express_message_alone_has_the_whole_link() -> None:
    end = LinkEnd(Link(8e6), clock=lambda: 0, sleep=lambda _: None)
    assert end.depart(1_000, to=1, lane="express").view(torch.int64).tolist() == [0, 1_000_000]
    assert end.depart(1_000, to=1).view(torch.int64).tolist() == [1_000_000, 2_000_000]


def test_an_express_message_arrives_beside_a_busy_receiver() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    ends = [LinkEnd(Link(8e6), clock=lambda: round(now[0] * 1e9), sleep=sleep) for _ in range(3)]
    bulk, express = ends[0].depart(1_000_000, to=2), ends[1].depart(1_000, to=2, lane="express")
    ends[2]._ingress[-1] = Timeline()
    ends[2]._ingress[-1].fill(1_000_000_000, earliest=0)
    ends[2].arrive(express, num_bytes=1_000, source=1, lane="express")
    assert now[0] == pytest.approx(0.002)
    ends[2].arrive(bulk, num_bytes=1_000_000, source=0)
    assert now[0] == pytest.approx(2.001)


def both_groups(group: Group, port: int) -> bool:
    from thinwire.comm.process import open_store

    store = open_store(host="127.0.0.1", port=port, serve=False, timeout_seconds=30.0)
    end = LinkEnd(Link(8e9))
    groups = [
        connect(store, rank=group.rank, size=group.size, name=f"shared-link-{n}", timeout_seconds=30.0, link=end)
        for n in range(2)
    ]
    same = all(one._link is end for one in groups)
    for one in groups:
        barrier(one)
        one.close()
    return same


def test_groups_take_the_link_they_are_given(rank_pool: RankPool) -> None:
    assert rank_pool.run(both_groups, rank_pool.port, ranks=2) == [True, True]
