"""Do the laboratory's items find what they say at the smallest scale, resume, and judge by their rules?"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_runs
from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.reproduction import laboratory
from thinwire.reproduction.item import Findings
from thinwire.reproduction.laboratory import LABORATORIES, ensemble, held_out_windows
from thinwire.reproduction.outcome import keep_findings
from thinwire.reproduction.registry import all_items, find_item
from thinwire.reproduction.soma_fixed_objective import best_batches, optimum_verdicts, ratio_of, ratio_verdict
from thinwire.reproduction.soma_gradient_error import claim_verdict, claims_of, reference_verdict
from thinwire.reproduction.soma_variance import AVERAGES, law_deviation, verdict_of
from thinwire.reproduction.workplace import Workplace


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("laboratory")
    texts = tiny_runs.write_texts(folder / "texts", documents=60, words=120)
    prepare([str(texts)], out=folder / "data", options=PrepareOptions(valid_fraction=0.15, test_fraction=0.1))
    return folder / "data"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduction")


def found(name: str, *, data: Path, out: Path) -> Findings:
    item = find_item(name, among=all_items())
    place = Workplace("smoke", out, item.name, data, Voice(), 1)
    findings = item.find(place)
    outcome = keep_findings(place, item, findings)
    assert outcome["verdict"] == findings.verdict
    assert (place.folder / "figure.png").is_file()
    return findings


def test_variance_at_one_total_size(data: Path, out: Path) -> None:
    findings = found("soma-fig10", data=data, out=out)
    whole = [row for row in findings.rows if "r_g" in row]
    assert {(row["num_experts"], row["stage"]) for row in whole} == {
        (n, s) for n in (1, 2, 8) for s in ("early", "late")
    }
    for row in whole:
        assert row["r_g"] == pytest.approx(row["r_g_predicted"], rel=0.3)  # 512 directions: a standard error of 6 %
        assert row["r_g"] == pytest.approx(row["r_g_exact_slopes_same_probes"], rel=0.02)
        assert row["float64_over_float32"] == pytest.approx(1, abs=5e-3)
        assert row["r_g_one_sided_predicted"] > row["r_g_predicted"]
    by_size = {row["num_experts"]: row["r_g"] for row in whole if row["stage"] == "late"}
    assert by_size[1] > 1.5 * by_size[2] > 3 * by_size[8]


def test_one_fixed_objective(data: Path, out: Path) -> None:
    findings = found("soma-fig11", data=data, out=out)
    ratio = findings.rows[0]
    assert ratio["summed_over_independent"] == pytest.approx(4, abs=5 * ratio["standard_error"])
    assert 0 < ratio["standard_error"] < 0.3
    assert findings.verdict != "agrees"  # eight draws are too few for any optimum
    left = [row for row in findings.rows if row.get("panel") == "fixed batch"]
    assert {row["difference"] for row in left} == {"central", "one_sided"}
    for row in left:
        assert row["relative_error"] == pytest.approx(row["predicted"], rel=0.25)


def test_gradient_error_and_its_cost(data: Path, out: Path) -> None:
    findings = found("soma-table8", data=data, out=out)
    claims = claims_of(findings.rows[:-6], stage="initial")
    assert claims["fall_by_directions"] == pytest.approx(claims["fall_by_directions_predicted"], abs=0.05)
    assert {row["reference_windows"] for row in findings.rows[-6:]} == {64}
    assert all(row["device_seconds_per_step"] > 0 for row in findings.rows[:-6])


def test_ensembles_are_trained_once_and_differ(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Workplace("smoke", out, "soma-fig10", data, Voice(), 1)
    late = ensemble(place, num_experts=2, stage="late")
    assert not torch.equal(late.theta[0], late.theta[1])
    monkeypatch.setattr(laboratory, "train_stacked", None)
    assert torch.equal(ensemble(place, num_experts=2, stage="late").theta, late.theta)


def test_a_short_text_is_answered(tiny_data: Path, tmp_path: Path) -> None:
    place = Workplace("smoke", tmp_path, "soma-fig10", tiny_data, Voice(), 1)
    with pytest.raises(UserError, match="validation text is too short"):
        held_out_windows(place, sets={"reference": 100_000})


def test_held_out_sets_are_disjoint(data: Path, tmp_path: Path) -> None:
    place = Workplace("smoke", tmp_path, "soma-fig10", data, Voice(), 1)
    sets = held_out_windows(place, sets={"first": 40, "second": 40})
    assert not {bytes(one.numpy()) for one in sets["first"]} & {bytes(one.numpy()) for one in sets["second"]}


def variance_row(**changes: Any) -> dict[str, Any]:
    row = {"r_g": 100.0, "r_g_predicted": 100.0, "r_g_standard_error": 1.0, "parameters": 10**6}
    row |= {"averaged": [64 / n for n in AVERAGES], "averaged_directions_of_an_expert": 512}
    return row | changes


def test_the_rule_of_figure_10() -> None:
    assert verdict_of([variance_row()]) == "agrees"
    assert verdict_of([variance_row(), variance_row(r_g=106.0)]) == "differs"
    assert verdict_of([variance_row(r_g=106.0, r_g_standard_error=4.0)]) == "scale too small to tell"
    bent = variance_row(averaged=[64 / n + 0.1 for n in AVERAGES])
    assert law_deviation(bent) == pytest.approx(0.1 * 32 / 64.1, rel=0.05)
    assert verdict_of([bent]) == "differs"
    assert verdict_of([variance_row(parameters=1000, averaged_directions_of_an_expert=64)]) == "scale too small to tell"


def test_the_rules_of_figure_11() -> None:
    generator = np.random.default_rng(1)
    independent = generator.normal(1, 0.05, 400)
    ratio = ratio_of(4.05 * independent * generator.normal(1, 0.05, 400), independent)
    assert ratio["standard_error"] == pytest.approx(4.05 * 0.05 / 20, rel=0.2)
    assert ratio_verdict(ratio) == "agrees"
    assert ratio_verdict({"summed_over_independent": 4.2, "standard_error": 0.01}) == "differs"
    assert ratio_verdict({"summed_over_independent": 4.0, "standard_error": 0.06}) == "scale too small to tell"
    rows = [
        {
            "losses": losses,
            "difference": "central",
            "batch": b,
            "relative_error": e,
            "predicted": p,
            "predicted_best_batch": 2.0,
        }
        for losses in ("summed", "two groups", "independent")
        for b, e, p in ((1, 5.0, 4.0), (2, 4.0, 3.0), (4, 3.0, 3.5), (8, 6.0, 5.0))
    ]
    assert best_batches(rows, "summed") == (4, 2, 2.0)
    assert optimum_verdicts(rows, draws=32) == ["agrees"] * 3
    assert optimum_verdicts(rows, draws=8) == ["scale too small to tell"]
    rows[0]["relative_error"] = rows[3]["relative_error"] = 1.0
    rows[3]["relative_error"] = 0.5
    assert optimum_verdicts(rows, draws=32)[0] == "differs"


def test_the_rules_of_figure_5() -> None:
    claims = {"largest": 256, "fall_by_directions": 0.94, "fall_by_directions_predicted": 0.9375, "order": True}
    assert claim_verdict(claims | {"cheaper": True}) == "agrees"
    assert claim_verdict(claims | {"cheaper": False}) == "differs"
    assert claim_verdict(claims | {"cheaper": True, "fall_by_directions": 0.9}) == "differs"
    assert claim_verdict(claims | {"cheaper": True, "largest": 8}) == "scale too small to tell"
    rows = [{"difference": "central", "against_first": 100.0, "against_second": 103.0}]
    assert reference_verdict(rows) == "agrees"
    rows[0]["against_second"] = 105.0
    assert reference_verdict(rows) == "scale too small to tell"


def test_totals_of_every_scale_are_about_equal() -> None:
    for lab in LABORATORIES.values():
        totals = [lab.total_parameters(n) for n in lab.sizes]
        assert max(totals) / min(totals) < 1.08


def test_a_stopped_ensemble_goes_on_and_ends_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the updates behind the checkpoint of update 10, then in none."""
    whole = ensemble(Workplace("smoke", tmp_path / "whole", "toy", data, Voice(), 1), num_experts=2, stage="late")
    place = Workplace("smoke", tmp_path / "stopped", "toy", data, Voice(), 1)
    drawn, draw = [], laboratory.draw_training_windows

    def stopping(*given: Any, update: int, **named: Any) -> np.ndarray:
        drawn.append(update)
        if update == 15 and drawn.count(15) == 1:
            raise KeyboardInterrupt
        return draw(*given, update=update, **named)

    monkeypatch.setattr(laboratory, "draw_training_windows", stopping)
    with pytest.raises(KeyboardInterrupt):
        ensemble(place, num_experts=2, stage="late")
    drawn.append(-1)
    late = ensemble(place, num_experts=2, stage="late")
    assert min(drawn[drawn.index(-1) + 1 :]) == 11
    assert torch.equal(late.theta, whole.theta)
    assert torch.equal(late.decoder, whole.decoder)
    assert sorted(path.name for path in (place.out / "ensembles").iterdir()) == [
        "n2-early.safetensors",
        "n2-late.safetensors",
    ]
