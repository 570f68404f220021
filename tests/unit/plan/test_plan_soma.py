"""Does a plan hold its budget, its deadline and its memory, and say what would?"""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from thinwire.base.errors import UserError
from thinwire.experiments.registry import preset
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.plan import quantities
from thinwire.plan.noise import SEEN_COSTS, assumed_noise, measured_noise
from thinwire.plan.quantities import Budget
from thinwire.plan.soma import Planner, updates_of
from thinwire.plan.soma_question import Question
from thinwire.plan.update_cost import BatchCost, UpdateCost, expert_memory_bytes, measure_update_cost
from thinwire.soma.budget import Setting
from thinwire.soma.config import SomaConfig
from thinwire.soma.theory import FORWARDS_PER_DIRECTION, NoiseCosts, best_allocation, noiseless_share, relative_variance

SMALL: SomaConfig = preset("soma-small")  # type: ignore[assignment]
QUESTION = Question(
    config=SMALL,
    budget=Budget(3600.0, "device_seconds"),
    deadline_seconds=inf,
    devices=2,
    memory_bytes=None,
    fixed="width",
    wanted_updates=2000,
    most_experts=8,
)


def planner(question: Question, *, speed: float = 1e6) -> Planner:
    """As if every machine read ``speed`` bytes a second at width 32, others by their operations."""
    operations = speed * ExpertShape(width=32).operations_per_byte
    shapes = {ensemble.shape for ensemble in question.ensembles()}
    costs = {shape: UpdateCost.at_speed(operations / shape.operations_per_byte) for shape in shapes}
    return Planner(question, costs=costs, noise=assumed_noise(question.window_bytes))


def test_updates_within_budget_and_deadline() -> None:
    """Eq. (6) by hand: 2 experts of 64 x 16 x 2 forwards of 128 bytes at 1 MB/s, on both devices at once."""
    setting = Setting(2, 64, 16)
    forwards = 2 * 64 * 16 * 128
    for question, expected in (
        (QUESTION, int(3600 / (2 * forwards / 1e6))),
        (replace(QUESTION, deadline_seconds=60.0), int(60 / (forwards / 1e6))),
        (replace(QUESTION, deadline_seconds=60.0, devices=1), int(60 / (2 * forwards / 1e6))),
        (replace(QUESTION, budget=Budget(1e9, "byte_forwards")), int(1e9 / (2 * forwards))),
        (replace(QUESTION, budget=Budget(1e15, "operations")), int(1e15 / (2 * forwards * 81_920))),
    ):
        plan = planner(question)
        ensemble = next(e for e in question.ensembles() if e.num_experts == 2)
        assert updates_of(question, plan._step(ensemble, setting)) == expected


@pytest.mark.parametrize("unit", ["device_seconds", "byte_forwards", "operations"])
@pytest.mark.parametrize("fixed", ["width", "size"])
def test_every_option_fits_and_says_its_variance(unit, fixed) -> None:
    amount = {"device_seconds": 600.0, "byte_forwards": 6e8, "operations": 5e13}[unit]
    question = replace(QUESTION, budget=Budget(amount, unit), deadline_seconds=500.0, fixed=fixed)
    options = planner(question).plan()
    assert {option["role"] for option in options} >= {"least", "own"}
    for option in options:
        assert option["updates"] >= (option["aimed_updates"] or 1)
        assert option[unit] <= amount * (1 + 1e-12)
        assert option["elapsed_seconds"] <= 500.0 * (1 + 1e-12)
        terms = assumed_noise(128).terms_of(ExpertShape(width=option["width"]))
        keys = ("directions", "batch", "accumulation", "difference")
        setting = {key: option[key] for key in keys}
        assert option["relative_variance"] == pytest.approx(relative_variance(terms, **setting), rel=1e-12)
        cosine = terms.alignment / (1 + option["relative_variance"]) ** 0.5
        assert option["expected_cosine"] == pytest.approx(cosine, rel=1e-12)


