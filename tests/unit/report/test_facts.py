"""Do the sentences say what the numbers say?"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.report.collect import collect_runs
from thinwire.report.curves import run_lines
from thinwire.report.facts import aggregate_curve, early_words, matrix_sentence, missing_parts, score_sentence
from thinwire.report.lines import loss_ceiling
from thinwire.report.records import LossMatrix

MakeRun = Callable[..., Path]


def test_matrix_sentence_counts_and_names_the_exception() -> None:
    matrix = LossMatrix(losses=((1.0, 2.0, 3.0), (1.5, 1.9, 2.0), (1.4, 2.2, 2.5)), windows_per_cluster=())
    assert matrix.best_experts() == (0, 1, 1)
    words = matrix_sentence(matrix)
    assert words.startswith("2 of 3 experts are best on their own cluster; exception: on cluster 2 expert 1 is lower")
    assert "(2.0000 against 2.5000)" in words
    # margins: (1.5+1.4)/2-1.0 = 0.45, (2.0+2.2)/2-1.9 = 0.2, (3.0+2.0)/2-2.5 = 0
    assert "lies 0.2167 nats/byte below" in words


def test_matrix_sentence_with_a_tie_and_without_exceptions() -> None:
    matrix = LossMatrix(losses=((1.0, 2.0), (1.0, 2.0)), windows_per_cluster=())
    assert matrix.best_experts() == (0, 1)
    assert matrix_sentence(matrix).startswith("2 of 2 experts are best on their own cluster. ")


def test_matrix_sentence_stays_short_for_many_exceptions() -> None:
    losses = tuple(tuple(0.0 if e == 0 else 1.0 + e for _ in range(64)) for e in range(64))
    words = matrix_sentence(LossMatrix(losses=losses, windows_per_cluster=()))
    assert words.startswith("1 of 64 experts are best")
    assert "59 more in matrix.csv" in words
    assert len(words) < 500


def test_score_sentence_says_above_where_the_ensemble_is_worse(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run()])
    score = run.scores[0]
    assert "0.058 below the seed run's model" in score_sentence(score)
    worse = dataclasses.replace(score, loss_nats_per_byte=2.5)
    assert "0.238 above the seed run's model" in score_sentence(worse)
    assert "0.627 below byte unigram" in score_sentence(worse)
    equal = dataclasses.replace(score, loss_nats_per_byte=2.2621)
    assert "within 0.0005 of the seed run's model" in score_sentence(equal)


def test_aggregate_curve_sums_cost_and_weights_loss(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run(num_experts=2)])
    assert run.clusters is not None
    curve = aggregate_curve(run)
    assert len(curve) == 11 + 21
    last, weights = curve[-1], run.clusters.fractions
    expected = sum(w * job.validation[-1].loss_nats_per_byte for w, job in zip(weights, run.experts, strict=True))
    assert last.loss_nats_per_byte == pytest.approx(expected, rel=1e-12)
    assert last.byte_forwards == run.byte_forwards
    assert last.update == 3000


def test_aggregate_curve_leaves_the_experts_out_while_one_is_absent(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run(num_experts=3)])
    assert len(aggregate_curve(dataclasses.replace(run, experts=run.experts[:2]))) == 11


def test_missing_parts_follow_the_stages(make_run: MakeRun) -> None:
    def words(**shape: object) -> str:
        (run,) = collect_runs([make_run(f"run-{len(shape)}-{hash(str(shape))}", **shape)])
        return " ".join(missing_parts(run))

    assert words() == ""
    start = words(parts=())
    assert "The seed run is not started." in start
    assert "None of the 4 experts has started." in start
    assert "Nothing is scored yet" in start
    going = words(parts=("seed", "router", "experts"), expert_progress=0.3)
    assert "4 of 4 experts have not finished, at update 600 of 2,000: experts 0 to 3." in going
    assert "seed run" not in going
    assert "sample" in words(parts=("seed", "router", "experts", "test", "matrix"))


def test_seed_run_in_progress_is_named_though_the_clusters_are_found(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run(parts=("seed", "router"), seed_progress=0.7)])
    assert missing_parts(run)[0] == "The seed run is not finished, at update 700 of 1,000."
    assert "not started" not in missing_parts(run)[0]
    (run,) = collect_runs([make_run("later", parts=("router",))])
    assert missing_parts(run)[0] == "The seed run is not started."
    (run,) = collect_runs([make_run("copied", parts=("router", "experts"))])
    assert missing_parts(run)[0] == "The seed run's log is not there."


def test_unfinished_experts_are_named_though_the_run_is_scored(make_run: MakeRun) -> None:
    folder = make_run(num_experts=6)
    for expert, last_update in ((1, 500), (2, 700), (4, 600)):
        log = folder / f"experts/{expert:03d}/log.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        log.write_text("".join(line for line in lines if json.loads(line)["update"] <= last_update), encoding="utf-8")
    (folder / "experts/003/log.jsonl").unlink()
    (run,) = collect_runs([folder])
    assert run.scores
    assert missing_parts(run) == (
        "1 of 6 experts has not started: expert 3.",
        "3 of 6 experts have not finished, at updates 500 to 700 of 2,000: experts 1, 2 and 4.",
    )


def test_early_score_says_at_which_updates(make_run: MakeRun) -> None:
    def words(name: str, **shape: object) -> str:
        (run,) = collect_runs([make_run(name, num_experts=2, **shape)])
        return early_words(run, run.scores[0])

    assert words("early", scored_updates=(1640, 1655)) == "scored at updates 1,640 to 1,655 of 2,000"
    assert words("one", scored_updates=(1640, 1640)) == "scored at update 1,640 of 2,000"
    assert words("uneven", scored_updates=(1640, 2000)) == "scored at updates 1,640 to 2,000 of 2,000"
    assert words("end", scored_updates=(2000, 2000)) == ""
    assert words("silent") == ""
    assert words("silent-early", expert_progress=0.5) == "scored before the experts' training ended"
    assert words("without-logs", parts=("test",)) == ""


def test_score_of_a_run_made_longer_later_is_early(make_run: MakeRun) -> None:
    folder = make_run(num_experts=2, scored_updates=(2000, 2000))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["config"]["experts"]["updates"] = 4000
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (run,) = collect_runs([folder])
    assert early_words(run, run.scores[0]) == "scored at update 2,000 of 4,000"


def test_only_the_first_fall_of_the_loss_is_cut_off(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run()])
    ceiling = loss_ceiling(run_lines(run))
    assert ceiling is not None
    assert 3.127 < ceiling < run.seed_run.validation[0].loss_nats_per_byte
    later = [v.loss_nats_per_byte for job in (run.seed_run, *run.experts) for v in job.validation[1:]]
    assert max(later) < ceiling
