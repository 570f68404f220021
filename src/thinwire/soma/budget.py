"""How many updates does a budget buy, and which setting makes the best of it?  (Eqs. 6, 21 and 22; appendix H)"""

from collections.abc import Callable, Iterable
from math import floor, inf
from typing import NamedTuple

from thinwire.soma.config import Difference
from thinwire.soma.theory import FORWARDS_PER_DIRECTION


class Setting(NamedTuple):
    """What one update of an ensemble does.

    Attributes:
        num_experts: N.
        directions: n_pert, a batch.
        batch: B, windows of a batch.
        accumulation: A, batches of an update.
        difference: central (two forwards a direction) or one-sided (one).
    """

    num_experts: int
    directions: int
    batch: int
    accumulation: int = 1
    difference: Difference = "central"

    @property
    def window_forwards(self) -> int:
        """Forward passes of one window, of every expert together."""
        per_batch = FORWARDS_PER_DIRECTION[self.difference] * self.directions * self.batch
        return self.num_experts * self.accumulation * per_batch


def update_operations(setting: Setting, *, window_bytes: int, operations_per_byte: int | float) -> float:
    """u = 2 N n_pert B T F_N arithmetic operations of a global step (section M.1); the 2 is 1 where one-sided.

    Args:
        window_bytes: T.
        operations_per_byte: F_N, of one expert (``ExpertShape.operations_per_byte``).
    """
    return float(setting.window_forwards * window_bytes * operations_per_byte)


def training_operations(
    setting: Setting, *, window_bytes: int, operations_per_byte: int | float, updates: int
) -> float:
    """C_train = 2 T n_pert B N F_N s (Eq. 21)."""
    return updates * update_operations(setting, window_bytes=window_bytes, operations_per_byte=operations_per_byte)


def most_updates(
    *, budget: float = inf, update_cost: float = 0.0, deadline_seconds: float = inf, update_seconds: float = 0.0
) -> int:
    """s_max = floor(min(C / u, D / tau)) (Eq. 6); with a budget alone floor(C / u) (section M.1).

    Args:
        budget, update_cost: C and u, in one unit of any kind: operations, device-seconds.
        deadline_seconds, update_seconds: D and tau, elapsed.

    Raises:
        ValueError: nothing limits the number of updates.
    """
    limits = [
        whole / part
        for whole, part in ((budget, update_cost), (deadline_seconds, update_seconds))
        if part and whole < inf
    ]
    if not limits:
        raise ValueError("neither a budget with a cost nor a deadline with a duration is given")
    return floor(min(limits))


def lowest_loss(settings: Iterable[Setting], *, loss: Callable[[Setting], float | None]) -> Setting:
    """The setting of least loss at a budget (Eq. 22).

    Args:
        settings: those that fit the memory and the devices.
        loss: what the saved curves say at the budget; None where they do not reach it.

    Raises:
        ValueError: no curve reaches the budget.
    """
    known = [(value, setting) for setting in settings if (value := loss(setting)) is not None]
    if not known:
        raise ValueError("no setting has a curve that reaches the budget")
    return min(known)[1]
