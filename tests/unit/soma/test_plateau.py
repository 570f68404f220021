"""Do learning rate and epsilon halve exactly when the rule says, and stop at the floor?  (Table 1)"""

import pytest

from thinwire.soma.config import TrainingConfig
from thinwire.soma.plateau import PlateauState, Rates, observe, rates

CONFIG = TrainingConfig(learning_rate=1e-3, epsilon=2e-3, plateau_updates=1000, rate_floor=1e-5)


def run(losses: list[tuple[int, float]], *, config: TrainingConfig = CONFIG) -> PlateauState:
    state = PlateauState()
    for update, loss in losses:
        state = observe(state, loss, update=update, config=config)
    return state


def test_rates_start_as_configured_and_halve_together() -> None:
    assert rates(PlateauState(), config=CONFIG) == Rates(1e-3, 2e-3)
    assert rates(PlateauState(halvings=1), config=CONFIG) == Rates(5e-4, 1e-3)
    assert rates(PlateauState(halvings=3), config=CONFIG) == Rates(1.25e-4, 2.5e-4)


def test_each_rate_stops_at_the_floor_or_at_a_lower_start() -> None:
    assert rates(PlateauState(halvings=7), config=CONFIG) == Rates(1e-5, 2e-3 / 128)
    assert rates(PlateauState(halvings=50), config=CONFIG) == Rates(1e-5, 1e-5)
    low = TrainingConfig(learning_rate=1e-6, epsilon=1e-3, rate_floor=1e-5)
    assert rates(PlateauState(), config=low) == Rates(1e-6, 1e-3)
    assert rates(PlateauState(halvings=50), config=low) == Rates(1e-6, 1e-5)


def test_improvement_puts_the_halving_off() -> None:
    assert run([(0, 3.0), (999, 2.9), (1998, 2.8)]) == PlateauState(0, 2.8, 1998)


@pytest.mark.parametrize(("update", "halvings"), [(999, 0), (1000, 1), (1500, 1)])
def test_it_halves_after_plateau_updates_without_improvement(update: int, halvings: int) -> None:
    assert run([(0, 3.0), (500, 3.0), (update, 3.1)]).halvings == halvings


def test_the_count_starts_anew_after_a_halving() -> None:
    state = run([(0, 3.0), (1000, 3.0), (1900, 3.0)])
    assert state == PlateauState(1, 3.0, 1000)
    assert run([(0, 3.0), (1000, 3.0), (2000, 3.0)]).halvings == 2


def test_an_improvement_must_exceed_the_threshold() -> None:
    config = TrainingConfig(plateau_updates=100, plateau_improvement=0.01)
    assert run([(0, 3.0), (100, 2.995)], config=config) == PlateauState(1, 3.0, 100)
    assert run([(0, 3.0), (100, 2.98)], config=config) == PlateauState(0, 2.98, 100)
    # many small steps below the threshold add up against the best loss, which they do not move
    assert run([(0, 3.0), (30, 2.995), (60, 2.992), (90, 2.985)], config=config).best_update == 90


def test_the_papers_threshold_is_1e_8() -> None:
    assert run([(0, 3.0), (1000, 3.0 - 0.5e-8)]).halvings == 1
    assert run([(0, 3.0), (1000, 3.0 - 2e-8)]).halvings == 0


def test_a_worse_or_undefined_loss_never_becomes_the_best() -> None:
    assert run([(0, 3.0), (10, 5.0), (20, float("nan")), (30, float("inf"))]) == PlateauState(0, 3.0, 0)


def test_a_resumed_rule_is_the_uninterrupted_one() -> None:
    losses = [(update, 3.0 - 0.1 * (update == 400)) for update in range(0, 4000, 100)]
    whole = run(losses)
    state = run(losses[:13])
    for update, loss in losses[13:]:
        state = observe(state, loss, update=update, config=CONFIG)
    assert state == whole
    assert whole.halvings == 3
