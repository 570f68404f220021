"""Is every mistake answered with what, where and how to fix it, status 2, no traceback, and nothing lost?"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import tiny_runs
from command_lines import Here, assert_refused, contents
from thinwire.data.corpus import Corpus
from thinwire.soma.run import SomaRun
from tiny_runs import CONFIG, copy_of, flags


@dataclass(frozen=True)
class Place:
    """What a command line may name: good things, bad things, and where to write."""

    root: Path
    data: Path
    run: Path
    out: Path


@pytest.fixture
def place(tmp_path: Path, tiny_data: Path, tiny_run: Path) -> Place:
    root = tmp_path / "things"
    (root / "empty-folder").mkdir(parents=True)
    (root / "binaries").mkdir()
    for name in ("a.png", "b.so", "c"):
        (root / "binaries" / name).write_bytes(bytes(range(256)) * 10)
    (root / "empty.txt").touch()
    (root / "short.txt").write_text("short\n")
    (root / "binary.dat").write_bytes(bytes(range(256)) * 10)
    (root / "broken.jsonl.gz").write_bytes(gzip.compress(b'{"text": "some words"}\n' * 500)[:40])
    (root / "broken.jsonl").write_text('{"text": "some words"}\n{"text": \n')
    (root / "other-kind").mkdir()
    (root / "other-kind" / "config.json").write_text('{"kind": "subspaces"}')
    (root / "unknown-kind").mkdir()
    (root / "unknown-kind" / "config.json").write_text('{"kind": "future"}')
    run = copy_of(tiny_run, tmp_path / "run")
    return Place(root, tiny_data, run, tmp_path / "out")


Argv = Callable[[Place], list[str | Path]]

PREPARE: dict[str, tuple[Argv, str]] = {
    "a missing file": (lambda p: [p.root / "none.txt"], "no such file or folder"),
    "an empty file": (lambda p: [p.root / "empty.txt"], "the file is empty"),
    "an empty folder": (lambda p: [p.root / "empty-folder"], "the folder is empty"),
    "a folder of binaries": (lambda p: [p.root / "binaries"], "no file in the folder can be read as text"),
    "a binary file": (lambda p: [p.root / "binary.dat"], "not text"),
    "the same file twice": (lambda p: [p.root / "short.txt", p.root / "short.txt"], "given twice"),
    "a truncated archive": (lambda p: [p.root / "broken.jsonl.gz"], "broken.jsonl.gz"),
    "a broken line": (lambda p: [p.root / "broken.jsonl"], "broken.jsonl"),
    "impossible fractions": (
        lambda p: [p.root / "short.txt", "--valid-fraction", "-1", "--test-fraction", "2"],
        "valid_fraction = -1",
    ),
}
TRAIN: dict[str, tuple[Argv, str]] = {
    "missing data": (lambda p: ["--data", p.root / "none", "--out", p.out], "no such data folder"),
    "data that were not prepared": (lambda p: ["--data", p.root, "--out", p.out], "not a prepared data folder"),
    "data that are a file": (lambda p: ["--data", p.root / "short.txt", "--out", p.out], "no such data folder"),
    "an output that is a file": (
        lambda p: ["--data", p.data, "--out", p.root / "short.txt"],
        "not a run folder",
    ),
    "an output below a file": (lambda p: ["--data", p.data, "--out", p.root / "short.txt" / "run"], "a file"),
    "an output that holds something else": (lambda p: ["--data", p.data, "--out", p.root], "not a run folder"),
    "a run of another kind": (lambda p: ["--data", p.data, "--out", p.root / "other-kind"], "of kind 'subspaces'"),
    "a run of another configuration": (
        lambda p: ["--data", p.data, "--out", p.run, "--seed", "7"],
        "seed: 1 there, 7 now",
    ),
    "more experts at work than there are": (
        lambda p: ["--data", p.data, "--out", p.out, "--routing.active-experts", "3"],
        "routing.active_experts = 3: must lie between 1 and 2",
    ),
    "fewer windows than clusters": (
        lambda p: ["--data", p.data, "--out", p.out, "--clusters.num-clusters", "300"],
        "300 clusters need at least 600",
    ),
    "documents shorter than a window": (
        lambda p: ["--data", p.data, "--out", p.out, "--scoring.window-bytes", "5000"],
        "no document is long enough for one evaluation window of 5001 bytes",
    ),
}
OTHERS: dict[str, tuple[Argv, str]] = {
    "evaluate a missing run": (lambda p: ["evaluate", p.root / "none"], "not a run folder"),
    "evaluate a file": (lambda p: ["evaluate", p.root / "short.txt"], "not a run folder"),
    "evaluate a data folder": (lambda p: ["evaluate", p.data], "not a run folder"),
    "evaluate a run of an unknown kind": (lambda p: ["evaluate", p.root / "unknown-kind"], "unknown kind: 'future'"),
    "evaluate on a missing text": (lambda p: ["evaluate", p.run, "--on", p.root / "none"], "no such file"),
    "evaluate on an empty text": (lambda p: ["evaluate", p.run, "--on", p.root / "empty.txt"], "is empty"),
    "evaluate on an empty folder": (lambda p: ["evaluate", p.run, "--on", p.root / "empty-folder"], "is empty"),
    "evaluate on binaries": (lambda p: ["evaluate", p.run, "--on", p.root / "binaries"], "read as text"),
    "evaluate on a short text": (lambda p: ["evaluate", p.run, "--on", p.root / "short.txt"], "too short"),
    "evaluate with k above N": (lambda p: ["evaluate", p.run, "--active-experts", "3"], "3 active experts"),
    "evaluate with no expert": (lambda p: ["evaluate", p.run, "--active-experts", "0"], "0 active experts"),
    "generate from a missing run": (lambda p: ["generate", p.root / "none"], "not a run folder"),
    "generate nothing, too hot": (
        lambda p: ["generate", p.run, "--bytes", "0", "--temperature", "-1"],
        "2 settings are out of range",
    ),
    "replay a missing run": (lambda p: ["replay", p.root / "none", "--to", "1", "--out", p.out], "not a run folder"),
    "replay past the end": (lambda p: ["replay", p.run, "--to", "7", "--out", p.out], "ends at update 6"),
    "replay before the start": (lambda p: ["replay", p.run, "--to", "-1", "--out", p.out], "update -1 is not in it"),
    "replay another job": (lambda p: ["replay", p.run, "--to", "1", "--out", p.out, "--job", "9"], "no job '9'"),
    "replay into a file": (lambda p: ["replay", p.run, "--to", "1", "--out", p.root / "short.txt"], "short.txt"),
    "report on a missing run": (lambda p: ["report", p.root / "none", "--out", p.out], "none"),
}


def assert_refused_and_nothing_lost(here: Here, place: Place, argv: list[str | Path], message: str) -> None:
    before = contents(place.root), contents(place.run)
    assert_refused(here(*argv), message)
    assert (contents(place.root), contents(place.run)) == before
    assert not place.out.exists()


@pytest.mark.parametrize("case", PREPARE)
def test_prepare_refuses(here: Here, place: Place, case: str) -> None:
    make, message = PREPARE[case]
    assert_refused_and_nothing_lost(here, place, ["prepare", *make(place), "--out", place.out], message)


@pytest.mark.parametrize("case", TRAIN)
def test_train_refuses(here: Here, place: Place, case: str) -> None:
    make, message = TRAIN[case]
    assert_refused_and_nothing_lost(here, place, ["train", "demo", *flags(CONFIG), *make(place)], message)


@pytest.mark.parametrize("case", OTHERS)
def test_the_other_verbs_refuse(here: Here, place: Place, case: str) -> None:
    make, message = OTHERS[case]
    assert_refused_and_nothing_lost(here, place, make(place), message)


def test_every_impossible_size_is_listed_at_once(here: Here, place: Place) -> None:
    bad = ["--experts.batch", "-1", "--seed-run.updates", "0", "--model.width", "0", "--experts.epsilon", "-0.5"]
    outcome = here("train", "demo", "--data", place.data, "--out", place.out, *bad)
    assert_refused(outcome, "4 settings are out of range")
    for key in ("experts.batch = -1", "seed_run.updates = 0", "model.width = 0", "experts.epsilon = -0.5"):
        assert key in outcome.err
    assert not place.out.exists()


ENDLESS = "inf"


@pytest.mark.parametrize("value", ["nan", "-inf", ENDLESS])
def test_a_rate_that_is_no_number_is_refused(here: Here, place: Place, value: str) -> None:
    outcome = here("train", "demo", "--data", place.data, "--out", place.out, f"--experts.learning-rate={value}")
    assert_refused(outcome, f"experts.learning_rate = {value}")
    assert not place.out.exists()


@pytest.mark.parametrize(
    ("argv", "suggestion"),
    [
        (["evalute", "run"], "evaluate"),
        (["train", "soma-smal", "--data", "d", "--out", "o"], "soma-small"),
        (["train", "demo", "--data", "d", "--out", "o", "--experts.updats", "5"], "--experts.updates"),
        (["train", "demo", "--data", "d", "--out", "o", "--expert.updates", "5"], "--experts.updates"),
        (["evaluate", "run", "--jsn"], "--json"),
        (["prepare", "text", "--output", "o"], "--out"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(here: Here, argv: list[str], suggestion: str) -> None:
    outcome = here(*argv)
    assert outcome.status == 2
    assert suggestion in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == b""


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "demo", "--data", "d"],
        ["train", "demo", "--data", "d", "--out", "o", "--experts.updates", "many"],
        ["generate", "run", "--route", "sometimes"],
        ["train", "--data", "d"],
        ["prepare", "--out", "o"],
        ["report", "--out", "o"],
    ],
)
def test_a_command_that_is_not_whole_is_refused(
    here: Here, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = here(*argv)
    assert outcome.status == 2
    assert outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == b""
    assert list(tmp_path.iterdir()) == []


# --- odd text that is fine


def odd_texts(folder: Path) -> Path:
    """Invalid UTF-8, one very long line, NUL bytes, short documents: all bytes, nothing else."""
    tiny_runs.write_texts(folder)
    (folder / "latin.txt").write_bytes("caf\u00e9 na\u00efve \u00fcber ".encode("latin-1") * 30)
    (folder / "line.txt").write_bytes(b"one very long line without an end " * 300)
    (folder / "nul.txt").write_bytes(b"text \x00 with \xff\xfe bytes " * 20)
    (folder / "one.txt").write_bytes(b"x")
    (folder / "empty.txt").touch()
    return folder


def test_odd_bytes_are_prepared_trained_and_scored(here: Here, tmp_path: Path) -> None:
    texts, data = odd_texts(tmp_path / "texts"), tmp_path / "data"
    prepared = here("prepare", texts, "--out", data, "--test-fraction", "0.2", "--valid-fraction", "0.1")
    assert prepared.status == 0, prepared.err
    run = tiny_runs.train_in_process(CONFIG, data=data, out=tmp_path / "run")
    for text in ("latin.txt", "line.txt", "nul.txt"):
        scored = here("evaluate", run.folder.root, "--on", texts / text)
        assert scored.status == 0, scored.err
        assert b"nats/byte" in scored.out


# --- a damaged run


def test_a_truncated_checkpoint_is_refused_and_the_printed_fix_works(here: Here, place: Place) -> None:
    folder = SomaRun.open(place.run).job_folder("1")
    weights = folder.checkpoints / "00000006.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for verb in (["evaluate", place.run], ["generate", place.run]):
        outcome = here(*verb)
        assert_refused(outcome, "truncated or altered")
        assert str(weights) in outcome.err
    assert "remove 00000006.json and 00000006.safetensors, then give the training command again" in outcome.err
    weights.unlink()
    weights.with_suffix(".json").unlink()
    run = SomaRun.open(place.run)
    tiny_runs.train_job(run.job("1", corpus=Corpus.open(place.data)), folder)
    assert here("evaluate", place.run).status == 0


def test_a_checkpoint_of_another_shape_is_refused(here: Here, place: Place, tmp_path: Path) -> None:
    wider = replace(CONFIG, model=replace(CONFIG.model, width=12))
    other = tiny_runs.start_run(wider, data=place.data, out=tmp_path / "wider")
    theirs, ours = other.job_folder("0").checkpoints, SomaRun.open(place.run).job_folder("0").checkpoints
    theirs.parent.mkdir(parents=True)
    ours.rename(theirs)
    assert_refused(here("evaluate", tmp_path / "wider"), "a checkpoint has another shape: 'theta'")


@pytest.mark.parametrize("part", ["header", "length", "payload"])
def test_a_corrupted_record_is_refused_with_its_position(here: Here, place: Place, part: str) -> None:
    path = SomaRun.open(place.run).job_folder("0").scalars
    data = bytearray(path.read_bytes())
    first = 12 + int.from_bytes(data[:4], "little")
    data[first + {"length": 0, "header": 5, "payload": 12 + 3}[part]] ^= 0x40
    path.write_bytes(data)
    outcome = here("replay", place.run, "--to", "6", "--out", place.out)
    assert_refused(outcome, "a record in the middle of the log is damaged")
    assert f"{path}, byte {first}" in outcome.err


def test_replay_that_differs_fails(here: Here, place: Place) -> None:
    """Not the person's mistake: status 1."""
    from thinwire.runs import checkpoint

    folder = SomaRun.open(place.run).job_folder("0").checkpoints
    saved = checkpoint.load(folder, 6)
    checkpoint.save(folder, 6, tensors=saved.tensors | {"theta": -saved.tensors["theta"]}, meta=saved.meta)
    outcome = here("replay", place.run, "--to", "6", "--out", place.out)
    assert outcome.status == 1
    assert "replay differs from the checkpoint of update 6: 0" in outcome.err
    assert b"DIFFERS" in outcome.out
