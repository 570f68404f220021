"""Are the counts the protocol's, are intervals and names right, and is nobody's result overwritten?"""

import json
from pathlib import Path

import numpy as np
import pytest

import tiny_runs
from thinwire.api.verbs import evaluate
from thinwire.base.errors import UserError
from thinwire.base.files import read_json
from thinwire.cli.evaluate import score_rows
from thinwire.data.corpus import Corpus
from thinwire.soma.ensemble import load_ensemble, score_bytes, score_windows, windows_at_once
from thinwire.soma.scoring import corpus_windows, loss_matrix, result_name, score_text
from tiny_runs import CONFIG, copy_of


def test_the_test_record_says_what_the_contract_promises(tiny_run: Path, tiny_data: Path) -> None:
    record = json.loads((tiny_run / "results" / "test.json").read_text())
    windows = corpus_windows(CONFIG, Corpus.open(tiny_data)).windows
    assert record["windows"] == len(windows)
    assert record["scored_targets"] == len(windows) * (128 - 32)
    assert (record["num_experts"], record["active_experts"]) == (2, 1)
    assert record["ci95"][0] <= record["loss_nats_per_byte"] <= record["ci95"][1]
    assert record["bits_per_byte"] == pytest.approx(record["loss_nats_per_byte"] / np.log(2), rel=1e-12)
    assert len(record["single_expert_loss_nats_per_byte"]) == 2
    assert record["baselines"].keys() == {"byte_unigram", "byte_bigram", "xz"}
    assert record["by_source"].keys() == {"texts"}


def test_the_loss_is_the_mean_over_every_scored_target(tiny_run: Path, tiny_data: Path) -> None:
    """Each window scored on its own, byte by byte, gives the record's loss; threads change nothing."""
    ensemble = load_ensemble(tiny_run)
    windows = corpus_windows(CONFIG, Corpus.open(tiny_data)).windows
    alone = np.concatenate([score_bytes(ensemble, window.tobytes()) for window in windows])
    record = evaluate(tiny_run, name="again", threads=2)
    (tiny_run / "results" / "again.json").unlink()
    assert len(alone) == record["scored_targets"]
    assert -alone.mean() == pytest.approx(record["loss_nats_per_byte"], rel=1e-12)
    test = json.loads((tiny_run / "results" / "test.json").read_text())
    assert record | {"name": "test"} == test


def test_experts_scored_alone_average_to_the_mixture_of_one(tiny_run: Path, tiny_data: Path) -> None:
    ensemble = load_ensemble(tiny_run)
    windows = corpus_windows(CONFIG, Corpus.open(tiny_data)).windows
    routed = score_windows(ensemble, windows)
    np.testing.assert_allclose(routed.mixture, routed.experts[:, 0], rtol=1e-12)
    both = score_windows(ensemble, windows, active_experts=2)
    assert both.experts.shape == (len(windows), 2)
    assert np.all(both.mixture <= both.experts.mean(axis=1) + 1e-12), "a mixture is never worse than its mean"


