"""Which held-out bytes are scored?  The windows of a split or of any text, the same for every method (Table 1).

Windows depend on the seed and on ``Cut`` alone, so two runs with equal ones are scored on identical targets.
"""

from pathlib import Path
from typing import NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.seeds import stream_key
from thinwire.data.corpus import MANIFEST, Corpus
from thinwire.data.protocols import Protocol, detect_protocol, text_windows, wikitext_windows
from thinwire.data.sources import read_documents
from thinwire.data.windows import EvaluationWindows, document_windows
from thinwire.soma.config import ScoringConfig


class Cut(NamedTuple):
    """How text becomes scored windows.

    Attributes:
        scoring: size of a window and how many at most.
        prefix_bytes: a window's first bytes, which are read and not scored.
        seed: draws the windows of a split.
    """

    scoring: ScoringConfig
    prefix_bytes: int
    seed: int

    @property
    def stride(self) -> int:
        """Bytes from one window of a document to its next, where a text is read through."""
        return self.scoring.window_bytes - self.prefix_bytes


class ScoredText(NamedTuple):
    """What is scored.

    Attributes:
        windows: uint8 [n, T + 1] with their documents and sources.
        protocol: how the text was cut.
        stride: bytes between a document's windows; None where each has one.
        source_names: the names that the windows' sources index.
    """

    windows: EvaluationWindows
    protocol: Protocol
    stride: int | None
    source_names: list[str]


def split_to_score(corpus: Corpus, cut: Cut) -> ScoredText:
    """The test split: one window a document, chosen by address. Raises UserError where no document is long enough."""
    windows = document_windows(
        corpus.test,
        window_bytes=cut.scoring.window_bytes,
        max_windows=cut.scoring.max_windows,
        key=stream_key(cut.seed, "test windows"),
    )
    return ScoredText(windows, "documents", None, [source["name"] for source in corpus.manifest["sources"]])


def text_to_score(text: Path, cut: Cut, *, protocol: Protocol | None) -> ScoredText:
    """Windows of a data folder's test split, or of any text.

    Args:
        protocol: how a text is cut; None tells by its first heading.

    Raises:
        UserError: the text is missing, unreadable or too short for one window.
    """
    if (text / MANIFEST).is_file():
        return split_to_score(Corpus.open(text), cut)
    payloads = [document.payload for document in read_documents(str(text))]
    chosen = protocol or (detect_protocol(payloads[0]) if len(payloads) == 1 else "documents")
    window_bytes, stride = cut.scoring.window_bytes, cut.stride
    try:
        if chosen == "wikitext":
            windows = wikitext_windows(b"".join(payloads), window_bytes=window_bytes, stride=stride)
        else:
            windows = text_windows(payloads, window_bytes=window_bytes, stride=stride)
    except UserError as error:
        raise UserError(error.what, where=str(text), fix=error.fix) from error
    return ScoredText(windows, chosen, stride, [text.name])
