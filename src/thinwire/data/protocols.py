"""How is a text of one's own, or WikiText, cut into windows to score?  Appendix L.1.

WikiText-103: "We split at top-level-heading-shaped rows and form 1,025-byte windows within each segment, advancing by
768 bytes [...] Incomplete final windows are omitted", which gives 1.11M validation and 1.25M test targets.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from thinwire.base.errors import UserError
from thinwire.data.windows import EvaluationWindows

Protocol = Literal["wikitext", "documents"]

# One "=" on each side is an article's title; " = = Section = = " is a heading below it.
# choice: shape alone decides, so two rows of the test split that are formulas in a table also cut; with them the counts
# are the paper's.
HEADING_ROW = re.compile(rb"^ = (?!= )[^\n]* = ?$", re.MULTILINE)


def detect_protocol(text: bytes) -> Protocol:
    """``wikitext`` where the first row that is not blank is a top-level heading, else ``documents``."""
    first = re.search(rb"^[^\n]*\S[^\n]*$", text, re.MULTILINE)
    return "wikitext" if first and HEADING_ROW.match(first.group()) else "documents"


def heading_segments(text: bytes) -> list[bytes]:
    """Cut before every top-level-heading-shaped row; the segments joined give the text."""
    cuts = sorted({0, len(text), *(found.start() for found in HEADING_ROW.finditer(text))})
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def wikitext_windows(text: bytes, *, window_bytes: int = 1024, stride: int = 768) -> EvaluationWindows:
    """WikiText's protocol on raw bytes; segments are the bootstrap's documents.

    Raises:
        UserError: no segment holds a window.
    """
    return text_windows(heading_segments(text), window_bytes=window_bytes, stride=stride)


def text_windows(documents: Sequence[bytes], *, window_bytes: int = 1024, stride: int = 768) -> EvaluationWindows:
    """Every window of ``window_bytes + 1`` bytes inside each document, advancing by ``stride``; with a stride of the
    scored targets (768), each byte past a document's first 256 is scored once.

    Raises:
        UserError: no document holds a window.
    """
    rows, owners = [], []
    for index, document in enumerate(documents):
        view = np.frombuffer(document, np.uint8)
        if view.size > window_bytes:
            rows.append(np.lib.stride_tricks.sliding_window_view(view, window_bytes + 1)[::stride])
            owners.append(np.full(len(rows[-1]), index, np.int64))
    if not rows:
        longest = max((len(document) for document in documents), default=0)
        raise UserError(
            f"the text is too short for one window of {window_bytes + 1} bytes (its longest document has {longest})",
            where=f"{len(documents)} documents",
            fix="give a longer text",
        )
    windows = np.concatenate(rows)
    return EvaluationWindows(windows, np.concatenate(owners), np.zeros(len(windows), np.int32))
