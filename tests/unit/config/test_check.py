"""Does a configuration check collect every violation and raise them once?"""

import pytest

from thinwire.base.errors import ConfigError
from thinwire.config.check import Violations


def test_nothing_wrong_raises_nothing() -> None:
    wrong = Violations()
    wrong.at_least("a", 1, 1)
    wrong.within("b", 0.5, 0.5, 0.5)
    wrong.positive("c", 1e-300)
    wrong.require("d", "x", True, "must hold")
    wrong.raise_any(where="here")


def test_every_violation_is_listed_at_once() -> None:
    wrong = Violations()
    wrong.at_least("experts.batch", 0, 1)
    wrong.within("routing.active_experts", 9, 1, 4)
    wrong.within("seed_sample", -0.1, 0, 1)
    wrong.positive("experts.epsilon", 0.0)
    wrong.require("experts.window_bytes", 2048, False, "must not exceed 1024")
    with pytest.raises(ConfigError) as caught:
        wrong.raise_any(where="preset demo")
    assert caught.value.violations == (
        "experts.batch = 0: must be at least 1",
        "routing.active_experts = 9: must lie between 1 and 4",
        "seed_sample = -0.1: must lie between 0 and 1",
        "experts.epsilon = 0.0: must be above zero",
        "experts.window_bytes = 2048: must not exceed 1024",
    )
    assert caught.value.where == "preset demo"


@pytest.mark.parametrize("rule", ["at_least", "within", "positive"])
def test_not_a_number_is_a_violation(rule: str) -> None:
    wrong = Violations()
    bounds = {"at_least": (0.0,), "within": (0.0, 1.0), "positive": ()}[rule]
    getattr(wrong, rule)("epsilon", float("nan"), *bounds)
    assert len(wrong.lines) == 1


def test_two_checks_share_nothing() -> None:
    Violations().positive("a", -1)
    assert Violations().lines == []
