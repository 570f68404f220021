"""Do budgets buy what the paper says they buy?"""

from dataclasses import asdict

import pytest

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma import budget
from thinwire.soma.budget import Setting
from thinwire.soma.config import TrainingConfig
from thinwire.soma.expert_job import byte_forwards_per_update

SMALL = {"window_bytes": 1024, "operations_per_byte": ExpertShape(width=32).operations_per_byte}


def test_operations_of_an_update() -> None:
    """The 0.272M model of section M.2: 512 updates at N = 8 of 64 x 1,024 take 4.50e16 operations."""
    for n, batch, accumulation in ((64, 64, 16), (1024, 64, 1)):
        setting = Setting(8, n, batch, accumulation)
        total = budget.training_operations(setting, updates=512, **SMALL)
        assert total == pytest.approx(4.50e16, rel=2e-3)
    central, one_sided = Setting(8, 64, 64), Setting(8, 64, 64, difference="one_sided")
    assert budget.update_operations(central, **SMALL) == 2 * budget.update_operations(one_sided, **SMALL)


@pytest.mark.parametrize("difference", ["central", "one_sided"])
def test_forwards_are_those_that_training_counts(difference) -> None:
    config = TrainingConfig(directions=6, batch=5, accumulation=3, window_bytes=7, difference=difference)
    values = {key: asdict(config)[key] for key in ("directions", "batch", "accumulation", "difference")}
    assert Setting(4, **values).window_forwards * 7 == 4 * byte_forwards_per_update(config)


def test_updates_within_budget_and_deadline() -> None:
    assert budget.most_updates(budget=100.0, update_cost=3.0) == 33
    assert budget.most_updates(deadline_seconds=10.0, update_seconds=0.5) == 20
    both = {"budget": 100.0, "update_cost": 3.0, "deadline_seconds": 10.0}
    assert budget.most_updates(**both, update_seconds=0.5) == 20
    assert budget.most_updates(**both, update_seconds=0.1) == 33
    assert budget.most_updates(budget=2.0, update_cost=3.0) == 0
    with pytest.raises(ValueError, match="neither"):
        budget.most_updates(budget=3.0)


def test_the_lowest_loss_among_known_ones() -> None:
    losses = {Setting(1, 64, 64): 1.9, Setting(2, 64, 64): 1.76, Setting(256, 64, 64): None}
    assert budget.lowest_loss(losses, loss=losses.get) == Setting(2, 64, 64)
    with pytest.raises(ValueError, match="no setting"):
        budget.lowest_loss([Setting(256, 64, 64)], loss=losses.get)
