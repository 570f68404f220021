"""A folder prepared with tokens holds the same text twice, and one without is what it always was."""

import json
from pathlib import Path

import numpy as np
import pytest

import tiny_tokens
from thinwire.base.errors import UserError
from thinwire.base.files import read_json, sha256_file, write_json
from thinwire.base.seeds import stream_key
from thinwire.data.corpus import SPLITS, Corpus
from thinwire.data.encode import ByteTokenizer
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.data.tokens import evaluation_sequences, open_tokenizer, open_tokens, tokenizer_of

WORDS = ["the", "harbour", "and", "anchor", "sailor", "lantern", "island", "that", "we've", "seen", "café", "島", "."]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    generator = np.random.default_rng(3)
    with (tmp_path / "text.jsonl").open("w") as file:
        for number in range(120):
            words = generator.choice(WORDS, int(generator.integers(5, 90)))
            file.write(json.dumps({"text": f"{number} " + " ".join(words.tolist())}) + "\n")
    return tmp_path / "text.jsonl"


@pytest.fixture
def options(tmp_path: Path) -> PrepareOptions:
    files = tiny_tokens.write_tokenizer_files(tmp_path / "files")
    return PrepareOptions(tokenizer="gpt2", tokenizer_files=files, valid_fraction=0.1, test_fraction=0.2)


def test_every_splits_tokens_are_its_bytes(text: Path, options: PrepareOptions, tmp_path: Path) -> None:
    prepare([str(text)], out=tmp_path / "data", options=options)
    corpus = Corpus.open(tmp_path / "data")
    tokenizer = tokenizer_of(corpus)
    assert tokenizer.name == "gpt2"
    for split in SPLITS:
        stream = open_tokens(corpus, split)
        shards = getattr(corpus, split)
        whole = stream.gather(np.array([0]), length=stream.num_tokens)[0]
        assert tokenizer.decode(whole) == shards.stream().tobytes()
        assert stream.num_text_bytes(whole) == shards.num_bytes
        assert stream.num_tokens < 0.9 * shards.num_bytes
        assert (whole == tokenizer.end_token).sum() == shards.num_documents == len(stream.document_starts)
        for index in range(shards.num_documents):
            tokens = whole[stream.document_starts[index] :][: stream.document_lengths[index]]
            assert tokenizer.decode(tokens) == shards.document(index)
            assert np.array_equal(tokens, tokenizer.encode(shards.document(index)))
    assert stream.vocab_size == tiny_tokens.VOCABULARY
    with pytest.raises(IndexError):
        stream.gather(np.array([1]), length=stream.num_tokens)


def test_sequences_of_tokens(text: Path, options: PrepareOptions, tmp_path: Path) -> None:
    prepare([str(text)], out=tmp_path / "data", options=options)
    stream = open_tokens(Corpus.open(tmp_path / "data"), "test")
    inside = evaluation_sequences(stream, tokens=20, max_sequences=8, key=stream_key(1, "x"))
    assert (inside.cut, inside.sequences.shape) == ("inside documents", (8, 21))
    assert tokenizer_end(tmp_path) not in inside.sequences
    across = evaluation_sequences(stream, tokens=200, max_sequences=8, key=stream_key(1, "x"))
    assert (across.cut, across.sequences.shape[1]) == ("consecutive", 201)
    assert tokenizer_end(tmp_path) in across.sequences


def tokenizer_end(folder: Path) -> int:
    return open_tokenizer("gpt2", folder=folder / "data" / "tokenizer").end_token


def test_the_manifest_names_the_files_and_the_fingerprint_covers_them(
    text: Path, options: PrepareOptions, tmp_path: Path
) -> None:
    summary = prepare([str(text)], out=tmp_path / "data", options=options)
    record = summary.manifest["tokenizer"]
    assert options.tokenizer_files is not None
    assert record["sha256"] == {path.name: sha256_file(path) for path in options.tokenizer_files.iterdir()}
    assert (record["name"], record["vocab_size"]) == ("gpt2", tiny_tokens.VOCABULARY)
    for split in SPLITS:
        files = record["splits"][split]["files"]
        assert files == {name: sha256_file(tmp_path / "data" / split / name) for name in files}
    plain = prepare([str(text)], out=tmp_path / "plain", options=PrepareOptions(valid_fraction=0.1, test_fraction=0.2))
    assert plain.manifest["splits"] == summary.manifest["splits"]
    assert plain.manifest["fingerprint"] != summary.manifest["fingerprint"]
    assert "tokenizer" not in plain.manifest


def test_files_elsewhere_are_the_same_and_other_files_are_not(
    text: Path, options: PrepareOptions, tmp_path: Path
) -> None:
    prepare([str(text)], out=tmp_path / "data", options=options)
    files = (options.tokenizer_files or tmp_path).rename(tmp_path / "moved")
    moved = PrepareOptions(tokenizer="gpt2", tokenizer_files=files, valid_fraction=0.1, test_fraction=0.2)
    assert prepare([str(text)], out=tmp_path / "data", options=moved).state == "reused"
    with (files / "merges.txt").open("a") as merges:
        merges.write("\n")
    with pytest.raises(UserError, match="other options"):
        prepare([str(text)], out=tmp_path / "data", options=moved)


def test_options_of_a_byte_folder_are_recorded_as_before() -> None:
    assert PrepareOptions().record(ByteTokenizer()) == {
        "seed": 1,
        "valid_fraction": 0.01,
        "test_fraction": 0.01,
        "max_bytes": None,
        "text_field": "text",
        "tokenizer": "byte",
        "piece_bytes": None,
    }


def test_tokenizer_files_for_bytes_are_a_mistake(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bytes need no tokenizer files"):
        prepare([str(text)], out=tmp_path / "data", options=PrepareOptions(tokenizer_files=tmp_path))


def test_missing_files_stop_before_anything_is_written(text: Path, tmp_path: Path) -> None:
    wrong = PrepareOptions(tokenizer="gpt2", tokenizer_files=tmp_path / "absent")
    with pytest.raises(UserError, match="no such folder"):
        prepare([str(text)], out=tmp_path / "data", options=wrong)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["train/tokens.bin", "train/token_starts.bin", "tokenizer/vocab.json"])
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_folder_that_lost_tokens_is_refused(
    text: Path, options: PrepareOptions, tmp_path: Path, name: str, damage: str
) -> None:
    prepare([str(text)], out=tmp_path / "data", options=options)
    path = tmp_path / "data" / name
    content = path.read_bytes()
    path.unlink()
    if damage == "short":
        path.write_bytes(content[:-16])
    with pytest.raises(UserError):
        open_tokens(Corpus.open(tmp_path / "data"), "train")


def test_another_tokenizers_files_are_refused(text: Path, options: PrepareOptions, tmp_path: Path) -> None:
    prepare([str(text)], out=tmp_path / "data", options=options)
    path = tmp_path / "data" / "tokenizer" / "vocab.json"
    vocabulary = read_json(path)
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    write_json(path, vocabulary)
    with pytest.raises(UserError, match="not those that the manifest names"):
        open_tokens(Corpus.open(tmp_path / "data"), "train")
