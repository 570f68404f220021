"""JSON lines give their records, and a bad line is named by file and number."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import thinwire.data.json_lines as json_lines
from thinwire.base.errors import UserError
from thinwire.data.documents import Document, ReadOptions
from thinwire.data.json_lines import read_json_documents

GOOD = b'{"text": "first", "id": "a", "source": "books", "domain": "fiction"}\n\n{"text": "zweit\xc3\xa9"}\n'


def read(path: Path, field: str = "text") -> list[Document]:
    return list(read_json_documents(path, name="mine", origin="origin", options=ReadOptions(field)))


@pytest.mark.parametrize(
    ("ending", "compress"),
    [(".jsonl", bytes), (".jsonl.gz", gzip.compress), (".jsonl.zst", zstandard.ZstdCompressor().compress)],
)
def test_records_come_in_order(tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(compress(GOOD))
    first, second = read(path)
    assert first == Document(b"first", "books\na", "books", "fiction", "origin")
    assert second == Document("zweité".encode(), "origin\nline 3", "mine", "mine", "origin")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', "not valid JSON"),
        (b"[1, 2]", "a JSON list, not an object"),
        (b'{"body": "x", "id": 1}', "has no field 'text'"),
        (b'{"text": 3}', "holds a int, not text"),
        (b'{"text": null}', "holds a NoneType, not text"),
        (b"[" * 200_000, "not valid JSON"),
        (b"\x80\x81", "not valid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    with pytest.raises(UserError, match=message) as caught:
        read(path)
    assert caught.value.where == f"{path}:2"
    assert caught.value.fix


def test_a_missing_field_lists_those_there(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"content": "words", "id": 7}\n')
    with pytest.raises(UserError) as caught:
        read(path)
    assert "'content', 'id'" in caught.value.fix
    assert read(path, "content")[0].payload == b"words"


def test_bytes_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "gr\xf6\xdfer \xff"}\n{"text": "\\ud800 \\ud83d\\ude00"}\n')
    assert [document.payload for document in read(path)] == [b"gr\xf6\xdfer \xff", b"\xed\xa0\x80 \xf0\x9f\x98\x80"]


def test_a_line_above_the_limit_is_refused_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "long.jsonl"
    fits = json.dumps({"text": "x" * (1000 - 13)}).encode() + b"\n"
    assert len(fits) == 1000
    path.write_bytes(fits + b'{"text": "' + b"y" * 5000)
    documents = read_json_documents(path, name="mine", origin="origin", options=ReadOptions())
    assert len(next(documents).payload) == 987
    with pytest.raises(UserError, match="longer than") as caught:
        next(documents)
    assert caught.value.where == f"{path}:2"


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst"])
def test_damaged_compression_is_a_clear_error(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(b"this is not compressed at all")
    with pytest.raises(UserError, match="compressed file is damaged"):
        read(path)


def many_lines() -> bytes:
    return b"".join(json.dumps({"text": f"{n * 7919 % 10007} words " * 20}).encode() + b"\n" for n in range(3000))


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize("keep", [slice(3), slice(100), slice(-4000), slice(-1)])
def test_a_compressed_file_cut_short_is_a_clear_error(tmp_path: Path, ending: str, keep: slice) -> None:
    whole = gzip.compress(many_lines()) if ending.endswith("gz") else zstandard.compress(many_lines())
    path = tmp_path / f"file{ending}"
    path.write_bytes(whole[keep])
    with pytest.raises(UserError, match="cut short") as caught:
        read(path)
    assert str(path) in caught.value.where
