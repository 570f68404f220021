"""Do the page's panels of measurements say what was measured, and is what is damaged left out with a sentence?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.bootstrap import Interval
from thinwire.report.collect import collect_runs
from thinwire.report.measurement_figures import active_experts_figure, complementarity_figure, variance_figure
from thinwire.report.measurement_section import (
    active_experts_sentence,
    complementarity_sentence,
    measurement_drawings,
    variance_sentence,
)
from thinwire.report.measurements import read_measurements
from thinwire.report.page import render_page, write_report

MakeRun = Callable[..., Path]


def sweep_of(losses: list[float]) -> dict[str, Any]:
    best = losses.index(min(losses))
    gain = losses[0] - losses[best]
    rows = []
    for k, loss in enumerate(losses, start=1):
        row = {
            "active_experts": k,
            "loss": loss,
            "ci95": [loss - 0.1, loss + 0.1],
            "expert_operations_per_byte": 81_920 * k,
            "part_of_gain": (losses[0] - loss) / gain if gain else None,
        }
        if k > 1:
            row["below_one_expert_ci95"] = [losses[0] - loss - 0.01, losses[0] - loss + 0.01]
        rows.append(row)
    return {
        "kind": "measure-active-experts",
        "split": "valid",
        "windows": 512,
        "routed_experts": 4,
        "best_active_experts": best + 1,
        "sweep": rows,
    }


PAIRS = {
    "split": "valid",
    "num_experts": 4,
    "num_pairs": 6,
    "mean_reduction": 0.05,
    "slope": -0.2,
    "slope_ci95": [-0.3, -0.1],
    "bins": [
        {"pairs": 3, "correlation": -0.3, "reduction": 0.06, "standard_error": 0.002},
        {"pairs": 3, "correlation": 0.1, "reduction": 0.04, "standard_error": 0.0},
    ],
    "pairs": {"first": [0], "second": [1], "correlation": [-0.4], "reduction": [0.07]},
}
VARIANCE = {
    "nu": 12.5,
    "probe_terms": {"a": 32_927.0},
    "experts": [0, 2],
    "updates": [100, 100],
    "measured": {
        "central": {
            "r_g": {"measured": 31.0, "standard_error": 3.0, "predicted": 30.0},
            "relative_error": {"without_reference_noise": 40.0, "standard_error": None, "predicted": 41.0},
            "cosine": {"measured": 0.16, "predicted": 0.155},
        },
        "one_sided": {
            "r_g": {"measured": None, "standard_error": None, "predicted": 30.0},
            "relative_error": {"without_reference_noise": 42.0, "standard_error": 2.0, "predicted": 43.0},
            "cosine": {"measured": 0.15, "predicted": 0.15},
        },
    },
    "allocations": {
        "own": {"difference": "one_sided", "directions": 64, "batch": 16, "variance": 60.0},
        "best": {"one_sided": {"directions": 512, "batch": 2, "variance": 40.0}},
    },
}
THROUGHPUT = {
    "device": "a <b>processor</b>",
    "implementation": "numba",
    "byte_forwards_per_s": 2_500_000.0,
    "fraction_of_peak": 0.72,
    "inference": {"tokens_per_s": 400_000.0, "routing_share": 0.011},
}


@pytest.fixture
def measured(make_run: MakeRun) -> Path:
    folder = make_run("measured", parts=("seed", "router", "experts", "test"))
    parts = {
        "active-experts": sweep_of([2.5, 2.4, 2.35, 2.32, 2.31, 2.3, 2.31, 2.33]),
        "complementarity": PAIRS,
        "variance": VARIANCE,
        "throughput": THROUGHPUT,
    }
    for name, record in parts.items():
        (folder / f"results/{name}.json").write_text(json.dumps(record))
    return folder


def test_page_and_figures(measured: Path, tmp_path: Path) -> None:
    files = write_report([measured], out=tmp_path / "out")
    page = files.html.read_text(encoding="utf-8")
    for title in ("Gradient noise", "How many experts answer", "Averaging two experts", "Speed"):
        assert f"<h2>{title}</h2>" in page
    assert "a &lt;b&gt;processor&lt;/b&gt;" in page
    names = {path.stem for path in files.pngs}
    assert names >= {"variance", "active-experts", "complementarity", "curves", "curves-log"}
    run = collect_runs([measured])[0]
    assert run.damage == ()
    assert [score.name for score in run.scores] == ["test"]


def test_sentences_are_computed(measured: Path) -> None:
    found = read_measurements(measured, [])
    assert active_experts_sentence(found.active_experts) == (
        "6 of 8 experts are best, 0.2000 nats/byte below one expert. The run's k = 4 takes 90% of that."
    )
    assert "experts that err on different bytes gain more" in complementarity_sentence(found.complementarity)
    words = variance_sentence(found.variance)
    assert "512 one-sided directions of 2 windows have the least variance and a relative variance of 40" in words
    assert "experts 0 (update 100), 2 (update 100)" in words
    names = [one.name for one in found.variance.compared]
    assert names == ["R_g, central", "R, central", "cosine, central", "R, one-sided", "cosine, one-sided"]


def test_least_cost_is_named_where_curvature_was_measured(measured: Path) -> None:
    cheapest = {"cheapest": {"one_sided": {"directions": 128, "batch": 8, "variance": 55.0}}}
    record = VARIANCE | {"allocations": VARIANCE["allocations"] | cheapest}
    (measured / "results/variance.json").write_text(json.dumps(record))
    found = read_measurements(measured, []).variance
    words = variance_sentence(found)
    assert "128 one-sided directions of 8 windows have the least cost and a relative variance of 55" in words
    shown = [text.get_text() for text in variance_figure(found).axes[1].get_yticklabels()]
    assert shown[1:] == ["least variance, one-sided: 512 × 2", "least cost, one-sided: 128 × 8"]


@pytest.mark.parametrize(
    ("between", "words"), [([0.1, 0.2], "err alike gain more"), ([-0.1, 0.2], "not decided"), (None, "four experts")]
)
def test_slope_in_words(measured: Path, between: list[float] | None, words: str) -> None:
    path = measured / "results/complementarity.json"
    path.write_text(json.dumps(PAIRS | {"slope_ci95": between}))
    assert words in complementarity_sentence(read_measurements(measured, []).complementarity)


def test_one_expert_may_be_best(measured: Path) -> None:
    (measured / "results/active-experts.json").write_text(json.dumps(sweep_of([2.0, 2.1, 2.2, 2.3])))
    found = read_measurements(measured, []).active_experts
    assert active_experts_sentence(found).startswith("One expert is best")
    assert found.sweep[0].below_one_expert == Interval(0.0, 0.0)


def test_figures_draw_what_was_measured(measured: Path) -> None:
    found = read_measurements(measured, [])
    line = active_experts_figure(found.active_experts).axes[0].lines[0]
    assert list(line.get_ydata()) == [row.loss_nats_per_byte for row in found.active_experts.sweep]
    groups = complementarity_figure(found.complementarity).axes[0].lines[1]
    assert list(groups.get_xdata()) == [-0.3, 0.1]
    left, right = variance_figure(found.variance).axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["R_g, central", "R, central", "R, one-sided"]
    assert [text.get_text() for text in right.get_yticklabels()][1] == "least variance, one-sided: 512 × 2"


def test_many_experts_are_thinned_out_in_the_table(measured: Path) -> None:
    losses = [2.5 - 0.001 * k for k in range(100)] + [2.45 + 0.0001 * k for k in range(156)]
    (measured / "results/active-experts.json").write_text(json.dumps(sweep_of(losses)))
    page = render_page(collect_runs([measured]))
    shown = page.partition("Loss and expert arithmetic for each k")[2].partition("</table>")[0]
    assert ">256</th>" in shown
    assert ">100</th>" in shown  # the best
    assert ">4</th>" in shown  # the run's own
    assert shown.count("<tr>") < 22


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("variance", "{"),
        ("variance", '{"nu": 1}'),
        ("active-experts", json.dumps(sweep_of([2.0, 1.9]) | {"routed_experts": 9})),
        ("active-experts", json.dumps(sweep_of([2.0, 1.9]) | {"sweep": []})),
        ("complementarity", json.dumps(PAIRS | {"mean_reduction": "NaN"})),
        ("throughput", "[]"),
    ],
)
def test_what_is_damaged_is_left_out(measured: Path, name: str, text: str) -> None:
    (measured / f"results/{name}.json").write_text(text)
    damage: list[str] = []
    found = read_measurements(measured, damage)
    assert getattr(found, name.replace("-", "_")) is None
    assert len(damage) == 1
    assert name in damage[0]
    assert len(list(measurement_drawings(found))) == (3 if name == "throughput" else 2)
    assert "What is not here" in render_page(collect_runs([measured]))
