"""Does ``thinwire prepare`` say what the screen left out, and warn where a split ends empty?"""

import json
from pathlib import Path

import tiny_tokens
from command_lines import Here
from thinwire.cli.prepare import empty_splits, left_out


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_what_the_screen_left_out_is_counted_by_reason(here: Here, tmp_path: Path) -> None:
    texts = [f"document {n} " + "of its own words " * (n % 7) for n in range(200)]
    shared = "the very same passage in every document, " * 10
    source = write(tmp_path / "a.jsonl", [*texts, *(f"{shared}{n}" for n in range(200))])
    outcome = here("prepare", source, "--out", tmp_path / "data", "--valid-fraction", "0.2", "--test-fraction", "0")
    assert outcome.status == 0
    excluded = json.loads((tmp_path / "data" / "manifest.json").read_text())["screen"]["excluded"]["valid"]
    assert excluded["shared_128_bytes"] > 0
    out = " ".join(outcome.out.decode().split())
    assert f"left out of valid {sum(excluded.values())} documents: " in out
    assert f"{excluded['shared_128_bytes']} with 128 bytes of the training text" in out
    assert "left out of test 0 documents data folder" in out
    assert "warning" not in outcome.err  # --test-fraction 0 asks for an empty split


def test_a_split_that_ends_empty_is_a_warning(here: Here, tmp_path: Path) -> None:
    shared = "the very same passage in every document, " * 10
    source = write(tmp_path / "a.jsonl", [f"{shared}{n}" for n in range(40)])
    outcome = here("prepare", source, "--out", tmp_path / "data", "--json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["splits"]["valid"]["num_documents"] == 0
    err = " ".join(outcome.err.split())
    assert "warning: valid: 0 documents: the screen left out 5 documents: 5 with 128 bytes of the training" in err
    assert "warning: test: 0 documents: " in err


def test_too_few_documents_for_a_split_is_a_warning(here: Here, tmp_path: Path) -> None:
    outcome = here("prepare", write(tmp_path / "a.jsonl", ["only one"]), "--out", tmp_path / "data")
    assert "warning: valid: 0 documents: there are too few for --valid-fraction 0.01" in " ".join(outcome.err.split())


def test_every_reason_has_words() -> None:
    counts = {"same_source_id": 1, "exact_copy": 2, "normalized_copy": 0, "duplicate_in_evaluation": 1200}
    assert left_out(counts) == (
        "1,203 documents: 1 with the id of a training document, 2 equal to a training document, "
        "1,200 repeating another evaluation document"
    )
    assert left_out({"exact_copy": 0}) == "0 documents"


def test_a_split_with_documents_is_no_warning() -> None:
    manifest = {
        "options": {"valid_fraction": 0.1},
        "splits": {"valid": {"num_documents": 1}},
        "screen": {"excluded": {"valid": {"exact_copy": 3}}},
    }
    assert empty_splits(manifest) == []


def test_tokens_are_counted_beside_the_bytes(here: Here, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [f"{n} the harbour and the anchor" for n in range(100)])
    files = tiny_tokens.write_tokenizer_files(tmp_path / "files")
    words = ("prepare", source, "--out", tmp_path / "data", "--tokenizer", "gpt2", "--tokenizer-files")
    assert " tokens" in here(*words, files).out.decode()
    (files / "merges.txt").unlink()
    outcome = here(*words, files)
    assert outcome.status == 2
    assert "lacks tokenizer files: merges.txt" in outcome.err
