"""Parquet rows become documents; a missing column or a damaged file is a clear error."""

import sys
from pathlib import Path

import pytest

from thinwire.base.errors import UserError
from thinwire.data.documents import Document, ReadOptions
from thinwire.data.parquet import read_parquet_documents


def read(path: Path, field: str = "text") -> list[Document]:
    return list(read_parquet_documents(path, name="mine", origin="origin", options=ReadOptions(field)))


def write(path: Path, columns: dict[str, list[object]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, row_group_size=100)
    return path


def test_rows_come_in_order(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(600)]
    path = write(tmp_path / "f.parquet", {"text": texts, "id": [f"i{n}" for n in range(600)], "extra": [0] * 600})
    found = read(path)
    assert [document.payload.decode() for document in found] == texts
    assert found[5].identity == "mine\ni5"


def test_bytes_columns_are_kept(tmp_path: Path) -> None:
    assert read(write(tmp_path / "f.parquet", {"text": [b"\xff\x00"]}))[0].payload == b"\xff\x00"


def test_a_missing_column_lists_those_there(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", {"content": ["a"]})
    with pytest.raises(UserError, match="no column 'text'") as caught:
        read(path)
    assert "content" in caught.value.fix


def test_rows_without_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NoneType") as caught:
        read(write(tmp_path / "f.parquet", {"text": ["a", None]}))
    assert caught.value.where.endswith("row 2")


def test_a_damaged_file_is_a_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "f.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="cannot be read"):
        read(path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pyarrow") as caught:
        read(tmp_path / "f.parquet")
    assert "thinwire[parquet]" in caught.value.fix
