"""A path means the same files in the same order everywhere, and a path that means none is a clear error."""

from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.data.documents import ReadOptions
from thinwire.data.file_source import FileSource
from thinwire.data.sources import automatic_piece_bytes, open_source, open_sources, read_documents


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, payload in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    return folder


def test_a_folder_is_read_in_the_order_of_relative_paths(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "b.txt": b"B",
            "a/z.md": b"Z",
            "a/A.TXT": b"A",
            "c.jsonl": b'{"text": "J"}\n',
            "picture.png": b"\x89PNG\x00",
            "empty.txt": b"",
            ".hidden.txt": b"H",
            ".git/x.txt": b"G",
        },
    )
    documents = list(FileSource(str(tmp_path)).documents(ReadOptions()))
    assert [document.payload for document in documents] == [b"A", b"Z", b"B", b"J"]
    assert [document.source for document in documents] == ["a", "a", tmp_path.name, "c"]


@pytest.mark.parametrize("name", ["wiki.test.raw", "script.py", "noending", "latin.txt"])
def test_any_text_file_can_be_named(tmp_path: Path, name: str) -> None:
    fill(tmp_path, {name: b"some text \xff\xe9\n"})
    (document,) = read_documents(str(tmp_path / name))
    assert document.payload == b"some text \xff\xe9\n"


@pytest.mark.parametrize(
    ("files", "argument", "message"),
    [
        ({}, "absent", "no such file or folder"),
        ({}, ".", "the folder is empty"),
        ({"e.txt": b""}, "e.txt", "the file is empty"),
        ({"e.txt": b"", "f.md": b""}, ".", r"is empty \(2 files\)"),
        ({"a.png": b"\x89", "b.png": b"\x00", "c.so": b"\x7f"}, ".", r"3 passed over \(.png x 2, .so x 1\)"),
        ({"a.png": b"\x89PNG\r\n\x1a\n\x00"}, "a.png", "not text"),
    ],
)
def test_a_path_without_text_is_a_clear_error(
    tmp_path: Path, files: dict[str, bytes], argument: str, message: str
) -> None:
    fill(tmp_path, files)
    with pytest.raises(UserError, match=message) as caught:
        FileSource(str(tmp_path / argument))
    assert str(tmp_path) in caught.value.where
    assert caught.value.fix


def test_the_endings_that_are_read_are_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a.png": b"\x89"})
    with pytest.raises(UserError) as caught:
        FileSource(str(tmp_path))
    for ending in (".txt", ".md", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"):
        assert ending in caught.value.fix


def test_a_device_is_not_a_source() -> None:
    with pytest.raises(UserError, match="neither a file nor a folder"):
        open_source("/dev/null")


def test_inputs_change_with_the_contents(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": b"one"})
    before = FileSource(str(tmp_path)).inputs()
    assert FileSource(str(tmp_path)).inputs() == before
    fill(tmp_path, {"a.txt": b"two"})
    assert FileSource(str(tmp_path)).inputs()[0].sha256 != before[0].sha256


def test_a_few_plain_files_are_cut_and_record_files_are_not(tmp_path: Path) -> None:
    fill(tmp_path, {"plain/a.txt": b"x" * 200_000, "records/a.jsonl": b'{"text": "x"}\n'})
    assert automatic_piece_bytes([FileSource(str(tmp_path / "plain"))]) == 8192
    assert automatic_piece_bytes([FileSource(str(tmp_path))]) == 64 * 1024 * 1024


def test_a_source_given_twice_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": b"one"})
    with pytest.raises(UserError, match="given twice"):
        open_sources([str(tmp_path), str(tmp_path)])
    with pytest.raises(UserError, match="no source"):
        open_sources([])


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    fill(tmp_path, {f"{n}.txt": b"x" * 100 for n in range(9)})
    assert len(read_documents(str(tmp_path), max_bytes=250)) == 3
