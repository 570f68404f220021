"""Does a real run count what the closed form says, and is a difference found?"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_subspaces
from thinwire.base.errors import UserError
from thinwire.base.files import read_json_lines
from thinwire.base.progress import Voice
from thinwire.data.corpus import Corpus
from thinwire.subspaces import recipe
from thinwire.subspaces.config import SubspacesConfig, SyncConfig
from thinwire.subspaces.measured_traffic import measure_traffic
from tiny_runs import prepared_data

CONFIG = replace(
    tiny_subspaces.CONFIG,
    sync=SyncConfig(every=4, fragments=2, delay=1),
    launch=replace(tiny_subspaces.CONFIG.launch, ranks=2),
    checkpoint_every=4,
)
"""Two ranks, all weights averaged at every fourth update; unplugged (theta's mean measured) after update 9."""
IN_FRAGMENTS = replace(CONFIG, sync=replace(CONFIG.sync, every=2))
"""Between two checkpoints, two fragments leave behind the training."""


def trained(config: SubspacesConfig, folder: Path) -> Path:
    corpus, out = Corpus.open(prepared_data(folder)), folder / "run"
    recipe.open_or_create(config, corpus=corpus, out=out, preset="tiny")
    recipe.start_ranks(config, out=out, voice=Voice())
    return out


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(CONFIG, tmp_path_factory.mktemp("traffic"))


@pytest.fixture
def with_log(real_run: Path, tmp_path: Path) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """Measures the same run with another log."""

    def measure(records: list[dict[str, Any]]) -> dict[str, Any]:
        (tmp_path / "config.json").write_bytes((real_run / "config.json").read_bytes())
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return measure_traffic(tmp_path)

    return measure


@pytest.mark.parametrize("config", [CONFIG, IN_FRAGMENTS], ids=["settled", "in fragments"])
def test_a_real_run_counts_the_closed_form(config: SubspacesConfig, real_run: Path, tmp_path: Path) -> None:
    found = measure_traffic(real_run if config is CONFIG else trained(config, tmp_path))
    assert found["is_equal"]
    assert {tag: one["is_equal"] for tag, one in found["by_tag"].items()} == dict.fromkeys(
        ("kv-forward", "kv-backward", "theta", "sync"), True
    )
    for tag in ("kv-forward", "kv-backward", "theta", "sync"):
        assert found["by_tag"][tag]["counted_bytes"] > 0
    passes = found["passes"]
    assert passes["theta_mean"]["kv-forward"] > 0
    assert passes["validations"]["kv-forward"] > 0
    assert passes["updates"]["kv-forward"] == passes["updates"]["kv-backward"]
    assert found["updates_compared"] == found["sync_updates_compared"] == 12
    assert [phase["phase"] for phase in found["phases"]] == ["warm-up", "compressed", "folded"]
    assert found["left_out"] == []
    assert not found["assumed_sequences"]


def test_bytes_of_an_update_by_hand(real_run: Path) -> None:
    """Zig-zag over two ranks: chunks 0 and 3 | 1 and 2 of 12 tokens. Chunk 0 is read by the other rank, 1 and 2 by the
    owner of 3. K has rank 4 and V rank 8 of 16; 2 bytes a number, and theta 4 bytes each for K and V; two layers, a
    batch of two."""
    compressed = next(phase for phase in measure_traffic(real_run)["phases"] if phase["phase"] == "compressed")
    chunk = 2 * (12 * (4 + 8) * 2 + 2 * 4)
    one_way = 2 * 3 * chunk
    handed_on = 2 * 2 * (2 * 2 * 4)
    assert compressed["exchange_bytes_per_update"] == 2 * (one_way + handed_on)
    assert compressed["part_of_plain"] == pytest.approx(2 * (one_way + handed_on) / (2 * 2 * 3 * 2 * 12 * 32 * 2))


@pytest.mark.parametrize("tag", ["kv-forward", "kv-backward", "theta", "sync"])
def test_one_byte_too_many_is_found(tag: str, real_run: Path, with_log) -> None:
    records = list(read_json_lines(real_run / "log.jsonl"))
    for record in records:
        if record["kind"] == "step" and record["step"] >= 7:
            record["wire_bytes"][tag] += 1
    found = with_log(records)
    assert not found["is_equal"]
    assert [name for name, one in found["by_tag"].items() if not one["is_equal"]] == [tag]


def test_counts_that_begin_again_after_a_resume(real_run: Path, with_log) -> None:
    """Killed after update 8's checkpoint: counts start at zero, and the phase's validation at 8 is not sent again."""
    records = list(read_json_lines(real_run / "log.jsonl"))
    until = [record for record in records if record["step"] <= 8]
    base = next(record for record in records if record["kind"] == "step" and record["step"] == 8)["wire_bytes"]
    rest = [record for record in records if record["step"] > 8]
    for record in rest:
        if record["kind"] == "step":
            record["wire_bytes"] = {tag: count - base[tag] for tag, count in record["wire_bytes"].items()}
    found = with_log([*until, {"kind": "event", "step": 8, "what": "resumed", "ranks": 2}, *rest])
    assert found["is_equal"]
    assert found["updates_compared"] == 12
    assert not with_log([*until, *rest])["is_equal"]


def test_counts_that_go_on_after_a_resume(real_run: Path, with_log) -> None:
    """The event says from which counts: those of the checkpoint, a validation after its update included."""
    records = list(read_json_lines(real_run / "log.jsonl"))
    until = [record for record in records if record["step"] <= 8]
    counts = next(record for record in records if record["kind"] == "step" and record["step"] == 8)["wire_bytes"]
    resumed = {"kind": "event", "step": 8, "what": "resumed", "ranks": 2, "wire_bytes": counts}
    found = with_log([*until, resumed, *(record for record in records if record["step"] > 8)])
    assert found["is_equal"]
    assert found["updates_compared"] == 12


def test_counts_that_go_on_after_a_lost_rank(real_run: Path, with_log) -> None:
    """Update 7's record is lost with the rank; the event says what was counted until then."""
    records = list(read_json_lines(real_run / "log.jsonl"))
    at_7 = next(record for record in records if record["kind"] == "step" and record["step"] == 7)
    place = records.index(at_7)
    lost = {"kind": "event", "step": 7, "what": "lost rank", "ranks": 2, "wire_bytes": at_7["wire_bytes"]}
    found = with_log([*records[:place], lost, *records[place + 1 :]])
    assert found["is_equal"]
    assert found["updates_compared"] == 11
    assert found["left_out"] == [{"after": 6, "last": 7, "why": "lost rank at update 7"}]


def test_what_was_sent_around_a_lost_rank_is_left_out(real_run: Path, with_log) -> None:
    records = list(read_json_lines(real_run / "log.jsonl"))
    lost = {"kind": "event", "step": 6, "what": "lost rank", "members": [1], "ranks": 1}
    place = next(i for i, record in enumerate(records) if record["kind"] == "step" and record["step"] == 7)
    records[place]["wire_bytes"]["kv-forward"] += 5
    for record in records[place + 1 :]:
        if record["kind"] == "step":
            record["wire_bytes"]["kv-forward"] += 5
    found = with_log([*records[:place], lost, *records[place:]])
    assert found["by_tag"]["kv-forward"]["is_equal"]
    assert found["updates_compared"] == 11
    assert found["left_out"] == [{"after": 6, "last": 7, "why": "lost rank at update 6"}]


def test_a_log_without_the_number_of_sequences(real_run: Path, with_log) -> None:
    records = list(read_json_lines(real_run / "log.jsonl"))
    for record in records:
        record.pop("sequences", None)
    found = with_log(records)
    assert found["assumed_sequences"]
    assert found["is_equal"]


def test_nothing_counted_yet(with_log) -> None:
    with pytest.raises(UserError, match="no counted bytes"):
        with_log([])


DAMAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "counts are a number": ("step", {"wire_bytes": 3}),
    "counts are nothing": ("step", {"wire_bytes": None}),
    "a count is a word": ("step", {"wire_bytes": {"sync": "x"}}),
    "a count is negative": ("step", {"wire_bytes": {"sync": -1}}),
    "a count is a fraction": ("step", {"wire_bytes": {"sync": 1.5}}),
    "the step is a word": ("step", {"step": "x"}),
    "the step is nothing": ("validation", {"step": None}),
    "the step of an event is a list": ("event", {"step": [1]}),
    "a step that the run does not have": ("step", {"step": 10**12}),
    "no ranks": ("step", {"ranks": 0}),
    "more ranks than chunks": ("step", {"ranks": 5}),
    "another phase": ("step", {"phase": "x"}),
    "the phase is a list": ("validation", {"phase": []}),
    "sequences are a word": ("validation", {"sequences": "x"}),
    "an event is a number": ("event", {"what": 7}),
    "an event with counts of no ranks": ("event", {"what": "lost rank", "wire_bytes": {}}),
}


@pytest.mark.parametrize("case", list(DAMAGE))
def test_a_damaged_record_is_refused(case: str, real_run: Path, with_log) -> None:
    kind, changes = DAMAGE[case]
    records = list(read_json_lines(real_run / "log.jsonl"))
    chosen = [record for record in records if record["kind"] == kind][-1]
    chosen.update(changes)
    with pytest.raises(UserError, match=f"a record of kind '{kind}' is damaged: ") as caught:
        with_log(records)
    assert caught.value.where.endswith("log.jsonl")


def test_a_record_that_lacks_a_number_is_passed_over(real_run: Path, with_log) -> None:
    records = list(read_json_lines(real_run / "log.jsonl"))
    less = [{key: value for key, value in record.items() if key != "sequences"} for record in records]
    less.append({"kind": "step", "step": "of another version"})
    assert with_log(less)["is_equal"]
