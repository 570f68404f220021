"""What is scored?  Sequences of a test split, or every token of any text once (section 5.1 scores held-out perplexity).

choice: a text is read document by document.  The token that ends documents comes first and is not scored, then windows
of the training length follow each other, each beginning where the last one's targets ended, so that every token of the
document is a target exactly once; the last window of a document is shorter.  A window knows nothing of those before it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from thinwire.base.errors import UserError
from thinwire.base.seeds import stream_key
from thinwire.data.corpus import MANIFEST, Corpus
from thinwire.data.encode import TextTokenizer
from thinwire.data.protocols import Protocol, detect_protocol, heading_segments
from thinwire.data.sources import read_documents
from thinwire.data.tokens import Cut, evaluation_sequences, open_tokens, tokenizer_of
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.language_model import LanguageModel


class Window(NamedTuple):
    """Tokens that are read together.

    Attributes:
        tokens: int64 [t + 1]; all but the last are read, all but the first are scored.
        document: a number; windows of one document are resampled together.
        num_bytes: of text that the scored tokens stand for.
    """

    tokens: Int64[np.ndarray, " length"]
    document: int
    num_bytes: int


@dataclass(frozen=True)
class ScoredText:
    """What is scored.

    Attributes:
        protocol: how it was cut: a split's sequences lie ``inside documents`` or are ``consecutive`` pieces of the
            stream; a text's are all windows of its ``documents``, or of its top-level sections (``wikitext``).
        num_bytes: of text in all targets.
        windows: gives every window, in order, each time from the first.
    """

    protocol: Cut | Literal["documents", "wikitext"]
    num_bytes: int
    windows: Callable[[], Iterator[Window]]


def document_windows(documents: Sequence[bytes], *, tokenizer: TextTokenizer, window_tokens: int) -> Iterator[Window]:
    """All windows; every token of each document is scored once.  One document at a time is turned into tokens."""
    for number, document in enumerate(documents):
        tokens = np.concatenate([[tokenizer.end_token], tokenizer.encode(document)]).astype(np.int64)
        for start in range(0, len(tokens) - 1, window_tokens):
            window = tokens[start : start + window_tokens + 1]
            yield Window(window, number, int(tokenizer.token_bytes[window[1:]].sum()))


def split_to_score(corpus: Corpus, config: SubspacesConfig, *, tokenizer: TextTokenizer) -> ScoredText:
    """At most ``test_sequences`` sequences of the training length, chosen by address.

    Raises:
        UserError: the split is shorter than one sequence, or was prepared with another tokenizer than the run's.
    """
    stream, its = open_tokens(corpus, "test"), tokenizer_of(corpus)
    if (its.name, its.sha256) != (tokenizer.name, tokenizer.sha256):
        raise UserError(
            f"the data folder was prepared with another tokenizer ({its.name}) than the run's ({tokenizer.name})",
            where=str(corpus.folder),
            fix=f"prepare it with --tokenizer {tokenizer.name}, or give the text itself",
        )
    tokens = config.sequence.tokens
    found = evaluation_sequences(
        stream, tokens=tokens, max_sequences=config.test_sequences, key=stream_key(config.seed, "test sequences")
    )
    windows = [
        Window(row, int(document), stream.num_text_bytes(row[1:]))
        for row, document in zip(found.sequences, found.documents, strict=True)
    ]
    return ScoredText(found.cut, sum(window.num_bytes for window in windows), lambda: iter(windows))


def text_to_score(model: LanguageModel, text: Path, *, protocol: Protocol | None = None) -> ScoredText:
    """The test split of a data folder, or any text.

    Args:
        protocol: how a text is cut: ``wikitext`` at its top-level headings, ``documents`` nowhere; None tells by the
            first row of a single document.

    Raises:
        UserError: the text is missing, unreadable or empty, or a data folder was prepared with another tokenizer.
    """
    config = model.stock.config
    if (text / MANIFEST).is_file():
        return split_to_score(Corpus.open(text), config, tokenizer=model.tokenizer)
    payloads = [document.payload for document in read_documents(str(text))]
    chosen = protocol or (detect_protocol(payloads[0]) if len(payloads) == 1 else "documents")
    if chosen == "wikitext":
        payloads = [segment for payload in payloads for segment in heading_segments(payload)]
    num_bytes = sum(map(len, payloads))
    if num_bytes == 0:
        raise UserError("the text is too short: it has no byte to score", where=str(text), fix="give a longer text")
    cut = partial(document_windows, payloads, tokenizer=model.tokenizer, window_tokens=config.sequence.tokens)
    return ScoredText(chosen, num_bytes, cut)
