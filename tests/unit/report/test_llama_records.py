"""Is a context-parallel run read as it was written, whole, cut, resumed, with lost ranks or damaged?"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_folders import CODED_UPDATE, PLAIN_UPDATE, TAGS, VALIDATION_SEQUENCES

from thinwire.report.collect import collect_runs
from thinwire.report.records import Run
from thinwire.report.subspaces.facts import (
    against_plain_sentence,
    apart_words,
    groups_of,
    missing_parts,
    part_of_plain,
    phase_words,
    plain_of,
)
from thinwire.report.subspaces.records import SubspacesRun

Make = Callable[..., Path]


def read(folder: Path) -> SubspacesRun:
    (run,) = collect_runs([folder])
    assert isinstance(run, SubspacesRun)
    return run


def test_whole_run(make_llama: Make) -> None:
    run = read(make_llama())
    assert len(run.steps) == 60
    assert run.is_finished
    assert [(v.step, v.phase) for v in run.validation] == [
        (10, "warm-up"), (20, "warm-up"), (20, "compressed"), (30, "compressed"), (40, "compressed"),
        (50, "compressed"), (50, "folded"), (60, "folded"),
    ]  # fmt: skip
    assert [(event.step, event.what) for event in run.events] == [(20, "plug in"), (50, "unplug")]
    assert phase_words(run) == "warm-up 1 to 20, compressed 21 to 50, folded 51 to 60"
    assert [theta.step for theta in run.thetas] == [20, 30, 40, 50]
    assert run.thetas[-1].angle_degrees["value"] == pytest.approx((5.0, 15.0))
    assert run.headline is not None
    assert run.headline.model == "folded"
    assert run.headline.as_trained_loss_nats_per_token == pytest.approx(2.446)
    assert missing_parts(run) == ()
    assert run.damage == ()


def test_an_updates_bytes_are_those_without_validations(make_llama: Make) -> None:
    run = read(make_llama())
    by_phase = {phase.phase: phase for phase in run.phases}
    assert by_phase["compressed"].per_update == {tag: float(CODED_UPDATE[tag]) for tag in TAGS}
    assert by_phase["compressed"].exchanged == 70_000
    assert by_phase["warm-up"].exchanged == 0
    assert by_phase["warm-up"].per_update["sync"] == 500_000
    assert run.exchange == by_phase["compressed"]
    # 40 updates, and five validations before the last count.
    assert run.wire_bytes["kv-forward"] == (40 + 5 * VALIDATION_SEQUENCES) * CODED_UPDATE["kv-forward"]


def test_counts_go_on_after_a_resume(make_llama: Make) -> None:
    undisturbed, resumed = read(make_llama("one")), read(make_llama("two", resumed_at=40))
    # What a validation sends after the checkpoint's count is counted by nobody.
    gap = VALIDATION_SEQUENCES * CODED_UPDATE["kv-forward"]
    assert undisturbed.wire_bytes["kv-forward"] - resumed.wire_bytes["kv-forward"] == gap
    assert undisturbed.wire_bytes["sync"] == resumed.wire_bytes["sync"]
    counts = [sum(step.wire_bytes.values()) for step in resumed.steps]
    assert counts == sorted(counts)
    assert undisturbed.phases == resumed.phases


def test_counts_that_the_event_names(make_llama: Make) -> None:
    folder = make_llama()
    log = folder / "log.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    at_40 = next(r["wire_bytes"] for r in records if r["kind"] == "step" and r["step"] == 40)
    place = next(i for i, r in enumerate(records) if r["kind"] == "step" and r["step"] == 41)
    before = read(folder).wire_bytes
    records.insert(place, {"kind": "event", "step": 40, "what": "resumed", "ranks": 4, "wire_bytes": at_40})
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read(folder).wire_bytes == before


def test_a_lost_rank_takes_its_counts_along(make_llama: Make) -> None:
    run = read(make_llama(lost_at=44))
    counts = [sum(step.wire_bytes.values()) for step in run.steps]
    assert counts == sorted(counts)
    assert counts[44] == counts[43]
    assert counts[45] - counts[44] == sum(CODED_UPDATE.values())
    (lost,) = [event for event in run.events if event.what == "lost rank"]
    assert lost.details["members"] == [3]
    assert run.steps[43].ranks == 4
    assert run.steps[44].ranks == 3


def test_what_was_logged_twice_counts_once(make_llama: Make) -> None:
    again = {
        "kind": "validation",
        "step": 60,
        "phase": "folded",
        "loss_nats_per_token": 2.0,
        "seconds": 31,
        "tokens": 1,
    }
    run = read(make_llama(extra=(again,)))
    assert len(run.validation) == 8
    assert run.validation[-1].loss_nats_per_token == 2.0


def test_a_run_under_way(make_llama: Make) -> None:
    run = read(make_llama(made=33, parts=()))
    assert not run.is_finished
    assert missing_parts(run) == (
        "The training is not finished, at update 33 of 60.",
        "Nothing is scored yet: there is no test loss and no perplexity.",
    )
    assert missing_parts(read(make_llama("new", made=0, parts=())))[0] == "No update has been logged yet."


def test_damaged_parts_are_named(make_llama: Make) -> None:
    nan = {"kind": "validation", "step": 61, "phase": "folded", "loss_nats_per_token": float("nan"), "seconds": 1}
    folder = make_llama(extra=(nan | {"tokens": 1}, {"kind": "step", "step": 62}))
    (folder / "results/test.json").write_text('{"loss_nats_per_token": 1e999}')
    (folder / "results/traffic.json").write_text('{"phases": 3}')
    run = read(folder)
    assert len(run.steps) == 60
    assert run.scores == ()
    assert run.traffic is None
    assert len(run.damage) == 4
    for words in ("log.jsonl cannot be read after", "not finite at update 61", "results/test.json", "traffic.json"):
        assert any(words in sentence for sentence in run.damage)


def test_a_score_of_another_method_is_passed_over(make_llama: Make) -> None:
    folder = make_llama()
    (folder / "results/other.json").write_text('{"loss_nats_per_byte": 1.0}')
    assert [score.name for score in read(folder).scores] == ["test"]


def test_beside_the_plain_run(make_llama: Make) -> None:
    coded, plain = read(make_llama(level=0.01)), read(make_llama("plain", kind="plain"))
    other = read(make_llama("longer", kind="plain", tokens=1024))
    assert plain_of(coded, (other, plain, coded)) is plain
    assert plain_of(coded, (other, coded)) is None
    assert plain_of(plain, (plain, coded)) is None
    assert part_of_plain(coded, plain) == pytest.approx(70_000 / 2_000_000)
    sentence = against_plain_sentence(coded, plain)
    assert sentence == (
        "llama beside plain: its test loss lies 0.0100 above (perplexity +1.01%) and an update sends 3.50% of the keys "
        "and values."
    )


def test_other_windows_do_not_compare_by_test_loss(make_llama: Make) -> None:
    coded = read(make_llama(level=0.01, digest="others"))
    plain = read(make_llama("plain", kind="plain", made=50, steps=60))
    sentence = against_plain_sentence(coded, plain)
    assert "test loss" not in sentence
    assert "its validation loss at update 50 lies 0.0100 above" in sentence


def test_the_plain_run_of_the_same_seed(make_llama: Make) -> None:
    first, second = read(make_llama("p1", kind="plain")), read(make_llama("p2", kind="plain", seed=2))
    coded = read(make_llama("c2", seed=2))
    assert plain_of(coded, (first, second, coded)) is second
    assert PLAIN_UPDATE["theta"] == 0


def test_groups(make_llama: Make) -> None:
    a, b = read(make_llama("a")), read(make_llama("b", kind="plain"))
    longer, other = read(make_llama("long", tokens=1024)), read(make_llama("other", fingerprint="b2" * 32))
    assert apart_words(groups_of((a, b))) == ()
    assert [tuple(run.name for run in group.runs) for group in groups_of((a, longer, b))] == [("a", "b"), ("long",)]
    assert apart_words(groups_of((a, longer, b))) == (
        "a, b read sequences of 512 tokens.",
        "long reads sequences of 1,024 tokens.",
    )
    assert apart_words(groups_of((a, other)))[1] == "other was trained on text with fingerprint b2b2b2b2b2."


def test_both_methods(make_llama: Make, make_run: Make) -> None:
    kinds = [type(run) for run in collect_runs([make_run(), make_llama()])]
    assert kinds == [Run, SubspacesRun]


def test_updates_that_differ_are_a_mean_as_they_were_measured(make_llama: Make) -> None:
    """Two updates of three send 6 kB and the third 3 kB, as ranks move over the chunks: 5 kB an update."""
    folder = make_llama(steps=60)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    forward = 0
    for record in lines:
        if record["kind"] == "step":
            forward += 0 if record["phase"] == "warm-up" else 3_000 if record["step"] % 3 == 0 else 6_000
            record["wire_bytes"] |= {"kv-forward": forward, "kv-backward": 0, "theta": 0}
    quiet = [one for one in lines if one["kind"] not in ("validation", "theta")]
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in quiet))
    phases = [{"phase": "compressed", "plain_exchange_bytes_per_update": 50_000}]
    traffic = {"is_equal": True, "step": 60, "updates_compared": 60, "phases": phases}
    (folder / "results/traffic.json").write_text(json.dumps(traffic))
    run = read(folder)
    assert run.exchange is not None
    sent = [6_000 if step % 3 else 3_000 for step in range(22, 51)]
    assert run.exchange.num_alone == len(sent)
    assert run.exchange.exchanged == pytest.approx(sum(sent) / len(sent))
    # What stands in the row divides: bytes an update, of plain's.
    assert part_of_plain(run, None) == run.exchange.exchanged / 50_000
