"""Are run folders read as they are: finished, in progress, damaged, or no run at all?"""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.report.collect import collect_runs

MakeRun = Callable[..., Path]


def test_finished_run_is_read_whole(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run("soma")])
    assert (run.name, run.preset, run.num_experts, len(run.experts)) == ("soma", "soma-small", 4, 4)
    assert run.seed_run.last_update == 1000
    assert run.seed_run.validation[0].update == 0
    assert [job.last_update for job in run.experts] == [2000] * 4
    cost = 2 * 64 * 64 * 1024
    assert run.byte_forwards == cost * (1000 + 4 * 2000)
    assert run.device_seconds == pytest.approx(2.4 * 9000, rel=1e-12)
    assert [score.name for score in run.scores] == ["test", "wikitext"]
    assert run.headline is not None
    assert run.headline.ci95 == pytest.approx((2.193, 2.216), abs=1e-9)
    assert run.clusters is not None
    assert sum(run.clusters.fractions) == pytest.approx(1.0, abs=1e-12)
    assert run.sample is not None
    assert run.sample.continuation.startswith(b"of the patients")
    assert run.damage == ()


def test_run_that_has_only_a_configuration(make_run: MakeRun) -> None:
    (run,) = collect_runs([make_run(parts=())])
    assert (run.experts, run.scores, run.clusters, run.matrix, run.sample) == ((), (), None, None, None)
    assert run.num_experts == 4
    assert run.damage == ()


def test_torn_last_record_is_passed_over(make_run: MakeRun) -> None:
    folder = make_run()
    log = folder / "seed/log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[: whole.rstrip(b"\n").rindex(b"\n") + 20])
    (run,) = collect_runs([folder])
    assert run.seed_run.validation[-1].update == 900
    assert run.damage == ()


def with_line(folder: Path, relative: str, line: bytes) -> Path:
    """``folder`` with another line in place of the log's sixth."""
    log = folder / relative
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:5], line, *lines[6:]]))
    return folder


def test_torn_middle_record_is_passed_over(make_run: MakeRun) -> None:
    (run,) = collect_runs([with_line(make_run(), "experts/001/log.jsonl", b'{"kind":"upda\x00\xff\n')])
    assert run.damage == ()
    updates = [record.update for record in run.experts[1].training]
    assert updates == [update for update in range(10, 2001, 10) if update != 50]


def test_record_that_lacks_a_value_is_named(make_run: MakeRun) -> None:
    (run,) = collect_runs([with_line(make_run(), "experts/001/log.jsonl", b'{"kind":"update","update":50}\n')])
    assert len(run.damage) == 1
    assert "experts/001/log.jsonl cannot be read after 5 records" in run.damage[0]
    assert run.experts[1].last_update == 40


def test_update_logged_twice_counts_once_and_the_later_wins(make_run: MakeRun) -> None:
    folder = make_run()
    record = {
        "kind": "validation",
        "update": 1000,
        "loss_nats_per_byte": 1.5,
        "byte_forwards": 9,
        "device_seconds": 1.0,
    }
    with (folder / "seed/log.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(record) + "\n")
    (run,) = collect_runs([folder])
    assert len(run.seed_run.validation) == 11
    assert run.seed_run.validation[-1].loss_nats_per_byte == 1.5


def test_loss_that_is_not_finite_is_left_out_and_named(make_run: MakeRun) -> None:
    folder = make_run()
    with (folder / "seed/log.jsonl").open("a", encoding="utf-8") as log:
        log.write(
            '{"kind":"validation","update":1100,"loss_nats_per_byte":NaN,"byte_forwards":1,"device_seconds":1.0}\n'
        )
    (run,) = collect_runs([folder])
    assert run.seed_run.validation[-1].update == 1000
    assert "not finite at update 1,100" in run.damage[0]


@pytest.mark.parametrize(
    ("relative", "content"),
    [
        ("results/test.json", "{"),
        ("results/test.json", '{"loss_nats_per_byte": NaN}'),
        ("results/test.json", '{"loss_nats_per_byte": 2.0, "ci95": 3}'),
        ("results/test.json", "[1]"),
        ("results/matrix.json", '{"loss_nats_per_byte": [[1.0, 2.0], [1.0]]}'),
        ("results/matrix.json", '{"loss_nats_per_byte": []}'),
        ("results/sample.json", '{"prompt": "x", "bytes_base64": "***"}'),
        ("router/router.json", '{"cluster_sizes": "many"}'),
    ],
)
def test_damaged_part_is_left_out_and_named(make_run: MakeRun, relative: str, content: str) -> None:
    folder = make_run(parts=("seed", "experts"))
    (folder / relative).parent.mkdir(parents=True, exist_ok=True)
    (folder / relative).write_text(content, encoding="utf-8")
    (run,) = collect_runs([folder])
    assert (run.scores, run.matrix, run.sample, run.clusters) == ((), None, None, None)
    assert len(run.damage) == 1
    assert relative in run.damage[0]


def test_prompt_at_the_start_of_the_sample_is_taken_off(make_run: MakeRun) -> None:
    folder = make_run()
    encoded = base64.b64encode(b"The court rose.\xff").decode()
    record = {"prompt": "The court", "text": "", "bytes_base64": encoded}
    (folder / "results/sample.json").write_text(json.dumps(record), encoding="utf-8")
    (run,) = collect_runs([folder])
    assert run.sample is not None
    assert run.sample.continuation == b" rose.\xff"


def test_equal_folder_names_are_told_apart(make_run: MakeRun) -> None:
    runs = collect_runs([make_run("a/soma"), make_run("b/soma")])
    assert [run.name for run in runs] == ["a/soma", "b/soma"]


def test_mistakes_are_named(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    (tmp_path / "empty").mkdir()
    other = make_run("other")
    (other / "config.json").write_text('{"kind": "other", "config": {}}', encoding="utf-8")
    broken = make_run("broken")
    (broken / "config.json").write_text('{"kind": "soma"', encoding="utf-8")
    cases = [
        ([], "no run folder was given"),
        ([tmp_path / "absent"], "no such run folder"),
        ([tmp_path / "empty"], "config.json is missing"),
        ([folder / "config.json"], "no such run folder"),
        ([other], "kind 'other'"),
        ([broken], "not valid JSON"),
        ([folder, folder], "given twice"),
    ]
    for folders, words in cases:
        with pytest.raises(UserError, match=words) as caught:
            collect_runs(folders)
        assert caught.value.where
        assert caught.value.fix
