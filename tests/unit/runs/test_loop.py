"""Does the loop make each update once, in order, and stop only between updates?"""

import pytest

from thinwire.base.errors import InterruptedRunError
from thinwire.runs.loop import run_loop

State = tuple[str, ...]


def step(state: State, update: int) -> State:
    return (*state, f"step {update}")


def first_hook(state: State, *, update: int) -> State:
    return (*state, f"first {update}")


def second_hook(state: State, *, update: int) -> State:
    return (*state, f"second {update}")


def test_hooks_follow_every_step_in_order() -> None:
    ended = run_loop(
        (), step, first_update=3, last_update=4, hooks=[first_hook, second_hook], should_stop=lambda: False
    )
    assert ended == ("step 3", "first 3", "second 3", "step 4", "first 4", "second 4")


def test_nothing_left_to_do_is_done() -> None:
    assert run_loop((), step, first_update=5, last_update=4, hooks=[], should_stop=lambda: True) == ()


def test_a_stop_comes_between_updates() -> None:
    made: list[int] = []

    def count(state: State, *, update: int) -> State:
        made.append(update)
        return state

    with pytest.raises(InterruptedRunError, match="before update 3"):
        run_loop((), step, first_update=1, last_update=9, hooks=[count], should_stop=lambda: len(made) == 2)
    assert made == [1, 2]
