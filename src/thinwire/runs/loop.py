"""The loop: one step after another, hooks between them. It knows neither paper."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from thinwire.base.errors import InterruptedRunError

State = TypeVar("State")


@runtime_checkable
class Hook(Protocol[State]):
    """Looks at the state after an update; may return a new one (a schedule), must not change it in place."""

    def __call__(self, state: State, *, update: int) -> State: ...


def run_loop(
    state: State,
    step: Callable[[State, int], State],
    *,
    first_update: int,
    last_update: int,
    hooks: Sequence[Hook[State]],
    should_stop: Callable[[], bool],
) -> State:
    """Updates first..last, inclusive; hooks run in order after each.

    Raises:
        InterruptedRunError: after the update in flight, where ``should_stop`` says so.
    """
    for update in range(first_update, last_update + 1):
        if should_stop():
            raise InterruptedRunError(f"stopped before update {update}")
        state = step(state, update)
        for hook in hooks:
            state = hook(state, update=update)
    return state
