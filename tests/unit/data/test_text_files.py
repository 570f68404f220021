"""A plain file's pieces joined are the file, whatever is in it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.data.text_files import looks_binary, read_pieces


@settings(max_examples=60, deadline=None)
@given(
    payload=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode)), piece_bytes=st.integers(8, 80)
)
def test_pieces_joined_are_the_file(tmp_path_factory: pytest.TempPathFactory, payload: bytes, piece_bytes: int) -> None:
    path = tmp_path_factory.mktemp("text") / "file.txt"
    path.write_bytes(payload)
    pieces = list(read_pieces(path, piece_bytes=piece_bytes))
    assert b"".join(pieces) == payload
    assert all(0 < len(piece) <= piece_bytes for piece in pieces)


def test_a_piece_ends_at_a_line_end(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"one\ntwo\nthree\nfour")
    assert list(read_pieces(path, piece_bytes=10)) == [b"one\ntwo\n", b"three\n", b"four"]


def test_one_long_line_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    text = "aé€\U0001f600" * 50
    path.write_bytes(text.encode())
    for piece_bytes in range(8, 24):
        pieces = list(read_pieces(path, piece_bytes=piece_bytes))
        assert "".join(piece.decode() for piece in pieces) == text


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"plain text\r\n\twith a tab\x0c", False),
        ("größer € \U0001f600".encode(), False),
        (b"latin-1: gr\xf6\xdfer", False),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", True),
        (bytes(range(1, 256)), True),
    ],
)
def test_binary_files_are_told_from_text(tmp_path: Path, payload: bytes, expected: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(payload)
    assert looks_binary(path) is expected
