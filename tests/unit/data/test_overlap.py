"""Each reason of the screen excludes what it should, and nothing else."""

from pathlib import Path

import numpy as np
import pytest

import thinwire.data.overlap as overlap
from thinwire.data.documents import Document
from thinwire.data.overlap import (
    Candidates,
    ScreenResult,
    SignatureWriter,
    normalized,
    read_signatures,
    screen,
    signature,
)
from thinwire.data.shards import ByteShards, ShardWriter


def random_text(seed: int, length: int = 400) -> bytes:
    return np.random.default_rng(seed).integers(97, 123, length, np.uint8).tobytes()


def document(payload: bytes, identity: str) -> Document:
    return Document(payload, identity, "s", "d", "o")


def write(folder: Path, documents: list[Document], shard_bytes: int = 1000) -> tuple[ByteShards, Path]:
    with ShardWriter(folder, shard_bytes=shard_bytes) as writer:
        signer = SignatureWriter(folder / "signatures.bin")
        for entry in documents:
            writer.add(entry.payload, source=0)
            signer.add(signature(entry))
        signer.close()
    return ByteShards.open(folder), folder / "signatures.bin"


def run(folder: Path, train: list[Document], valid: list[Document], test: list[Document]) -> tuple[ScreenResult, bytes]:
    _, train_signatures = write(folder / "train", train)
    candidates = []
    for name, documents in (("valid", valid), ("test", test)):
        shards, path = write(folder / name, documents)
        candidates.append(Candidates(shards, read_signatures(path)))
    seen: list[bytes] = []
    result = screen(
        tuple(candidates),
        train_folder=folder / "train",
        train_signatures=train_signatures,
        on_chunk=lambda chunk: seen.append(chunk.tobytes()),
    )
    return result, b"".join(seen)


def test_each_reason_is_found_and_counted(tmp_path: Path) -> None:
    train = [document(random_text(n), f"train {n}") for n in range(30)]
    short = b"A Short Notice, kept   twice"
    train += [document(short, "short"), document("Stra\u00dfe \ufb01n".encode(), "eszett")]
    valid = [
        document(random_text(100), "fresh 0"),
        document(random_text(101), "train 4"),
        document(short, "copy"),
        document(b"  a short\nnotice, KEPT twice\n", "other case"),
        document("STRASSE\u00a0 fin".encode(), "compatibility"),
        document(random_text(102) + random_text(9)[50:178], "passage"),
        document(random_text(103) + random_text(9)[50:177], "almost"),
    ]
    test = [
        document(random_text(104), "fresh 1"),
        document(random_text(100), "again"),
        document(random_text(105), "fresh 2"),
    ]
    result, _ = run(tmp_path, train, valid, test)
    assert [kept.tolist() for kept in result.kept] == [[0, 6], [0, 2]]
    assert result.excluded == (
        {
            "same_source_id": 1,
            "exact_copy": 1,
            "normalized_copy": 2,
            "shared_128_bytes": 1,
            "duplicate_in_evaluation": 0,
        },
        {
            "same_source_id": 0,
            "exact_copy": 0,
            "normalized_copy": 0,
            "shared_128_bytes": 0,
            "duplicate_in_evaluation": 1,
        },
    )


@pytest.mark.parametrize("chunk_bytes", [200, 257, 1000])
def test_passages_across_chunks_and_shards_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    read_stream = overlap.read_stream
    monkeypatch.setattr(overlap, "read_stream", lambda folder: read_stream(folder, chunk_bytes=chunk_bytes))
    train = [document(random_text(n, 700), f"train {n}") for n in range(12)]
    stream = b"".join(entry.payload + b"\x00" for entry in train)
    passages = [stream[start : start + 128] for start in range(0, len(stream) - 128, 37)]
    valid = [document(random_text(500 + n, 30) + passage, f"v{n}") for n, passage in enumerate(passages)]
    result, seen = run(tmp_path, train, valid, [])
    assert seen == stream
    assert result.kept[0].size == 0
    assert result.excluded[0]["shared_128_bytes"] == len(passages)


def test_nothing_is_excluded_without_overlap(tmp_path: Path) -> None:
    fresh = [document(random_text(n), f"fresh {n}") for n in range(20)]
    result, _ = run(tmp_path, [document(random_text(99), "train")], fresh[:10], fresh[10:])
    assert [kept.tolist() for kept in result.kept] == [list(range(10))] * 2
    assert sum(sum(reasons.values()) for reasons in result.excluded) == 0


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"  Two\t\nWords ", b"two words"),
        ("\ufb01ne \u2460\u3000STRASSE stra\u00dfe".encode(), b"fine 1 strasse strasse"),
        (b"\xff Bad \xfe", b"\xff bad \xfe"),
        (b"", b""),
    ],
)
def test_normalisation_is_nfkc_case_folding_and_white_space(payload: bytes, expected: bytes) -> None:
    assert normalized(payload) == expected
