"""Is a written file whole or absent, whatever fails on the way?"""

import hashlib
import os
from pathlib import Path

import pytest

from thinwire.base import files
from thinwire.base.errors import UserError
from thinwire.base.files import (
    append_json_line,
    atomic_write,
    canonical_json,
    read_json,
    read_json_lines,
    restore_json_lines,
    sha256_file,
    sha256_text,
    write_json,
)


def test_atomic_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "file.bin"
    atomic_write(target, b"old")
    atomic_write(target, lambda temporary: temporary.write_text("new") and None)
    assert target.read_bytes() == b"new"
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]


def test_atomic_write_keeps_the_old_file_when_writing_fails(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    atomic_write(target, b"old")

    def full_disk(temporary: Path) -> None:
        temporary.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        atomic_write(target, full_disk)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_atomic_write_keeps_the_old_file_when_the_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.bin"
    atomic_write(target, b"old")

    def refuse(source: object, destination: object) -> None:
        raise PermissionError(f"{source} -> {destination}")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        atomic_write(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_atomic_write_syncs_before_it_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (order.append("fsync"), real_sync(fd))[1])
    monkeypatch.setattr(files.os, "replace", lambda a, b: (order.append("replace"), real_replace(a, b))[1])
    atomic_write(tmp_path / "file", b"x")
    assert order == ["fsync", "replace", "fsync"]  # the file, its name, its folder


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"\\u00e9","b":[1,2.5]}'
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})
    with pytest.raises(ValueError):
        canonical_json({"a": float("nan")})


def test_json_survives_a_round_trip(tmp_path: Path) -> None:
    value = {"é": [1, None, True, 0.1], "a": {"b": "text"}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}"])
def test_read_json_names_the_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"not valid JSON[\s\S]*config\.json"):
        read_json(path)


def test_read_json_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing[\s\S]*absent\.json"):
        read_json(tmp_path / "absent.json")


def test_json_lines_drop_a_torn_last_record_only(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log.jsonl"
    for update in range(3):
        append_json_line(path, {"update": update, "note": "ü"})
    with path.open("ab") as handle:
        handle.write(b'{"update": 3, "no')
    assert [record["update"] for record in read_json_lines(path)] == [0, 1, 2]
    assert list(read_json_lines(tmp_path / "absent.jsonl")) == []


def test_a_torn_line_is_closed_off_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"update": 0}\n{"upd')
    append_json_line(path, {"update": 2})
    assert path.read_bytes() == b'{"update": 0}\n{"upd\n{"update": 2}\n'
    assert list(read_json_lines(path)) == [{"update": 0}, {"update": 2}]


def test_json_lines_are_restored_only_where_they_differ(tmp_path: Path) -> None:
    path, records = tmp_path / "log.jsonl", [{"a": 1}, {"b": "é"}]
    for record in records:
        append_json_line(path, record)
    before = path.stat().st_ino
    restore_json_lines(path, records)
    assert path.stat().st_ino == before
    path.write_bytes(path.read_bytes()[:-3])
    restore_json_lines(path, records)
    assert list(read_json_lines(path)) == records


def test_hashes_are_sha256(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000  # longer than any read buffer
    (tmp_path / "x").write_bytes(content)
    assert sha256_file(tmp_path / "x") == hashlib.sha256(content).hexdigest()
    assert sha256_text("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
