"""Do the verbs serve runs of both methods: train, evaluate, generate, export, their one object, and every mistake?"""

import base64
import json
import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import thinwire
import tiny_runs
import tiny_subspaces
from command_lines import PROGRAM, Here, assert_refused, contents
from thinwire.api import verbs
from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from tiny_subspaces import CONFIG, checkpoint_files, flags

EVALUATION_KEYS = {"loss_nats_per_token", "perplexity", "scored_targets", "ci95", "loss_nats_per_byte", "bits_per_byte"}


def one_object(out: bytes) -> dict[str, Any]:
    """Standard output holds one JSON object and nothing else."""
    assert out.count(b"\n") == 1
    assert out.endswith(b"\n")
    record = json.loads(out)
    assert isinstance(record, dict)
    return record


@pytest.fixture
def run(tiny_llama: Path, tmp_path: Path) -> Path:
    return tiny_runs.copy_of(tiny_llama, tmp_path / "run")


# --- train ----------------------------------------------------------------------------------------------------------


def test_train_lists_presets_of_both_methods(here: Here) -> None:
    listed = here("train", "--help").out
    for name in (b"soma-small", b"subspaces-small", b"subspaces-800m"):
        assert b"  %s " % name in listed
    help_of = here("train", "subspaces-small", "--help").out.replace(b"_", b"-")
    for flag in (b"--model.kv-heads", b"--codec.theta-source", b"--launch.ranks", b"--data", b"--json"):
        assert flag in help_of
    assert b"--experts.updates" not in help_of


def test_train_on_two_ranks(here: Here, apart: Here, tiny_data: Path, tmp_path: Path) -> None:
    """From a preset to a scored run; the same command once more keeps what is there."""
    out = tmp_path / "run"
    config = replace(CONFIG, launch=replace(CONFIG.launch, ranks=2), optimizer=replace(CONFIG.optimizer, steps=8))
    command = ["train", "subspaces-small", *flags(config), "--data", tiny_data, "--out", out, "--json"]
    trained = apart(*command)
    assert trained.status == 0, trained.err
    record = one_object(trained.out)
    assert record.keys() >= EVALUATION_KEYS
    assert (record["step"], record["name"]) == (8, "test")
    assert record == json.loads((out / "results" / "test.json").read_text())
    assert json.loads((out / "config.json").read_text())["kind"] == "subspaces"
    before = {name: payload for name, payload in contents(out).items() if name.endswith((".safetensors", ".jsonl"))}
    again = here(*command[:-1])
    assert again.status == 0, again.err
    assert "already trained, kept" in again.err
    assert f"{record['perplexity']:.3f}".encode() in again.out
    after = contents(out)
    assert all(after[name] == payload for name, payload in before.items())


@pytest.mark.parametrize("rank", [0, 1])
def test_of_many_ranks_only_the_first_speaks(
    here: Here, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """As under torchrun, where every rank's process is this command line."""

    def train(*_: object, voice: Voice, **__: object) -> dict[str, Any]:
        voice.say("a message")
        voice.progress.task("a bar", 1).close()
        return {} if rank else json.loads((tmp_path / "record.json").read_text())

    record = {"loss_nats_per_token": 1.0, "perplexity": 2.7, "ci95": [0.9, 1.1], "documents": 2}
    (tmp_path / "record.json").write_text(json.dumps(record))
    monkeypatch.setattr(verbs, "train", train)
    place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29999}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    outcome = here("train", "subspaces-small", "--data", tiny_data, "--out", tmp_path / "run", "--json")
    assert outcome.status == 0
    if rank:
        assert (outcome.out, outcome.err) == (b"", "")
    else:
        assert one_object(outcome.out) == record
        assert "a message" in outcome.err
        assert "a bar" in outcome.err


# --- evaluate -------------------------------------------------------------------------------------------------------


def test_evaluate(here: Here, run: Path, tmp_path: Path) -> None:
    record = one_object(here("evaluate", run, "--json").out)
    assert record.keys() >= EVALUATION_KEYS
    kept = json.loads((run / "results" / "test.json").read_text())
    assert kept == record
    text = tmp_path / "my text.md"
    text.write_text("harbour anchor sailor rigging compass " * 20)
    other = one_object(here("evaluate", run, "--on", text, "--json").out)
    assert (other["name"], other["scored_bytes"]) == ("my text", len(text.read_bytes()))
    assert json.loads((run / "results" / "my text.json").read_text()) == other


