"""Are the verdicts of Tables 3 and 10 and Figures 14 and 15 the stated rules, and do items leave whole findings?"""

from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from thinwire.base.progress import Voice
from thinwire.reproduction import soma_accounting, soma_budgets, soma_interpolated
from thinwire.reproduction.item import Findings
from thinwire.reproduction.soma_accounting import paper_checks, run_checks, verdict_of
from thinwire.reproduction.soma_budgets import Checkpoint, budget_map, papers_saving, tight_budget_claim, two_is_lowest
from thinwire.reproduction.soma_interpolated import Judged, at_budgets, batches_are_lowest
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.accounting import JobCost, RunCost
from thinwire.soma.config import SomaConfig
from thinwire.soma.expert_job import byte_forwards_per_update
from thinwire.soma.interpolated_loss import LossRange
from thinwire.soma.recorded_curve import CurvePoint, shape_of_run


class Trained(Workplace):
    """A workplace whose runs are trained in this process."""

    def run(self, name: str, config: SomaConfig) -> Path:
        folder = self.out / "runs" / name
        if not (folder / "results/done.json").exists():
            tiny_runs.train_in_process(config, data=self.data, out=folder)
        return folder


def small(_: str, *, num_experts: int = 2, seed: int = 1, allocation: str = "base") -> SomaConfig:
    """A tiny run instead of an item's."""
    experts = replace(tiny_runs.JOB, decoder="trained", accumulation=2 if allocation == "batches" else 1)
    clusters = replace(tiny_runs.CONFIG.clusters, num_clusters=num_experts)
    return replace(tiny_runs.CONFIG, seed=seed, experts=experts, clusters=clusters)


@pytest.fixture
def place(tiny_data: Path, tmp_path: Path) -> Workplace:
    return Trained("smoke", tmp_path / "out", "item", tiny_data, Voice(), 1)


def cost_of(config: SomaConfig, *, seconds: tuple[float, ...] = (0.2, 0.3), physical: float | None = 60.0) -> RunCost:
    """Books of a run that did what its configuration says, 100 updates an expert."""
    forwards = 100 * byte_forwards_per_update(config.experts)
    operations = forwards * shape_of_run(config).operations_per_byte
    jobs = (JobCost(str(i), 100, forwards, operations, 100 * s, s) for i, s in enumerate(seconds))
    return RunCost(None, tuple(jobs), physical)


def test_a_total_one_percent_off_its_rate_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    name, rate, stated = soma_accounting.PAPER_ROWS[0]
    monkeypatch.setattr(soma_accounting, "PAPER_ROWS", ((name, rate, 1.01 * stated),))
    assert not any(check["holds"] for check in paper_checks())


def test_rule_of_table_3() -> None:
    config = small("smoke")
    good = cost_of(config)
    assert all(check["holds"] for check in [*paper_checks(), *run_checks(good, config)])
    assert verdict_of(good, run_checks(good, config)) == "agrees"
    for name, change in (("byte_forwards", 1), ("operations", 1), ("device_seconds", 5.0)):
        first = good.experts[0]._replace(**{name: getattr(good.experts[0], name) + change})
        wrong = replace(good, experts=(first, good.experts[1]))
        assert verdict_of(wrong, run_checks(wrong, config)) == "differs"
    crowded = replace(good, physical_seconds=49.0)
    assert verdict_of(crowded, run_checks(crowded, config)) == "differs"
    for short in (cost_of(config, seconds=(0.01, 0.02)), cost_of(config, physical=None)):
        assert verdict_of(short, run_checks(short, config)) == "scale too small to tell"
    short = cost_of(config, seconds=(0.01, 0.02))
    checks = [check | {"check": "renamed"} for check in run_checks(short, config)]
    assert {check["of"] for check in checks} == {"counts", "seconds"}
    for quantity, expected in (("counts", "differs"), ("seconds", "scale too small to tell")):
        broken = [check | {"holds": check["of"] != quantity} for check in checks]
        assert verdict_of(short, broken) == expected


def curve(*losses: float, count: int = 1) -> tuple[CurvePoint, ...]:
    """One point every 8 device-seconds and 100 operations of all experts together."""
    return tuple(
        CurvePoint(i, 100 * i, 100 * i, 8.0 * i, 8.0 * i / count, loss) for i, loss in enumerate(losses, start=1)
    )


def test_rule_of_figure_14() -> None:
    curves = {(1, 1): curve(3.0, 2.0, 1.0), (8, 1): curve(3.1, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.2, count=8)}
    claim = tight_budget_claim(curves, seed=1)
    assert claim == {"seed": 1, "device_seconds_each": 9.0, "monolith_loss": 3.0, "sharded_loss": 2.2}


def test_the_map_takes_the_lowest_loss_that_fits_both() -> None:
    checkpoints = [Checkpoint(1, 10.0, 10.0, 2.0), Checkpoint(8, 80.0, 10.0, 1.5), Checkpoint(1, 100.0, 100.0, 1.0)]
    cells = budget_map(checkpoints)
    for cell in cells:
        fitting = [c for c in checkpoints if c.total <= cell["total_budget"] and c.each <= cell["budget_each"]]
        assert cell["loss"] == min(one.loss for one in fitting)
    assert {cell["loss"] for cell in cells} == {2.0, 1.5, 1.0}


def test_rule_of_figure_15() -> None:
    assert papers_saving() == pytest.approx(51.3, rel=1e-3)

    def claims(*, two: float, seeds: int) -> dict:
        return two_is_lowest(
            [
                {"num_experts": n, "seed": seed, "loss_at_budget": (two if n == 2 else 2.0) + 0.01 * seed}
                for n in (1, 2, 8)
                for seed in range(seeds)
            ]
        )

    assert {claim.verdict for claim in claims(two=1.9, seeds=3).values()} == {"agrees"}
    assert {claim.verdict for claim in claims(two=2.1, seeds=3).values()} == {"differs"}
    assert {claim.verdict for claim in claims(two=1.9, seeds=2).values()} == {"scale too small to tell"}


def test_rule_of_table_10() -> None:
    flat = LossRange(2.0, 2.1)

    def judged(batches: float) -> list[Judged]:
        losses = {"base": flat, "directions": flat, "batches": LossRange(batches, batches)}
        return [Judged(seed, 1.0, losses) for seed in (1, 2, 3)]

    assert {claim.verdict for claim in batches_are_lowest(judged(1.9)).values()} == {"agrees"}
    assert {claim.verdict for claim in batches_are_lowest(judged(2.2)).values()} == {"differs"}


def test_losses_are_compared_within_what_all_curves_cover() -> None:
    curves = {"base": curve(3.0, 2.0, 1.0, 0.5), "directions": curve(3.0, 2.5), "batches": curve(3.0, 2.2)}
    found = at_budgets(curves, seed=4)
    assert [one.budget for one in found] == [100.0, 200.0]
    assert found[1].losses["batches"].middle == pytest.approx(2.2)


def check(findings: Findings) -> None:
    assert findings.verdict == "scale too small to tell"
    assert findings.rows
    assert findings.ours
    assert findings.panels


def test_items_leave_whole_findings(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (soma_accounting, soma_budgets):
        monkeypatch.setattr(module, "size_run", small)
    monkeypatch.setattr(soma_interpolated, "allocation_config", small)
    for module in (soma_accounting, soma_budgets):
        for item in module.ITEMS:
            check(item.find(place))
    check(soma_interpolated.ITEMS[0].find(place))