@pytest.mark.parametrize(("implementation", "tolerance"), [("numba", 0.0), ("reference", 1e-7)])
def test_chunks_and_blocks_change_no_score_and_every_window_is_counted(
    tiny_run: Path, tiny_data: Path, implementation: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = load_ensemble(tiny_run)
    windows = corpus_windows(CONFIG, Corpus.open(tiny_data)).windows[:21]
    whole = score_windows(ensemble, windows, active_experts=2, implementation=implementation)
    monkeypatch.setattr("thinwire.soma.ensemble.REQUESTS_PER_CHUNK", 11)
    monkeypatch.setattr("thinwire.soma.ensemble.WINDOWS_PER_MIXTURE", 2)
    told: list[int] = []

    class Listening:
        def task(self, name: str, total: int | None) -> "Listening":
            assert (name, total) == ("score windows", len(windows))
            return self

        def advance(self, count: int = 1) -> None:
            told.append(count)

        def note(self, text: str) -> None: ...

        def close(self) -> None: ...

    arguments = {"active_experts": 2, "implementation": implementation, "progress": Listening()}
    pieces = score_windows(ensemble, windows, threads=3, **arguments)
    # PyTorch's matrix products round otherwise in another batch; the compiled kernels do not.
    np.testing.assert_allclose(pieces.mixture, whole.mixture, rtol=tolerance, atol=0.0)
    np.testing.assert_allclose(pieces.experts, whole.experts, rtol=tolerance, atol=0.0)
    assert sum(told) == len(windows)
    assert min(told) > 0


@pytest.mark.parametrize("active", [0, -1, 3])
def test_no_expert_or_more_than_there_are_is_refused(tiny_run: Path, active: int) -> None:
    with pytest.raises(UserError, match="the run has 2") as caught:
        evaluate(tiny_run, active_experts=active)
    assert caught.value.fix == "choose 1 to 2"


@pytest.mark.parametrize(
    ("on", "active", "name"),
    [
        (None, None, "test"),
        (None, 2, "test-k2"),
        ("wiki.test.raw", None, "wiki.test"),
        ("test.txt", None, "text-test"),
        ("matrix.json", None, "text-matrix"),
        ("sample", 3, "text-sample-k3"),
        ("a/b/done.md", None, "text-done"),
    ],
)
def test_results_have_names_that_replace_no_other(on: str | None, active: int | None, name: str) -> None:
    assert result_name(None if on is None else Path(on), active_experts=active) == name


def test_another_k_leaves_the_runs_own_scores_alone(tiny_run: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    before = (root / "results" / "test.json").read_bytes()
    record = evaluate(root, active_experts=2)
    assert record["active_experts"] == 2
    assert json.loads((root / "results" / "test-k2.json").read_text()) == record
    assert (root / "results" / "test.json").read_bytes() == before


def test_the_matrix_is_measured_behind_a_quarter_of_short_windows(tiny_run: Path, tmp_path: Path) -> None:
    """Clusters of 64-byte windows, and a routed prefix longer than that."""
    root = copy_of(tiny_run, tmp_path / "run")
    config = json.loads((root / "config.json").read_text())
    config["config"]["routing"]["prefix_bytes"] = 100
    (root / "config.json").write_text(json.dumps(config))
    matrix = loss_matrix(root)
    assert matrix is not None
    assert np.shape(matrix["loss_nats_per_byte"]) == (2, 2)
    assert np.all(np.isfinite(matrix["loss_nats_per_byte"]))
    own = [cluster == best for cluster, best in enumerate(matrix["best_expert"])]
    assert matrix["own_is_best"] == own


def test_an_untrained_run_says_what_is_missing(tiny_data: Path, tmp_path: Path) -> None:
    tiny_runs.start_run(CONFIG, data=tiny_data, out=tmp_path / "run")
    with pytest.raises(UserError, match="expert 0 has no checkpoint yet"):
        evaluate(tmp_path / "run")


def test_a_text_too_short_is_named(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(UserError, match="too short for one window of 129 bytes") as caught:
        evaluate(tiny_run, on=tmp_path / "short.txt")
    assert caught.value.where == str(tmp_path / "short.txt")


def test_any_bytes_can_be_scored(tiny_run: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    noise = np.random.default_rng(3).integers(128, 256, 1000).astype(np.uint8).tobytes()
    (tmp_path / "noise.txt").write_bytes(noise)
    record = evaluate(root, on=tmp_path / "noise.txt")
    assert record["windows"] == 1 + (1000 - 129) // 96
    assert np.isfinite(record["loss_nats_per_byte"])


# --- the paper's protocol (appendix L.1) on real text


@pytest.mark.shared_data
@pytest.mark.parametrize(("split", "windows", "targets"), [("test", 1631, 1_252_608), ("valid", 1443, 1_108_224)])
def test_wikitext_is_scored_on_the_papers_targets(
    tiny_run: Path, shared_data: Path, tmp_path: Path, split: str, windows: int, targets: int
) -> None:
    """1.25M test and 1.11M validation targets: 768 of each window of 1,025 bytes."""
    root = copy_of(tiny_run, tmp_path / "run")
    config = json.loads((root / "config.json").read_text())
    config["config"]["routing"]["prefix_bytes"] = 256
    config["config"]["scoring"]["window_bytes"] = 1024
    (root / "config.json").write_text(json.dumps(config))
    record = evaluate(root, on=shared_data / "wikitext" / f"wiki.{split}.raw", threads=2)
    assert (record["protocol"], record["name"]) == ("wikitext", f"wiki.{split}")
    assert (record["windows"], record["scored_targets"]) == (windows, targets)
    assert record["ci95"][0] < record["loss_nats_per_byte"] < record["ci95"][1]


def test_a_score_says_how_far_the_experts_are(tiny_run: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    record = score_text(root)
    assert (record["expert_updates"], record["planned_updates"]) == ([6, 6], 6)
    for path in (root / "experts" / "001" / "checkpoints").glob("00000006.*"):
        path.unlink()
    record = score_text(root)
    assert (record["expert_updates"], record["planned_updates"]) == ([6, 3], 6)
    assert ("not finished", "experts are at update 3 to 6 of 6") in score_rows(record)


def test_two_texts_of_one_name_keep_both_results(tiny_run: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    losses = []
    for name, byte in (("a", b"x"), ("b", b"y")):
        text = tmp_path / name / "same.txt"
        text.parent.mkdir()
        text.write_bytes(byte * 400)
        losses.append(evaluate(root, on=text)["loss_nats_per_byte"])
    kept = {read_json(path)["loss_nats_per_byte"] for path in (root / "results").glob("same*.json")}
    assert kept == set(losses)
    evaluate(root, on=tmp_path / "a" / "same.txt")
    assert len(list((root / "results").glob("same*.json"))) == 2


@pytest.mark.parametrize(
    ("per_window", "num_targets", "expected"), [(4, 768, 16_384), (4, 8192, 1600), (1, 1, 65_536), (256, 2**30, 1)]
)
def test_scores_of_a_chunk_take_bounded_memory(per_window: int, num_targets: int, expected: int) -> None:
    """400 MiB of FP64 scores, or one window's."""
    assert windows_at_once(per_window, num_targets=num_targets) == expected
