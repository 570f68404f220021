"""What do ranks become when a team has met?  One model: that of the rank that is furthest, or the mean of replicas."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import training_cases
from torch import Tensor
from training_cases import SYNC, new_trainer, trainer_after

from gloo_ranks import RankPool
from thinwire.comm.group import Group
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.membership import Standing, compare_standings, unite

SUMMED = training_cases.config()
DRIFTING = training_cases.config(sync=replace(SYNC, every=5, fragments=2))
OUTER = training_cases.config(sync=replace(SYNC, every=5, fragments=2, outer="nesterov"))
DRIFTED = 8
"""Two updates after the plug-in, where the weights were settled."""


def united(group: Group, settings: SubspacesConfig, newcomers: tuple[int, ...]) -> dict[str, Any]:
    """This rank's state before and after; those who come from nowhere have made no update."""
    is_new = group.rank in newcomers
    trainer = trainer_after(group, settings, step=DRIFTED)  # all together, or the others would wait
    if is_new:
        trainer = new_trainer(group, settings)
    before = {name: weight.clone() for name, weight in trainer.replica.weights().items()}
    own = Standing(not is_new, trainer.step, trainer.phase, True, 0.0, (0,), os.getpid())
    unite(trainer, compare_standings(trainer.team, own), config=settings)
    averaging = trainer.averaging
    found = {
        "before": before,
        "after": {name: weight.clone() for name, weight in trainer.replica.weights().items()},
        "step": trainer.step,
        "phase": trainer.phase,
        "moments": trainer.own_state()["optimizer.llama.model.norm.weight.exp_avg"].clone(),
        "anchors": [] if averaging is None else [anchor.clone() for anchor in averaging.anchors],
        "settled_at": None if averaging is None else averaging.settled_at,
        "trained": torch.cat([parameter.detach().flatten() for parameter in trainer.parameters()]),
    }
    if averaging is not None:
        averaging.close()
    return found


def mean_of(found: list[dict[str, Any]], name: str) -> Tensor:
    return torch.stack([each["before"][name] for each in found]).mean(dim=0)


@pytest.mark.parametrize("settings", [DRIFTING, OUTER], ids=["averaged", "outer step"])
def test_replicas_that_drifted_become_their_mean(settings: SubspacesConfig, pool: RankPool) -> None:
    """As survivors do where weights are averaged."""
    found = pool.run(united, settings, (), ranks=3)
    apart = max(float((found[0]["before"][n] - found[1]["before"][n]).abs().max()) for n in found[0]["before"])
    assert apart > 1e-4
    for each in found:
        assert (each["step"], each["phase"], each["settled_at"]) == (DRIFTED, "compressed", DRIFTED)
        assert each["after"].keys() == each["before"].keys()
        for name, weight in each["after"].items():
            assert torch.equal(weight, found[0]["after"][name])
            torch.testing.assert_close(weight, mean_of(found, name), rtol=0, atol=1e-12)
        if settings is OUTER:  # the next outer step begins at the mean
            assert torch.equal(torch.cat(each["anchors"]), each["trained"])


@pytest.mark.parametrize("settings", [SUMMED, DRIFTING], ids=["summed", "averaged"])
def test_who_comes_from_nowhere_takes_over_what_the_first_at_work_has(
    settings: SubspacesConfig, pool: RankPool
) -> None:
    """And counts in the mean as that one does."""
    found = pool.run(united, settings, (0,), ranks=3)
    root = found[1]
    assert found[0]["before"].keys() != root["before"].keys()
    for name in root["before"]:
        expected = (2 * root["before"][name] + found[2]["before"][name]) / 3
        for each in found:
            torch.testing.assert_close(each["after"][name], expected, rtol=0, atol=1e-12)
            assert torch.equal(each["after"][name], root["after"][name])
    assert {(each["step"], each["phase"]) for each in found} == {(DRIFTED, "compressed")}
    assert torch.equal(found[0]["moments"], root["moments"])
    assert float(root["moments"].abs().max()) > 0.0
