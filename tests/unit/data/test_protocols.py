"""Texts are cut into windows as appendix L.1 says, and WikiText gives exactly the paper's counts."""

from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.data.protocols import detect_protocol, heading_segments, text_windows, wikitext_windows

ARTICLES = b" \n = First = \n \n Text . \n = = Section = = \n = = = Deeper = = = \n More . \n = Second title = \n End"


def test_only_top_level_headings_cut() -> None:
    segments = heading_segments(ARTICLES)
    assert b"".join(segments) == ARTICLES
    assert [segment.split(b"\n")[0] for segment in segments] == [b" ", b" = First = ", b" = Second title = "]


@pytest.mark.parametrize("row", [b" = = Section = = ", b"= Title =", b" = open", b"a = b = c ", b" =Title= "])
def test_other_rows_do_not_cut(row: bytes) -> None:
    text = b"before\n" + row + b"\nafter"
    assert heading_segments(text) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ARTICLES, "wikitext"),
        (b" = Title = \nbody", "wikitext"),
        (b" = = Section = = \nbody", "documents"),
        (b"x = 1\n = Title = \n", "documents"),
        (b"", "documents"),
        (b" \n\n", "documents"),
        (b"\xff\xfe", "documents"),
    ],
)
def test_wikitext_is_recognised_by_its_first_row(text: bytes, expected: str) -> None:
    assert detect_protocol(text) == expected


def test_windows_advance_by_the_stride_and_stay_in_one_document() -> None:
    documents = [bytes(range(10)), b"short", bytes(range(100, 111))]
    found = text_windows(documents, window_bytes=6, stride=4)
    assert found.windows.tolist() == [list(range(7)), list(range(100, 107)), list(range(104, 111))]
    assert found.documents.tolist() == [0, 2, 2]
    assert found.sources.tolist() == [0, 0, 0]


def test_each_target_past_the_first_prefix_is_scored_once() -> None:
    document = np.random.default_rng(0).integers(0, 256, 1024 + 1 + 5 * 768, np.uint8)
    found = text_windows([document.tobytes()])
    targets = np.concatenate([row[257:] for row in found.windows])
    assert np.array_equal(targets, document[257:])


def test_a_text_without_a_window_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="too short"):
        text_windows([b"x" * 1024, b""])


@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "windows", "targets"), [("valid", 1443, 1_108_224), ("test", 1631, 1_252_608)])
def test_wikitext_has_the_papers_scored_targets(shared_data: Path, name: str, windows: int, targets: int) -> None:
    text = (shared_data / "wikitext" / f"wiki.{name}.raw").read_bytes()
    assert detect_protocol(text) == "wikitext"
    found = wikitext_windows(text)
    assert found.windows.shape == (windows, 1025)
    assert len(found.windows) * 768 == targets
