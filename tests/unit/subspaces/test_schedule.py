"""Which phase, rate and place in the averaging does each update have?"""

import itertools
from dataclasses import replace

import pytest

from thinwire.subspaces.config import CodecConfig, OptimizerConfig, PhasesConfig, SubspacesConfig, SyncConfig
from thinwire.subspaces.schedule import (
    is_settling_step,
    last_compressed_step,
    layout_shift,
    learning_rate,
    phase_of,
)

CONFIG = SubspacesConfig(
    optimizer=OptimizerConfig(steps=20, learning_rate=0.4, ramp_steps=4, final_fraction=0.1),
    phases=PhasesConfig(warmup_steps=5, unplug_fraction=0.25),
    checkpoint_every=4,
)


def phases(config: SubspacesConfig) -> str:
    return "".join(phase_of(step, config)[0] for step in range(1, config.optimizer.steps + 1))


def unplugged(how: str, kind: str = "subspace") -> SubspacesConfig:
    return replace(
        CONFIG,
        phases=replace(CONFIG.phases, unplug=how),
        codec=CodecConfig(kind=kind),  # type: ignore[arg-type]
    )


def test_phases_follow_each_other() -> None:
    assert phases(CONFIG) == "wwwww" + 10 * "c" + "fffff"
    assert phases(unplugged("drop")) == "wwwww" + 10 * "c" + "ppppp"
    assert phases(unplugged("never")) == "wwwww" + 15 * "c"
    assert phases(unplugged("fold", "plain")) == "wwwww" + 15 * "p"
    assert phases(replace(CONFIG, phases=PhasesConfig(warmup_steps=0, unplug_fraction=0.0))) == 20 * "c"
    assert phases(replace(CONFIG, phases=PhasesConfig(warmup_steps=5, unplug_fraction=1.0))) == "wwwwwc" + 14 * "f"


@pytest.mark.parametrize("kind", ["top_k", "quantised"])
def test_only_a_subspace_is_folded(kind: str) -> None:
    assert phases(unplugged("fold", kind)) == "wwwww" + 15 * "c"
    assert last_compressed_step(unplugged("fold", kind)) == 20
    assert phases(unplugged("drop", kind)) == "wwwww" + 10 * "c" + "ppppp"


def test_what_is_unplugged_was_plugged_in() -> None:
    short = replace(CONFIG, optimizer=OptimizerConfig(steps=6), phases=PhasesConfig(warmup_steps=5))
    assert phases(replace(short, phases=replace(short.phases, unplug_fraction=0.5))) == "wwwwwc"
    assert phases(replace(short, phases=replace(short.phases, warmup_steps=6))) == "wwwwww"
    assert phases(replace(short, phases=replace(short.phases, warmup_steps=4, unplug_fraction=1.0))) == "wwwwcf"


def test_the_rate_rises_from_zero_and_falls_to_its_end() -> None:
    rates = [learning_rate(step, CONFIG.optimizer) for step in range(1, 21)]
    assert rates[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert rates[-1] == pytest.approx(0.04)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[3:]))
    assert learning_rate(1, replace(CONFIG.optimizer, ramp_steps=0)) <= 0.4
    assert learning_rate(20, replace(CONFIG.optimizer, ramp_steps=20)) == pytest.approx(0.4)


def test_replicas_settle_at_phase_ends_checkpoints_and_the_end() -> None:
    assert [step for step in range(1, 21) if is_settling_step(step, CONFIG)] == [4, 5, 8, 12, 15, 16, 20]


def test_ranks_move_where_weights_are_averaged() -> None:
    every = replace(CONFIG, sync=SyncConfig(every=4))
    assert [layout_shift(step, every) for step in range(1, 11)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert {layout_shift(step, CONFIG) for step in range(1, 21)} == {0}
    assert {layout_shift(step, replace(CONFIG, sync=SyncConfig(every=4, rotate=False))) for step in range(1, 21)} == {0}
