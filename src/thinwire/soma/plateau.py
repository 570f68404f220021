"""When do learning rate and epsilon fall?  They halve together when validation loss stops improving (Table 1)."""

from typing import NamedTuple

from thinwire.soma.config import TrainingConfig


class PlateauState(NamedTuple):
    """What the rule remembers.

    Attributes:
        halvings: how often both rates were halved.
        best_loss: lowest expert validation loss so far, nats per byte.
        best_update: the update of the last improvement, or of the last halving if that is later.
    """

    halvings: int = 0
    best_loss: float = float("inf")
    best_update: int = 0


class Rates(NamedTuple):
    learning_rate: float
    epsilon: float


def rates(state: PlateauState, *, config: TrainingConfig) -> Rates:
    """Current learning rate and epsilon; each stops at the floor (or at its start, where that is lower)."""
    factor = 0.5**state.halvings

    def fallen(start: float) -> float:
        return max(start * factor, min(start, config.rate_floor))

    return Rates(fallen(config.learning_rate), fallen(config.epsilon))


def observe(state: PlateauState, loss: float, *, update: int, config: TrainingConfig) -> PlateauState:
    """The rule after one validation.

    choice: the paper does not say how often it validates; the count of updates without improvement starts anew after a
    halving.
    """
    if loss < state.best_loss - config.plateau_improvement:
        return PlateauState(state.halvings, loss, update)
    if update - state.best_update >= config.plateau_updates:
        return PlateauState(state.halvings + 1, state.best_loss, update)
    return state
