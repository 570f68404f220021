"""Do the sweeps over all experts equal what each k, and each pair, gives when it is computed alone in FP64?"""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiny_runs
from thinwire.base.errors import UserError
from thinwire.soma import complementarity
from thinwire.soma.active_experts import losses_for_every_k, measure_active_experts
from thinwire.soma.complementarity import PairSums, measure_complementarity, pairs_of, slope_of, sum_over_bytes
from thinwire.soma.ensemble import score_windows, scores_under
from thinwire.soma.every_expert import HeldOut, Readings, open_subject
from thinwire.soma.pair_averages import add_pair_averages

CONFIG = replace(tiny_runs.CONFIG, clusters=replace(tiny_runs.CONFIG.clusters, num_clusters=4))


@pytest.fixture(scope="module")
def run_of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    tiny_runs.train_in_process(CONFIG, data=tiny_runs.prepared_data(folder), out=folder / "run")
    return folder / "run"


def test_every_k_equals_scoring_with_that_k(run_of_four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.soma.ensemble.REQUESTS_PER_CHUNK", 12)  # three windows at a time
    subject = open_subject(run_of_four, held_out=HeldOut("test"))
    windows = subject.windows.windows.copy()
    windows[1, : subject.ensemble.prefix_bytes] = ord("~")  # no known word: averaged by prior
    subject = subject._replace(windows=subject.windows._replace(windows=windows))
    assert len(windows) > 3
    losses = losses_for_every_k(subject, held_out=HeldOut("test"))
    for k in range(1, 5):
        expected = score_windows(subject.ensemble, windows, active_experts=k).mixture
        np.testing.assert_allclose(losses[:, k - 1], expected, rtol=1e-12)


def test_pairs_equal_brute_force_in_float64(run_of_four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.soma.ensemble.REQUESTS_PER_CHUNK", 12)
    monkeypatch.setattr(complementarity, "FEWEST_PAIRS_PER_BIN", 2)
    record = measure_complementarity(run_of_four, held_out=HeldOut("test", threads=2))
    subject = open_subject(run_of_four, held_out=HeldOut("test"))
    windows = subject.windows.windows
    every = np.tile(np.arange(4), (len(windows), 1))
    log_p = scores_under(subject.ensemble, windows, experts=every).numpy().transpose(1, 0, 2).reshape(4, -1)
    residual = -log_p + log_p.mean(axis=0)
    correlations, reductions = [], []
    for i, j in itertools.combinations(range(4), 2):
        correlations.append(np.corrcoef(residual[i], residual[j])[0, 1])
        average = -np.log((np.exp(log_p[i]) + np.exp(log_p[j])) / 2).mean()
        reductions.append(-(log_p[i].mean() + log_p[j].mean()) / 2 - average)
    np.testing.assert_allclose(record["pairs"]["correlation"], correlations, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(record["pairs"]["reduction"], reductions, rtol=1e-9, atol=1e-12)
    assert record["slope"] == pytest.approx(np.polyfit(correlations, reductions, 1)[0], rel=1e-8)
    assert record["num_pairs"] == sum(group["pairs"] for group in record["bins"]) == 6
    assert len(record["bins"]) == 3
    assert record["scored_targets"] == log_p.shape[1]
    weighted = sum(group["pairs"] * group["reduction"] for group in record["bins"]) / 6
    assert record["mean_reduction"] == pytest.approx(weighted, rel=1e-12)


def made_up_sums(num_experts: int, *, seed: int = 3, num_bytes: int = 400) -> tuple[np.ndarray, PairSums]:
    generator = np.random.default_rng(seed)
    scores = -generator.gamma(2.0, 1.0, (num_experts, num_bytes)) - generator.gamma(1.0, 1.0, num_bytes)
    every = np.tile(np.arange(num_experts), (num_bytes, 1))
    part = Readings(slice(0, num_bytes), scores.T[..., None].copy(), every, np.full(every.shape, 1 / num_experts))
    return scores, sum_over_bytes([part], num_experts=num_experts)


def test_leaving_an_expert_out_is_never_having_had_it() -> None:
    scores, sums = made_up_sums(6)
    for without in (0, 3, 5):
        fewer = np.delete(scores, without, axis=0)
        every = np.tile(np.arange(5), (fewer.shape[1], 1))
        part = Readings(slice(0, len(every)), fewer.T[..., None].copy(), every, np.full(every.shape, 0.2))
        anew = pairs_of(sum_over_bytes([part], num_experts=5))
        left = pairs_of(sums, without=without)
        np.testing.assert_allclose(left.correlation, anew.correlation, rtol=1e-9)
        np.testing.assert_allclose(left.reduction, anew.reduction, rtol=1e-9)


def test_jackknife_is_wider_than_one_that_takes_pairs_as_independent() -> None:
    _, sums = made_up_sums(8)
    low, high = complementarity.jackknife(sums)
    slope = slope_of(pairs_of(sums))
    assert low < slope < high
    assert slope < 0  # different errors, more gain
    assert complementarity.jackknife(made_up_sums(3)[1]) is None


def test_experts_that_are_one_gain_nothing() -> None:
    row = -np.random.default_rng(1).gamma(2.0, 1.0, 300)
    scores = np.tile(row, (4, 1))
    every = np.tile(np.arange(4), (300, 1))
    part = Readings(slice(0, 300), scores.T[..., None].copy(), every, np.full(every.shape, 0.25))
    sums = sum_over_bytes([part], num_experts=4)
    pairs = pairs_of(sums)
    np.testing.assert_allclose(pairs.reduction, 0.0, atol=1e-12)
    assert slope_of(pairs) is None
    assert complementarity.findings(sums)["slope_ci95"] is None


@pytest.mark.parametrize("num_bytes", [1, 8, 37])
def test_pair_averages_survive_probabilities_that_float64_cannot_multiply(num_bytes: int) -> None:
    generator = np.random.default_rng(2)
    scores = -generator.uniform(0, 5, (5, num_bytes))
    scores[:4] -= 300.0  # one expert is always far better, so the others' products underflow
    sums = np.zeros((5, 5))
    add_pair_averages(sums, scores)
    threaded = np.zeros((5, 5))
    add_pair_averages(threaded, scores, threads=3)
    np.testing.assert_array_equal(sums, threaded)
    for i, j in itertools.combinations(range(5), 2):
        expected = np.sum(np.logaddexp(scores[i], scores[j]) - np.log(2))
        assert sums[i, j] == pytest.approx(expected, rel=1e-12)
    assert not np.tril(sums).any()


def test_the_sweep_says_what_it_scored(run_of_four: Path) -> None:
    record = measure_active_experts(run_of_four, held_out=HeldOut(max_windows=3))
    losses = [row["loss"] for row in record["sweep"]]
    best = int(np.argmin(losses))
    assert record["best_active_experts"] == best + 1
    assert record["gain_of_best"] == pytest.approx(losses[0] - losses[best])
    assert [row["active_experts"] for row in record["sweep"]] == [1, 2, 3, 4]
    assert record["sweep"][3]["expert_operations_per_byte"] == 4 * record["sweep"][0]["expert_operations_per_byte"]
    assert record["windows"] == 3
    assert record["split"] == "valid"
    assert record["scored_targets"] == 3 * (128 - 32)
    if record["gain_of_best"] > 0:
        assert record["sweep"][best]["part_of_gain"] == 1.0
    for row in record["sweep"]:
        assert row["ci95"][0] <= row["loss"] <= row["ci95"][1]


def test_one_expert_has_a_sweep_and_no_pair(tmp_path: Path) -> None:
    config = replace(CONFIG, clusters=replace(CONFIG.clusters, num_clusters=1))
    tiny_runs.train_in_process(config, data=tiny_runs.prepared_data(tmp_path), out=tmp_path / "run")
    record = measure_active_experts(tmp_path / "run")
    assert len(record["sweep"]) == 1
    assert record["sweep"][0]["part_of_gain"] is None
    with pytest.raises(UserError, match="no pair"):
        measure_complementarity(tmp_path / "run")


def test_verbs_keep_what_they_print(run_of_four: Path, here, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of_four, tmp_path / "run"))
    for what in ("active-experts", "complementarity"):
        outcome = here("measure", what, run, "--json")
        assert outcome.status == 0, outcome.err
        assert json.loads(outcome.out) == json.loads((run / f"results/{what}.json").read_text())
        table = here("measure", what, run, "--split", "test", "--windows", "3").out.decode()
        assert "3 test windows" in table
        assert max(map(len, table.splitlines())) <= 80
    assert here("measure", "active-experts", run, "--windows", "-1").status == 2
    assert here("measure", "complementarity", tmp_path / "absent").status == 2
