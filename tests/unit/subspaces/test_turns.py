"""Does one stream compute at a time, the first that is ready, and are gradients summed in their order?"""

import threading

import pytest
import torch

from thinwire.subspaces.turns import Turns, add_gradients, gradients_of, run_in_turns

SECONDS = 10.0


def test_one_computes_at_a_time_and_the_first_that_is_ready_goes_on() -> None:
    """Stream 0 waits for a message that stream 2 sends; the others go on meanwhile, and then it is its turn."""
    turns, message, seen = Turns(), threading.Event(), []
    computing = threading.Lock()

    def work(stream: int) -> int:
        assert computing.acquire(blocking=False)
        seen.append((stream, "begins"))
        computing.release()
        with turns.away():
            if stream == 0:
                assert message.wait(SECONDS)
        assert computing.acquire(blocking=False)
        if stream == 2:
            message.set()
        seen.append((stream, "ends"))
        computing.release()
        return 10 * stream

    assert run_in_turns(work, turns=turns, count=3) == [0, 10, 20]
    assert seen.index((0, "ends")) > seen.index((2, "begins"))
    assert sorted(seen) == [(stream, what) for stream in range(3) for what in ("begins", "ends")]


def test_the_first_of_the_waiting_goes_first() -> None:
    turns, order = Turns(), []
    with turns.of(5):
        threads = []
        for stream in (3, 1, 2):
            thread = threading.Thread(target=run_alone, args=(turns, stream, order))
            thread.start()
            threads.append(thread)
        while len(turns._ready) < 3:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join(SECONDS)
    assert order == [1, 2, 3]


def test_who_has_something_to_send_goes_before_who_only_computes() -> None:
    turns, order, messages = Turns(), [], [threading.Event() for _ in range(3)]

    def work(stream: int) -> None:
        with turns.away(then="send" if stream == 2 else "compute"):
            if stream:
                assert messages[stream].wait(SECONDS)
        order.append(stream)
        if stream == 0:
            for message in messages:
                message.set()
            while len(turns._ready) < 2:
                threading.Event().wait(0.001)

    run_in_turns(work, turns=turns, count=3)
    assert order == [0, 2, 1]


def test_between_two_blocks_a_stream_lets_a_sender_go_first() -> None:
    turns, order, message = Turns(), [], threading.Event()

    def work(stream: int) -> None:
        if stream == 1:
            with turns.away(then="send"):
                assert message.wait(SECONDS)
            order.append("sends")
            turns.between()
            order.append("computes")
            return
        with turns.away():
            pass
        order.append("first block")
        turns.between()
        message.set()
        while not turns._ready:
            threading.Event().wait(0.001)
        turns.between()
        order.append("second block")

    run_in_turns(work, turns=turns, count=2)
    assert order == ["first block", "sends", "second block", "computes"]


def test_outside_of_a_stream_nobody_goes_first() -> None:
    Turns().between()


def run_alone(turns: Turns, stream: int, order: list[int]) -> None:
    with turns.of(stream):
        order.append(stream)


def test_an_error_ends_its_stream_alone_and_is_raised() -> None:
    ended = []

    def work(stream: int) -> None:
        if stream == 1:
            raise KeyError("lost")
        ended.append(stream)

    with pytest.raises(KeyError, match="lost"):
        run_in_turns(work, turns=Turns(), count=3)
    assert sorted(ended) == [0, 2]


def test_a_wait_outside_of_any_stream_takes_no_turn() -> None:
    turns, order = Turns(), []
    with turns.away():
        run_alone(turns, 1, order)
    run_alone(turns, 0, order)
    assert order == [1, 0]


def test_gradients_are_added_in_the_order_of_the_streams() -> None:
    """1 and 2^-24 twice, in single precision: only from the left both small ones are lost."""
    small = 2.0**-24
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    parameters[1].grad = torch.tensor([5.0])
    one, none = torch.tensor([1.0]), None
    streams = [[one, one, none], [torch.tensor([small]), one, none], [torch.tensor([small]), none, none]]
    add_gradients(parameters, streams)
    assert [None if p.grad is None else float(p.grad) for p in parameters] == [1.0, 7.0, None]
    add_gradients(parameters, list(reversed(streams)))
    assert float(one) == 1.0


def test_parameters_that_play_no_part_have_no_gradient() -> None:
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    gradient, nothing = gradients_of((3 * used).sum(), [used, unused])
    assert gradient is not None
    assert gradient.tolist() == [3, 3]
    assert nothing is None