def test_evaluate_prints_a_table(here: Here, run: Path) -> None:
    record = json.loads((run / "results" / "test.json").read_text())
    table = here("evaluate", run).out.decode()
    assert f"{record['loss_nats_per_token']:.4f} nats/token (95%: {record['ci95'][0]:.4f} to" in table
    assert f"{record['perplexity']:.3f}" in table
    assert f"{record['bits_per_byte']:.4f} bits" in table
    assert "as trained" in table
    assert f"{record['scored_targets']:,} tokens" in table
    assert "not finished" not in table


def test_an_unfinished_run_says_so(here: Here, tiny_data: Path, tmp_path: Path) -> None:
    run = tiny_subspaces.untrained_run(CONFIG, data=tiny_data, out=tmp_path / "run")
    assert "update 1 of 12 (warm-up)" in here("evaluate", run).out.decode()
    assert "training is not finished" in here("export", run, "--out", tmp_path / "out").out.decode()


# --- generate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "byte pairs"])
def test_generate(here: Here, tiny_llama: Path, tiny_token_llama: Path, tmp_path: Path, kind: str) -> None:
    run = tiny_runs.copy_of(tiny_llama if kind == "bytes" else tiny_token_llama, tmp_path / "run")
    asked = ["generate", run, "--prompt", "butter pepper", "--bytes", "30", "--seed", "5", "--temperature", "1"]
    record = one_object(here(*asked, "--json").out)
    written = base64.b64decode(record["bytes_base64"])
    assert len(written) == 30
    assert (record["prompt"], record["seed"], record["temperature"]) == ("butter pepper", 5, 1.0)
    assert record["unread_prompt_tokens"] == 0
    assert here(*asked).out == b"butter pepper" + written + b"\n"
    assert json.loads((run / "results" / "sample.json").read_text()) == record


def test_a_prompt_longer_than_the_context_says_so(here: Here, run: Path) -> None:
    outcome = here("generate", run, "--prompt", "x" * 60, "--bytes", "4")
    assert outcome.status == 0
    assert "12 of its 60 tokens are not read" in outcome.err
    assert outcome.out.startswith(b"x" * 60)


def test_a_prompt_that_is_not_utf8_is_bytes(run: Path) -> None:
    argv = [*PROGRAM, "generate", str(run), "--bytes", "4", "--prompt", b"caf\xe9 \xff"]
    ended = subprocess.run(argv, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.startswith(b"caf\xe9 \xff")
    assert len(ended.stdout) == 6 + 4 + 1


# --- export ---------------------------------------------------------------------------------------------------------


def test_export(here: Here, run: Path, tmp_path: Path) -> None:
    record = one_object(here("export", run, "--out", tmp_path / "out", "--json").out)
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert record["files"] == found
    assert {"config.json", "model.safetensors", "generation_config.json", "thinwire.json"} <= set(found)
    assert (record["model"], record["step"], record["planned_steps"]) == ("folded", 12, 12)
    assert b"folded Llama" in here("export", run, "--out", tmp_path / "another").out


# --- as functions ---------------------------------------------------------------------------------------------------


def test_the_verbs_as_functions(run: Path, tiny_run: Path, tmp_path: Path) -> None:
    record = thinwire.evaluate(run)
    assert record["perplexity"] == pytest.approx(math.exp(record["loss_nats_per_token"]), rel=1e-12)
    model = thinwire.load(run)
    assert isinstance(model, thinwire.LanguageModel)
    assert len(thinwire.generate(model, b"sail", num_bytes=7).text) == 7
    assert thinwire.export(run, out=tmp_path / "out").step == 12
    soma = thinwire.load(tiny_run)
    assert isinstance(soma, thinwire.Ensemble)
    assert len(thinwire.generate(soma, b"sail", num_bytes=7, route="once").text) == 7
    with pytest.raises(UserError, match="nothing is routed"):
        thinwire.generate(model, b"sail", num_bytes=7, route="once")
    assert isinstance(thinwire.preset("subspaces-small"), thinwire.SubspacesConfig)


def test_every_name_that_is_offered_exists() -> None:
    assert set(thinwire.__all__) == set(thinwire._HOMES)
    for name in thinwire.__all__:
        assert getattr(thinwire, name) is not None


# --- mistakes -------------------------------------------------------------------------------------------------------


def without_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def damaged(run: Path) -> None:
    newest = checkpoint_files(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])


