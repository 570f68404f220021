"""Do the verbs, one after another, do their job, and print with --json exactly the object that was promised?"""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from command_lines import PROGRAM, Here
from tiny_runs import CONFIG, assert_same_runs, copy_of, flags

EVALUATION_KEYS = {
    "loss_nats_per_byte",
    "bits_per_byte",
    "scored_targets",
    "windows",
    "num_experts",
    "active_experts",
    "ci95",
}


def one_object(out: bytes) -> dict[str, Any]:
    """Standard output holds one JSON object and nothing else."""
    assert out.endswith(b"\n")
    assert out.count(b"\n") == 1
    record = json.loads(out)
    assert isinstance(record, dict)
    return record


def test_prepare_and_train_give_a_run_whatever_processes_and_threads(
    here: Here, apart: Here, tiny_run: Path, tmp_path: Path
) -> None:
    """From text to a scored run by worker processes, one after another with two threads each: the bits of the run that
    was trained in one process with one thread."""
    texts = tiny_runs.write_texts(tmp_path / "texts")
    data, run = tmp_path / "data", tmp_path / "run"
    prepared = here("prepare", texts, "--out", data, "--valid-fraction", "0.1", "--test-fraction", "0.2", "--json")
    assert prepared.status == 0, prepared.err
    assert one_object(prepared.out)["splits"].keys() == {"train", "valid", "test"}
    launch = ["--launch.processes", "1", "--launch.threads", "2"]
    trained = apart("train", "demo", *flags(CONFIG), "--data", data, "--out", run, "--json", *launch)
    assert trained.status == 0, trained.err
    record = one_object(trained.out)
    assert record.keys() >= EVALUATION_KEYS
    assert record == json.loads((run / "results" / "test.json").read_text())
    assert_same_runs(run, tiny_run, data=data)


def test_evaluate(here: Here, tiny_run: Path, tmp_path: Path) -> None:
    run = copy_of(tiny_run, tmp_path / "run")
    record = one_object(here("evaluate", run, "--json").out)
    assert record.keys() >= EVALUATION_KEYS
    assert record == json.loads((tiny_run / "results" / "test.json").read_text())
    text = tmp_path / "my text.md"
    text.write_text("harbour anchor sailor rigging compass " * 20)
    other = one_object(here("evaluate", run, "--on", text, "--active-experts", "2", "--json").out)
    assert (other["name"], other["active_experts"]) == ("my text-k2", 2)
    assert json.loads((run / "results" / "my text-k2.json").read_text()) == other
    table = here("evaluate", run).out.decode()
    assert f"{record['loss_nats_per_byte']:.4f} nats/byte" in table
    assert f"{record['scored_targets']:,} bytes" in table


def test_evaluate_on_a_data_folder(here: Here, tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    run = copy_of(tiny_run, tmp_path / "run")
    own = one_object(here("evaluate", run, "--json").out)
    other = one_object(here("evaluate", run, "--on", tiny_data, "--json").out)
    assert other["name"] == "data"
    assert other["loss_nats_per_byte"] == own["loss_nats_per_byte"]


def test_generate(here: Here, tiny_run: Path, tmp_path: Path) -> None:
    run = copy_of(tiny_run, tmp_path / "run")
    asked = ["generate", run, "--prompt", "butter pepper", "--bytes", "30", "--seed", "5"]
    record = one_object(here(*asked, "--json").out)
    written = base64.b64decode(record["bytes_base64"])
    assert len(written) == 30
    assert (record["prompt"], record["seed"], record["temperature"]) == ("butter pepper", 5, 0.7)
    assert here(*asked).out == b"butter pepper" + written + b"\n"
    assert json.loads((run / "results" / "sample.json").read_text()) == record
    assert base64.b64decode(one_object(here(*asked[:-1], "6", "--json").out)["bytes_base64"]) != written


def test_a_prompt_that_is_not_utf8_is_bytes(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_of(tiny_run, tmp_path / "run")
    argv = [*PROGRAM, "generate", str(run), "--bytes", "4", "--prompt", b"caf\xe9 \xff"]
    ended = subprocess.run(argv, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.startswith(b"caf\xe9 \xff")
    assert len(ended.stdout) == 6 + 4 + 1


def test_replay(here: Here, tiny_run: Path, tmp_path: Path) -> None:
    asked = ["replay", tiny_run, "--to", "6", "--out", tmp_path / "out"]
    record = one_object(here(*asked, "--json").out)
    assert record["jobs"] == [{"job": name, "update": 6, "agrees_with_checkpoint": True} for name in ("0", "1")]
    assert here(*asked, "--job", "seed").out.count(b"equal to the checkpoint, bit for bit") == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0", "1", "seed"]


def test_report(here: Here, tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = here("report", tiny_run, "--out", tmp_path / "page")
    assert outcome.status == 0, outcome.err
    assert "<html" in (tmp_path / "page" / "report.html").read_text()


def test_doctor(here: Here) -> None:
    record = one_object(here("doctor", "--json").out)
    assert record["cores"] >= 1
    assert record["byte_forwards_per_s"] > 0
    assert record["first_call_seconds"] > 0
    assert record["implementation"] in ("numba", "reference")


def test_a_reader_that_leaves_early_is_no_error(tiny_run: Path, tmp_path: Path) -> None:
    """As ``| head`` does: the pipe is closed before anything is written."""
    run = copy_of(tiny_run, tmp_path / "run")
    argv = [*PROGRAM, "generate", str(run), "--bytes", "2000"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.close()
        assert writer.stderr is not None
        err = writer.stderr.read().decode()
    assert writer.returncode == 0
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
