"""Is an ordering judged by the stated rule, and a loss read where it was recorded?"""

import pytest

from thinwire.reproduction.soma_allocations import recipe_verdict, tied_verdict
from thinwire.reproduction.verdicts import Paired, cost_to_fall_to, paired, together, value_at


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.1, 0.2, 0.01], "agrees"),
        ([0.1, 0.2], "scale too small to tell"),
        ([0.1, 0.2, -0.01], "scale too small to tell"),
        ([-0.10, -0.11, -0.12], "differs"),
        ([-0.1, -0.9, -0.01], "scale too small to tell"),
        ([0.0, 0.1, 0.1], "scale too small to tell"),
    ],
)
def test_three_seeds_of_one_sign_agree_and_an_interval_beyond_zero_differs(
    differences: list[float], verdict: str
) -> None:
    assert paired(differences).verdict == verdict


def test_the_interval_is_students() -> None:
    found = paired([1.0, 2.0, 3.0])
    assert found == Paired(2.0, pytest.approx(2 - 4.302653 / 3**0.5), pytest.approx(2 + 4.302653 / 3**0.5), "agrees")
    assert paired([1.0]).high == float("inf")


def test_one_claim_that_differs_decides() -> None:
    assert together(["agrees", "differs", "scale too small to tell"]) == "differs"
    assert together(["agrees", "scale too small to tell"]) == "scale too small to tell"
    assert together(["agrees", "agrees"]) == "agrees"
    assert together([]) == "scale too small to tell"


def test_losses_are_read_between_recorded_costs_and_never_beyond() -> None:
    costs, losses = [0.0, 2.0, 4.0], [3.0, 2.0, 1.5]
    assert value_at(costs, losses, cost=1.0) == pytest.approx(2.5)
    assert value_at(costs, losses, cost=4.0) == pytest.approx(1.5)
    assert value_at(costs, losses, cost=4.1) is None
    assert value_at(costs, losses, cost=-0.1) is None


def test_a_curve_falls_to_a_loss_where_it_first_does() -> None:
    costs, losses = [0.0, 10.0, 20.0, 30.0], [3.0, 2.0, 2.5, 1.0]
    assert cost_to_fall_to(2.5, costs=costs, losses=losses) == pytest.approx(5.0)
    assert cost_to_fall_to(1.5, costs=costs, losses=losses) == pytest.approx(20.0)
    assert cost_to_fall_to(0.9, costs=costs, losses=losses) is None


def test_allocations_are_tied_only_where_training_gained_and_seeds_suffice() -> None:
    apart, mixed = paired([0.1, 0.11, 0.12]), paired([0.1, -0.1, 0.05])
    assert tied_verdict(0.001, gained=0.1, apart=apart, num_seeds=3) == "agrees"
    assert tied_verdict(0.001, gained=0.1, apart=apart, num_seeds=2) == "scale too small to tell"
    assert tied_verdict(0.00001, gained=0.004, apart=apart, num_seeds=3) == "scale too small to tell"
    assert tied_verdict(0.01, gained=0.1, apart=apart, num_seeds=3) == "differs"
    assert tied_verdict(0.01, gained=0.1, apart=mixed, num_seeds=3) == "scale too small to tell"


def test_our_recipe_must_win_in_every_seed_and_by_two_on_average() -> None:
    assert recipe_verdict([2.0, 2.5, 1.6]) == "agrees"
    assert recipe_verdict([4.0, 3.0, 0.9]) == "differs"
    assert recipe_verdict([1.5, 1.6, 1.7]) == "differs"
    assert recipe_verdict([3.0, 3.0, None]) == "differs"
    assert recipe_verdict([3.0, 3.0]) == "scale too small to tell"
