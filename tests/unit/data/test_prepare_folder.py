"""A prepared folder holds every document once, says so, repeats exactly, and is whole or absent."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thinwire.data.prepare as prepare_module
from thinwire.base.errors import ConfigError, UserError
from thinwire.base.files import read_json
from thinwire.data.corpus import SPLITS, Corpus
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.data.shards import ByteShards


def write_records(path: Path, count: int, *, seed: int = 0, **fields: str) -> list[bytes]:
    generator = np.random.default_rng(seed)
    texts = [generator.integers(97, 123, int(generator.integers(50, 400)), np.uint8).tobytes() for _ in range(count)]
    records = [{"text": text.decode(), "id": f"{seed}-{n}", **fields} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return texts


def all_documents(corpus: Corpus) -> dict[str, list[bytes]]:
    return {name: [part.document(i) for i in range(part.num_documents)] for name, part in shards_of(corpus).items()}


def shards_of(corpus: Corpus) -> dict[str, ByteShards]:
    return {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}


def test_every_document_lies_in_one_split(tmp_path: Path) -> None:
    law = write_records(tmp_path / "law.jsonl", 300, seed=1, domain="law")
    web = write_records(tmp_path / "web.jsonl", 200, seed=2, source="crawl", domain="web")
    summary = prepare([str(tmp_path / "law.jsonl"), str(tmp_path / "web.jsonl")], out=tmp_path / "data")
    corpus = Corpus.open(tmp_path / "data")
    found = all_documents(corpus)
    assert sorted(itertools.chain(*found.values())) == sorted(law + web)
    assert {name: len(documents) for name, documents in found.items()} == {"train": 468, "valid": 16, "test": 16}
    assert found["train"] == [text for text in law + web if text in set(found["train"])]
    assert [source["name"] for source in corpus.manifest["sources"]] == ["law", "crawl"]
    owners = dict.fromkeys(law, 0) | dict.fromkeys(web, 1)
    for name, shards in shards_of(corpus).items():
        assert shards.sources.tolist() == [owners[text] for text in found[name]]
    assert summary.state == "prepared"
    assert summary.corpus_bytes == sum(len(text) + 1 for text in law + web)


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    law = write_records(tmp_path / "law.jsonl", 30, seed=1, domain="law")
    prepare([str(tmp_path / "law.jsonl")], out=tmp_path / "data", options=PrepareOptions(seed=5))
    manifest = read_json(tmp_path / "data" / "manifest.json")
    (source,) = manifest["sources"]
    assert source["name"] == "law"
    assert source["path"] == str(tmp_path / "law.jsonl")
    assert (source["documents"], source["bytes"]) == (30, sum(map(len, law)))
    assert source["domains"] == {"law": 30}
    assert source["sha256"] == manifest["inputs"][0]["sha256"]
    assert manifest["options"]["seed"] == 5
    for name in SPLITS:
        files = {path.name for path in (tmp_path / "data" / name).iterdir()}
        assert files == manifest["splits"][name]["files"].keys()
    assert {path.name for path in (tmp_path / "data").iterdir()} == {*SPLITS, "manifest.json", "bigrams.bin"}


def test_bigrams_are_counted_over_the_training_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import thinwire.data.overlap as overlap

    read_stream = overlap.read_stream
    monkeypatch.setattr(overlap, "read_stream", lambda folder: read_stream(folder, chunk_bytes=101))
    write_records(tmp_path / "a.jsonl", 60)
    prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    corpus = Corpus.open(tmp_path / "data")
    stream = corpus.train.stream()
    expected = np.zeros((256, 256), np.uint64)
    np.add.at(expected, (stream[:-1], stream[1:]), 1)
    assert np.array_equal(corpus.bigrams, expected)


def test_the_same_inputs_give_the_same_bytes_and_another_seed_another_split(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", 200)
    prints = [
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / f"data{n}", options=PrepareOptions(seed=seed)).manifest
        for n, seed in enumerate((1, 1, 2))
    ]
    assert prints[0] == prints[1]
    assert prints[0]["fingerprint"] != prints[2]["fingerprint"]


def test_copies_never_part_and_evaluation_holds_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    texts = write_records(path, 300)
    path.write_text("".join(json.dumps({"text": text.decode()}) + "\n" for text in texts * 2))
    prepare([str(path)], out=tmp_path / "data", options=PrepareOptions(valid_fraction=0.2, test_fraction=0.2))
    found = all_documents(Corpus.open(tmp_path / "data"))
    sets = [set(documents) for documents in found.values()]
    assert len(sets[0] | sets[1] | sets[2]) == sum(map(len, sets)) == 300
    assert len(found["valid"]) == len(sets[1]) == 60
    excluded = read_json(tmp_path / "data" / "manifest.json")["screen"]["excluded"]
    assert excluded["valid"]["duplicate_in_evaluation"] == 60


def test_a_finished_folder_is_reused_and_another_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", 50)
    first = prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    again = prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    assert (again.state, again.manifest) == ("reused", first.manifest)
    with pytest.raises(UserError, match="other options"):
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data", options=PrepareOptions(seed=2))
    write_records(tmp_path / "a.jsonl", 51)
    with pytest.raises(UserError, match="other sources"):
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("kept")
    with pytest.raises(UserError, match="something else"):
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "kept"


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    write_records(tmp_path / "a.jsonl", 50)

    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(prepare_module, "build_manifest", fail)
    with pytest.raises(type(failure)):
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_what_a_killed_run_left_is_replaced(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", 50)
    (tmp_path / "data.partial" / "train").mkdir(parents=True)
    prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "data"}


def test_one_plain_file_is_cut_so_that_it_can_be_split(tmp_path: Path) -> None:
    text = "".join(f"line {n} of a long text, number {n * n}\n" for n in range(20_000)).encode()
    (tmp_path / "book.txt").write_bytes(text)
    prepare([str(tmp_path / "book.txt")], out=tmp_path / "data")
    found = all_documents(Corpus.open(tmp_path / "data"))
    assert min(len(documents) for documents in found.values()) >= 10
    assert sum(map(len, itertools.chain(*found.values()))) == len(text)


def test_tiny_and_invalid_texts_never_crash(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(b"\xff\x00\xfe")
    prepare([str(tmp_path / "one.txt")], out=tmp_path / "data")
    corpus = Corpus.open(tmp_path / "data")
    assert corpus.train.document(0) == b"\xff\x00\xfe"
    assert (corpus.valid.num_documents, corpus.test.num_documents) == (0, 0)


def test_the_limit_is_shared_between_sources(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_records(tmp_path / f"{name}.jsonl", 100, seed=ord(name))
    options = PrepareOptions(max_bytes=10_000)
    summary = prepare([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], out=tmp_path / "data", options=options)
    sizes = [source["bytes"] for source in summary.manifest["sources"]]
    assert sum(sizes) <= 10_000
    assert min(sizes) > 4_000


def test_documents_without_text_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(UserError, match="hold no text"):
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_limit_below_the_first_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "seven b"}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "nine byte"}\n')
    with pytest.raises(UserError, match=r"--max-bytes 5 is less than the first document, which has 7 bytes") as caught:
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data", options=PrepareOptions(max_bytes=5))
    assert "raise --max-bytes" in caught.value.fix
    both = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    with pytest.raises(UserError, match=r"--max-bytes 8 \(each of 2 sources gets an equal share\) is less than"):
        prepare(both, out=tmp_path / "data", options=PrepareOptions(max_bytes=8))
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "b.jsonl"}


def test_all_options_out_of_range_are_listed(tmp_path: Path) -> None:
    options = PrepareOptions(valid_fraction=-0.1, test_fraction=0.6, max_bytes=0, piece_bytes=1)
    with pytest.raises(ConfigError) as caught:
        prepare([str(tmp_path)], out=tmp_path / "data", options=options)
    assert len(caught.value.violations) == 4


def test_an_output_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", 5)
    with pytest.raises(UserError, match="cannot make the output folder") as caught:
        prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "a.jsonl" / "data")
    assert "--out" in caught.value.fix