def description_is_no_json(run: Path) -> None:
    checkpoint_files(run)[-1].with_suffix(".json").write_text("{")


def description_of_nothing(run: Path) -> None:
    path = checkpoint_files(run)[-1].with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"meta": {}}))


def another_configuration(run: Path) -> None:
    path = run / "config.json"
    path.write_text(path.read_text().replace('"width": 24', '"width": 32'))


def newer_configuration(run: Path) -> None:
    path = run / "config.json"
    path.write_text(path.read_text().replace('"width": 24', '"breadth": 24'))


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "no checkpoint": (without_checkpoint, "no checkpoint yet"),
    "a damaged checkpoint": (damaged, "truncated or altered"),
    "a damaged description": (description_is_no_json, "not JSON"),
    "a description that says nothing": (description_of_nothing, "does not fit"),
    "another configuration": (another_configuration, "does not fit"),
    "a configuration of another version": (newer_configuration, "as this version writes it"),
}


@pytest.mark.parametrize("verb", ["evaluate", "generate", "export"])
@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_run_is_refused(here: Here, run: Path, tmp_path: Path, verb: str, case: str) -> None:
    spoil, message = SPOILT[case]
    spoil(run)
    before = contents(run)
    out = ["--out", tmp_path / "out"] if verb == "export" else []
    assert_refused(here(verb, run, *out), message)
    assert contents(run) == before
    assert not (tmp_path / "out").exists()


def test_a_missing_tokenizer_is_refused(here: Here, tiny_token_llama: Path, tmp_path: Path) -> None:
    run = tiny_runs.copy_of(tiny_token_llama, tmp_path / "run", without=("tokenizer",))
    for verb in (["evaluate", run], ["generate", run], ["export", run, "--out", tmp_path / "out"]):
        assert_refused(here(*verb), "tokenizer is missing")


def test_flags_of_the_other_method_are_refused(here: Here, run: Path) -> None:
    assert_refused(here("evaluate", run, "--active-experts", "2"), "no experts")
    assert_refused(here("generate", run, "--route", "once"), "nothing is routed")


def test_verbs_of_the_other_method_are_refused(here: Here, run: Path, tiny_run: Path, tmp_path: Path) -> None:
    assert_refused(here("replay", run, "--to", "1", "--out", tmp_path / "out"), "'subspaces'")
    assert_refused(here("export", tiny_run, "--out", tmp_path / "out"), "export covers runs of subspaces presets")


def test_an_output_that_is_taken_is_refused(here: Here, run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert_refused(here("export", run, "--out", tmp_path / "out"), "holds something")
    assert_refused(here("export", run, "--out", tmp_path / "out" / "mine.txt"), "holds something")
    assert_refused(here("export", run, "--out", tmp_path / "out" / "mine.txt" / "x"), "")
    assert contents(tmp_path / "out") == {"mine.txt": b"mine"}


def test_training_into_the_other_methods_run_is_refused(here: Here, run: Path, tiny_run: Path, tiny_data: Path) -> None:
    soma = ["train", "demo", *tiny_runs.flags(tiny_runs.CONFIG), "--data", tiny_data]
    assert_refused(here(*soma, "--out", run), "of kind 'subspaces'")
    small = ["train", "subspaces-small", *flags(CONFIG), "--data", tiny_data]
    assert_refused(here(*small, "--out", tiny_run), "of kind 'soma'")
    assert_refused(here(*small, "--out", run, "--seed", "9"), "seed: 3 there, 9 now")
    assert_refused(here(*small, "--out", run, "--codec.key-rate", "2"), "codec.key_rate = 2")
