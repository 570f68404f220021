"""Do the totals of a run's cost reconcile, and does the paper's own arithmetic?  (appendix H, Table 3)"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.config.fingerprint import as_record
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.accounting import JobCost, RunCost, run_cost
from thinwire.soma.budget import Setting, training_operations
from thinwire.soma.equal_size import ensemble_size, width_for_size
from thinwire.soma.interpolated_loss import cost_to_reach, loss_at
from thinwire.soma.recorded_curve import CurvePoint, validation_curve
from tiny_runs import CONFIG, prepared_data, train_in_process


def write_run(folder: Path, seconds: list[float], *, events: list[dict] | None = None) -> Path:
    """A run of ``len(seconds)`` experts whose updates took so long each, as far as its logs tell."""
    config = replace(CONFIG, clusters=replace(CONFIG.clusters, num_clusters=len(seconds)))
    write_json(folder / "config.json", {"kind": "soma", "preset": "mine", "config": as_record(config)})
    for expert, each in enumerate(seconds):
        lines = []
        for update in (0, 2, 4, 6):
            cost = {"byte_forwards": 64 * update, "device_seconds": each * update}
            lines.append(
                {"kind": "validation", "update": update, "loss_nats_per_byte": 3.0 - 0.1 * update + expert, **cost}
            )
            if update:
                lines.append({"kind": "update", "update": update, **cost})
        log = folder / "experts" / f"{expert:03d}" / "log.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if events is not None:
        (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


STARTED = {"time": "2026-01-01T00:00:00+00:00", "stage": "train", "jobs": ["0", "1"], "processes": 2, "threads": 3}
STARTED |= {"state": "started"}
ENDED = {"time": "2026-01-01T00:00:10+00:00", "stage": "train", "jobs": ["0", "1"], "state": "done"}


def test_totals_are_sums_and_conventions_enclose_them(tmp_path: Path) -> None:
    cost = run_cost(write_run(tmp_path / "run", [0.5, 2.0], events=[STARTED, ENDED]))
    per_byte = ExpertShape(width=8, embed_width=8).operations_per_byte
    assert cost.byte_forwards == 2 * 6 * 64
    assert cost.operations == 2 * 6 * 64 * per_byte
    assert cost.device_seconds == pytest.approx(15.0, rel=1e-12)
    assert cost.slowest_expert_seconds == pytest.approx(12.0, rel=1e-12)
    conventions = cost.conventions()
    assert conventions.recorded_means == pytest.approx(15.0, rel=1e-12)
    assert conventions.physical == pytest.approx(60.0, rel=1e-12)
    assert conventions.normalised_rate == pytest.approx(6.0, rel=1e-12)
    assert conventions.reference_rate == pytest.approx(24.0, rel=1e-12)


def test_a_stage_without_an_end_leaves_the_allocation_unknown(tmp_path: Path) -> None:
    seed = STARTED | {"jobs": ["seed"]}
    assert run_cost(write_run(tmp_path / "none", [1.0, 1.0])).physical_seconds is None
    assert (
        run_cost(write_run(tmp_path / "seed", [1.0, 1.0], events=[seed, ENDED | {"jobs": ["seed"]}])).physical_seconds
        is None
    )
    assert run_cost(write_run(tmp_path / "a", [1.0, 1.0], events=[STARTED, STARTED, ENDED])).physical_seconds is None
    assert run_cost(write_run(tmp_path / "b", [1.0, 1.0], events=[seed, STARTED, ENDED])).physical_seconds == 60.0


def test_the_papers_table_3() -> None:
    """4.16M updates of 256 experts: 0.142 s on average, at 0.168 s and at 0.140 s."""
    updates = 4_160_000
    jobs = tuple(JobCost(str(expert), updates, 0, 0, 0.1417 * updates, 0.1417) for expert in range(256))
    found = RunCost(None, jobs, 49.6e3 * 3600).conventions(reference_seconds=0.168, normalised_seconds=0.140)
    hours = [round(value / 3600 / 1000, 1) for value in found if value is not None]
    assert hours == [41.9, 49.6, 49.7, 41.4]


def test_a_real_run_reconciles(tmp_path: Path) -> None:
    run = train_in_process(CONFIG, data=prepared_data(tmp_path), out=tmp_path / "run")
    cost, job = run_cost(run.folder.root), CONFIG.experts
    setting = Setting(2, job.directions, job.batch, job.accumulation, job.difference)
    per_byte = run.shape.operations_per_byte
    expected = training_operations(
        setting, window_bytes=job.window_bytes, operations_per_byte=per_byte, updates=job.updates
    )
    assert cost.operations == expected
    assert cost.operations == per_byte * cost.byte_forwards
    assert cost.seed is not None
    assert cost.seed.updates == CONFIG.seed_run.updates
    assert cost.record()["device_seconds"] == pytest.approx(sum(e["device_seconds"] for e in cost.record()["experts"]))
    assert [point.update for point in validation_curve(run.folder.root)] == [2, 4, 6]


def test_an_untrained_run_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"kind": "soma", "preset": "mine", "config": as_record(CONFIG)})
    for reader in (run_cost, validation_curve):
        with pytest.raises(UserError, match="far enough"):
            reader(tmp_path)
    write_json(tmp_path / "config.json", {"kind": "subspaces", "preset": "mine", "config": {}})
    with pytest.raises(UserError, match="not soma"):
        run_cost(tmp_path)


def test_a_curve_weights_experts_by_their_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.5, 2.0])
    equal = validation_curve(run)
    assert (equal[0].byte_forwards, equal[0].device_seconds, equal[0].slowest_seconds) == (256, 5.0, 4.0)
    assert equal[0].loss_nats_per_byte == pytest.approx(3.3, rel=1e-12)
    write_json(run / "router" / "router.json", {"cluster_sizes": [30, 10]})
    assert validation_curve(run)[0].loss_nats_per_byte == pytest.approx(3.05, rel=1e-12)


def curve(*pairs: tuple[float, float]) -> list[CurvePoint]:
    return [CurvePoint(1, int(cost), 0, 0.0, 0.0, loss) for cost, loss in pairs]


def test_interpolation_in_cost_and_in_its_logarithm() -> None:
    points = curve((100, 3.0), (400, 2.0), (1600, 1.0))
    found = loss_at(points, cost=200.0, unit="byte_forwards")
    assert found is not None
    assert found.low == pytest.approx(2.5, rel=1e-12)
    assert found.high == pytest.approx(3.0 - 1 / 3, rel=1e-12)
    exact = loss_at(points, cost=400.0, unit="byte_forwards")
    assert exact is not None
    assert (exact.low, exact.high) == (2.0, 2.0)
    assert loss_at(points, cost=99.0, unit="byte_forwards") is None
    assert loss_at(points, cost=1601.0, unit="byte_forwards") is None
    reached = cost_to_reach(points, loss=1.5, unit="byte_forwards")
    assert reached is not None
    assert reached == (pytest.approx(800.0, rel=1e-12), pytest.approx(1000.0, rel=1e-12))
    assert cost_to_reach(points, loss=0.5, unit="byte_forwards") is None


def test_the_papers_widths_at_one_size() -> None:
    """Table 2: 509, 361 and 181 hold 8.33M, 8.41M and 8.55M; the nearest width to each total is the paper's."""
    for count, width in ((1, 509), (2, 361), (8, 181)):
        shape = ExpertShape(width=width)
        total = ensemble_size(shape, num_experts=count, decoder="trained")
        model = replace(CONFIG.model, width=7, embed_width=32)
        assert width_for_size(model, total=total, num_experts=count, decoder="trained").width == width
    assert round(ensemble_size(ExpertShape(width=361), num_experts=2, decoder="trained") / 1e6, 2) == 8.41
    assert ensemble_size(ExpertShape(width=32), num_experts=256, decoder="frozen") == 256 * 32_928 + 8_192
    with pytest.raises(ValueError, match="hold"):
        width_for_size(CONFIG.model, total=100, num_experts=8, decoder="trained")