def test_the_chosen_one_beats_every_other_integer_pair() -> None:
    """At the wanted updates, N = 4, over both differences and every n_pert and B that the budget holds."""
    question = replace(QUESTION, budget=Budget(4e6, "byte_forwards"), wanted_updates=5)
    options = [o for o in planner(question).plan() if o["num_experts"] == 4]
    (chosen,) = [option for option in options if option["chosen"]]
    assert chosen["noiseless_updates"] == max(option["noiseless_updates"] for option in options)
    found = [option for option in options if option["aimed_updates"] == 5]
    most = int(4e6 / 5 / 4 / 128)
    noise = assumed_noise(128)
    terms, costs = noise.terms_of(ExpertShape(width=32)), noise.costs
    feasible = [
        relative_variance(terms, directions=n, batch=b, difference=difference, batch_weight=costs.batch)
        for difference, signs in FORWARDS_PER_DIRECTION.items()
        for n in range(3 - signs, most + 1)
        for b in range(1, most // n + 1)
        if n * b * signs <= most
    ]
    best = max(found, key=lambda option: option["noiseless_updates"] / option["updates"])
    worth = best["updates"] * costs.signal / (costs.signal + min(feasible))
    assert best["noiseless_updates"] == pytest.approx(worth, rel=1e-12)
    assert best["updates"] >= 5


def test_as_many_updates_as_fit_of_the_smallest_that_was_tried() -> None:
    """2,400 forwards hold two updates of 1,024; divided among four experts not one, but 300 of two forwards."""
    question = replace(QUESTION, budget=Budget(2400.0 * 128, "byte_forwards"), wanted_updates=2000)
    most = most_updates(planner(question).plan())
    assert [most[count]["updates"] for count in (1, 2, 4, 8)] == [2, 1, 300, 150]
    assert [most[count]["directions"] * most[count]["batch"] for count in (1, 2)] == [1200, 1200]
    for amount in (0.1, 0.3, 0.7, 1.1, 3.3):  # that binary fractions do not hold
        tenths = replace(QUESTION, budget=Budget(amount, "device_seconds"), wanted_updates=10**9)
        for option in most_updates(planner(tenths, speed=7e5).plan()).values():
            windows = amount * 7e5 / (128 * option["num_experts"])
            assert option["updates"] == pytest.approx(windows / (1024 if windows >= 1024 else 2), abs=1.0)


@pytest.mark.parametrize("amount", [1e9, 3e12, 1e18])
@pytest.mark.parametrize("wanted", [1, 2000])
def test_no_number_of_updates_is_worth_more(amount: float, wanted: int) -> None:
    """Of updates of 1,024 forwards and more: neither the paper's, nor the own, nor any other number's best pair."""
    question = replace(QUESTION, budget=Budget(amount, "byte_forwards"), wanted_updates=wanted, most_experts=1)
    plan = planner(question)
    options = plan.plan()
    (chosen,) = [option for option in options if option["chosen"]]
    assert chosen["noiseless_updates"] == max(option["noiseless_updates"] for option in options)
    noise = assumed_noise(128)
    terms = noise.terms_of(ExpertShape(width=32))
    for forwards in (1024, 1100, 4096, 100_000):
        pair = best_allocation(terms, window_forwards=forwards, difference="one_sided", batch_weight=noise.costs.batch)
        sides = {"directions": pair.directions, "batch": pair.batch, "difference": "one_sided"}
        updates = int(amount / (pair.directions * pair.batch * 128))
        worth = updates * noiseless_share(terms, costs=noise.costs, **sides)
        assert chosen["noiseless_updates"] >= worth * (1 - 1e-9)


def most_updates(options: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By N, the option of the planner's own with most updates."""
    own = [option for option in options if option["role"] == "least"]
    return {option["num_experts"]: option for option in sorted(own, key=lambda option: option["updates"])}


def test_no_more_experts_than_asked_for() -> None:
    for fixed in ("width", "size"):
        question = replace(QUESTION, most_experts=2, fixed=fixed)
        assert [ensemble.num_experts for ensemble in question.ensembles()] == [1, 2]
        assert {option["num_experts"] for option in planner(question).plan()} == {1, 2}
    assert [e.num_experts for e in replace(QUESTION, most_experts=5).ensembles()] == [1, 2, 4]


def test_only_the_flag_that_binds_is_named() -> None:
    ample, nothing = Budget(1e12, "byte_forwards"), Budget(1.0, "byte_forwards")
    for budget, deadline, named in (
        (ample, 1e-6, "--deadline"),
        (nothing, 1e6, "--budget"),
        (nothing, 1e-6, "--budget --deadline"),
    ):
        with pytest.raises(UserError) as caught:
            planner(replace(QUESTION, budget=budget, deadline_seconds=deadline)).plan()
        assert caught.value.where == named
        assert [flag in caught.value.fix for flag in ("--budget", "--deadline")] == [
            flag in named for flag in ("--budget", "--deadline")
        ]


def test_equal_size_keeps_the_weights() -> None:
    question = replace(QUESTION, fixed="size")
    totals = {o["num_experts"]: (o["total_parameters"], o["width"]) for o in planner(question).plan()}
    assert totals[4] == (4 * 32_928 + 8_192, 32)
    for count in (1, 2, 8):
        total, width = totals[count]
        assert total == pytest.approx(totals[4][0], rel=0.05)
        assert 16 * 2 * width**2 * count == pytest.approx(4 * 32_768, rel=0.15)


def test_too_small_a_budget_names_the_least_that_fits() -> None:
    question = replace(QUESTION, budget=Budget(100.0, "byte_forwards"))
    with pytest.raises(UserError) as caught:
        planner(question).plan()
    words = caught.value.fix.split('"')[1]
    enough = quantities.budget(words, where="--budget")
    assert enough == Budget(2 * 128, "byte_forwards")
    assert planner(replace(question, budget=enough)).plan()
    with pytest.raises(UserError):
        planner(replace(question, budget=Budget(255.0, "byte_forwards"))).plan()


def test_too_short_a_deadline_too() -> None:
    question = replace(QUESTION, budget=None, deadline_seconds=1e-6)
    with pytest.raises(UserError, match="single update") as caught:
        planner(question).plan()
    seconds = quantities.seconds(caught.value.fix.split("--deadline ")[1].split(";")[0], where="--deadline")
    assert planner(replace(question, deadline_seconds=seconds)).plan()


def test_memory_decides_what_fits() -> None:
    smallest = expert_memory_bytes(ExpertShape(width=32), batch=16, window_bytes=128)
    with pytest.raises(UserError, match="memory") as caught:
        planner(replace(QUESTION, memory_bytes=smallest - 1)).plan()
    enough = quantities.num_bytes(caught.value.fix.split("--memory ")[1].split(";")[0], where="--memory")
    options = planner(replace(QUESTION, memory_bytes=enough)).plan()
    chosen = [option for option in options if option["chosen"]]
    assert chosen
    assert all(option["memory_bytes"] <= enough for option in chosen)
    wide = expert_memory_bytes(ExpertShape(width=509), batch=64, window_bytes=1024)
    assert wide > smallest + 4 * 5 * (ExpertShape(width=509).num_parameters - 32_928)


def test_noise_of_another_size_and_window() -> None:
    shape = ExpertShape(width=8)
    terms = {"a": 100.0, "nu": 8.0, "a_nu": 700.0, "baseline": 101.0, "baseline_nu": 710.0}
    terms |= {"mean_square": 0.25, "bias": 0.2, "alignment": 0.99}
    record = {"probe_terms": terms, "nu": 9.0, "window_bytes": 64, "updates": [10, 20]}
    record["num_parameters"] = shape.num_parameters
    same = measured_noise(record, window_bytes=64)
    assert (same.is_assumed, same.nu, same.terms_of(shape)._asdict()) == (False, 9.0, terms)
    twice = ExpertShape(width=16)
    ratio = twice.num_parameters / shape.num_parameters
    assert same.terms_of(twice).a == pytest.approx(100.0 * ratio, rel=1e-12)
    assert same.terms_of(twice).nu == 8.0
    assert (same.costs, same.costs_assumed) == (SEEN_COSTS, True)
    costs = {"batch": 300.0, "signal": 700.0}
    known = measured_noise(record | {"noise_costs": costs}, window_bytes=128)
    assert (known.costs, known.costs_assumed) == (NoiseCosts(**costs), False)
    longer = measured_noise(record, window_bytes=128)
    assert longer.is_assumed
    assert longer.nu / 9.0 == pytest.approx(longer.terms_of(shape).nu / 8.0, rel=1e-12)
    assert longer.nu < 9.0
    assert longer.terms_of(shape).a == 100.0


def test_assumed_noise_is_that_of_the_recorded_probes() -> None:
    """By hand: 32,768 weights perturbed half of the time and 160 gains always, each with one part of |g|^2."""
    terms = assumed_noise(128).terms_of(ExpertShape(width=32))
    perturbed = 32_768 / 2 + 160
    seen = 32_768 / 4 + 160
    assert terms.a == pytest.approx((32_768 / 2 * perturbed + 160 * (perturbed - 1)) / seen, rel=1e-12)
    assert terms.nu == pytest.approx(63.0, rel=1e-12)
    assert terms.a_nu == pytest.approx(63.0 * terms.a, rel=1e-12)
    assert terms.mean_square == pytest.approx(seen / 32_928, rel=1e-12)


def test_cost_between_measured_batches() -> None:
    cost = UpdateCost((BatchCost(1, 1.0, 0.1), BatchCost(16, 2.0, 0.4), BatchCost(64, 2.0, 1.6)), per_direction=0.5)
    by_batch = {batch: cost.seconds(Setting(9, 2, batch), window_bytes=10) for batch in (1, 3, 4, 16, 17, 32, 64, 128)}
    assert by_batch[1] == pytest.approx(2 * (2 * (1.0 + 1.0) + 0.5), rel=1e-12)
    assert by_batch[3] == by_batch[4]
    assert by_batch[17] == by_batch[32]
    assert by_batch[64] == pytest.approx(2 * (2 * (2.0 + 16.0) + 0.5), rel=1e-12)
    assert by_batch[128] == pytest.approx(2 * (2 * (2.0 + 32.0) + 0.5), rel=1e-12)
    assert list(by_batch.values()) == sorted(by_batch.values())
    accumulated = Setting(9, 2, 16, accumulation=3)
    assert cost.seconds(accumulated, window_bytes=10) == pytest.approx(3 * by_batch[16], rel=1e-12)


def test_a_measured_cost_is_a_cost() -> None:
    """A clock that counts its own readings: every timed call takes one tick."""
    ticks = iter(range(10**6))
    cost = measure_update_cost(ExpertShape(width=8, embed_width=8), clock=lambda: float(next(ticks)))
    assert [one.batch for one in cost.batches] == [1, 4, 16, 64]
    assert all(one.per_byte > 0 and one.fixed >= 0 for one in cost.batches)
    assert cost.per_direction == pytest.approx(1 / 32, rel=1e-12)
