"""Is Figure 12 judged by its rule, and are its arms what they say?"""

from typing import Any

import pytest

from thinwire.reproduction.item import Scale
from thinwire.reproduction.soma_exchange import FORMS, RANKS, WIDTHS, Arm, _paper_row, arm_config, verdict_of
from thinwire.soma.config import check


def row(**change: Any) -> dict[str, Any]:
    return {"ranks": 2, "losses_bytes": 64, "gradient_bytes": 0, "is_equal": True} | change


def test_rule() -> None:
    silent = row(ranks=1, losses_bytes=0)
    same = row(weights_are_those_of_one_process=True)
    assert verdict_of([silent, same, row(gradient_bytes=10)]) == "agrees"
    assert verdict_of([silent, row(is_equal=False)]) == "differs"
    assert verdict_of([silent, row(weights_are_those_of_one_process=False)]) == "differs"
    assert verdict_of([row(ranks=1, losses_bytes=8), same]) == "differs"


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_arms_differ_in_what_they_say_alone(scale: Scale) -> None:
    for width in WIDTHS[scale]:
        alone = arm_config(scale, Arm("alone", width, 1))
        for ranks in RANKS[scale]:
            configs = [arm_config(scale, Arm(form, width, ranks)) for form in FORMS]
            for form, config in zip(FORMS, configs, strict=True):
                check(config, where=form)
                assert (config.exchange, config.launch.ranks) == (form, ranks)
                assert (config.experts, config.model) == (alone.experts, alone.model)
        assert arm_config(scale, Arm("none", width, 1)).clusters.num_clusters == 2


def test_at_the_paper_size_gradients_take_half_a_gigabyte() -> None:
    """2 (m - 1) 4 M bytes for m = 8 ranks of the paper's 33 MB."""
    found = {form: _paper_row(form) for form in FORMS}
    assert found["gradients"]["parameters"] == pytest.approx(8.33e6, rel=1e-3)
    assert found["gradients"]["bytes_an_update"] == pytest.approx(14 * 33.3e6, rel=1e-3)
    assert found["scalars"]["bytes_an_update"] == 7 * 8 * (2 * 64 + 16)
