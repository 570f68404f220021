"""A folder that is not a prepared one, or no longer whole, is refused with a reason."""

import json
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.data.corpus import Corpus
from thinwire.data.prepare import prepare


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {n} " * 9}) + "\n" for n in range(40)))
    prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data")
    return tmp_path / "data"


def test_a_folder_can_be_moved(folder: Path) -> None:
    before = Corpus.open(folder)
    moved = folder.rename(folder.with_name("elsewhere"))
    assert Corpus.open(moved).fingerprint == before.fingerprint


def test_other_folders_are_refused(folder: Path) -> None:
    for path, message in ((folder / "absent", "no such"), (folder / "train", "not a prepared")):
        with pytest.raises(UserError, match=message):
            Corpus.open(path)


@pytest.mark.parametrize(
    "name", ["train/bytes-00000.bin", "train/starts.bin", "bigrams.bin", "valid/lengths.bin", "test/sources.bin"]
)
def test_a_folder_that_lost_bytes_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match="damaged") as caught:
        Corpus.open(folder)
    assert "prepare" in caught.value.fix


def test_another_splits_files_do_not_pass(folder: Path) -> None:
    for path in (folder / "train").iterdir():
        path.replace(folder / "valid" / path.name)
    with pytest.raises(UserError, match="missing"):
        Corpus.open(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}', '{"format": "thinwire-bytes-1"}'])
def test_a_bad_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UserError):
        Corpus.open(folder)
