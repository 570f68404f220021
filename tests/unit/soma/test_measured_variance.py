"""Does ``measure variance`` say what a run's estimates are like, keep it, and refuse what it cannot measure?"""

import json
import shutil
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.soma import theory
from thinwire.soma.measured_variance import Effort, measure_variance
from thinwire.soma.theory import NoiseTerms

ARGUMENTS = ("--experts", "1", "--repeats", "2", "--reference-windows", "8")


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def test_json_is_one_object_and_the_file(run: Path, here) -> None:
    outcome = here("measure", "variance", run, *ARGUMENTS, "--json")
    assert outcome.status == 0, outcome.err
    record = json.loads(outcome.out)
    assert record == json.loads((run / "results/variance.json").read_text())
    assert record["kind"] == "measure-variance"
    assert (record["experts"], record["updates"], record["directions"], record["batch"]) == ([0], [6], 4, 4)
    assert record["a"] == record["num_parameters"] - 1
    assert record["nu"] > 0
    assert set(record["measured"]) == {"central", "one_sided"}
    terms = NoiseTerms(**record["probe_terms"])
    own, best = record["allocations"]["own"], record["allocations"]["best"]["one_sided"]
    assert record["allocations"]["window_forwards"] == 16
    setting = {"directions": 4, "batch": 4, "difference": "one_sided"}
    assert own["variance"] == pytest.approx(theory.relative_variance(terms, **setting))
    assert best["variance"] <= own["variance"]
    for difference, found in record["measured"].items():
        assert found["r_g"]["predicted"] > 0
        assert -1 <= found["cosine"]["measured"] <= 1.5
        assert found["relative_error"]["standard_error"] > 0
        assert (difference == "central") == ("small_epsilon_same_probes" in found["r_g"])
    r_g = record["measured"]["central"]["r_g"]
    assert r_g["measured"] == pytest.approx(r_g["small_epsilon_same_probes"], rel=0.01)  # eps and float32 alone
    again = here("measure", "variance", run, *ARGUMENTS, "--json")
    assert json.loads(again.out) == record


def test_the_table_and_single_precision_beside_float64(run: Path, here) -> None:
    text = here("measure", "variance", run, *ARGUMENTS).out.decode()
    for words in (
        "nu",
        "reference",
        "central: R_g",
        "one_sided: cosine",
        "least variance, one_sided",
        "least cost, one_sided",
        "the run's, one_sided",
    ):
        assert words in text
    fast, exact = (
        measure_variance(run, effort=Effort(experts=1, repeats=1, reference_windows=8, arithmetic=arithmetic))
        for arithmetic in ("training", "float64")
    )
    central = [found["measured"]["central"]["r_g"]["measured"] for found in (fast, exact)]
    assert central[0] == pytest.approx(central[1], rel=1e-2)
    assert fast["measured"]["central"]["relative_error"]["standard_error"] is None  # one estimate


def test_mistakes(run: Path, here, tmp_path: Path) -> None:
    stock = tmp_path / "stock"
    stock.mkdir()
    (stock / "config.json").write_text('{"kind": "subspaces", "config": {}}')
    cases = [
        (("measure", "variance", stock), "kind 'subspaces', not soma"),
        (("measure", "variance", tmp_path / "absent"), "absent"),
        (("measure", "variance", run, "--repeats", "0"), "nothing to measure"),
        (("measure", "variance", run, "--reference-windows", "-1"), "cannot be negative"),
        (("measure", "variance", run, "--reference-windows", "2"), "too little"),
    ]
    for argv, words in cases:
        outcome = here(*argv)
        assert outcome.status == 2
        assert words in outcome.err
        assert "Traceback" not in outcome.err
    shutil.rmtree(run / "experts")
    with pytest.raises(UserError, match="no expert of this run has a checkpoint"):
        measure_variance(run)
