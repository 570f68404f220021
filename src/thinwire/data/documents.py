"""What is a document, and what must a source of documents be able to say?"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

MEBIBYTE = 1024 * 1024
# choice: a longer plain file is cut, and a longer JSON line refused, so that memory stays bounded.
MAX_DOCUMENT_BYTES = 64 * MEBIBYTE


class Document(NamedTuple):
    """One document.

    Attributes:
        payload: its bytes, verbatim.
        identity: names it among all documents; two documents of one source with the same id have the same identity.
        source: the group it is counted under, e.g. a file's name or a record's ``source`` field.
        domain: what it is about, e.g. ``"law"``; the source's name where nothing else is known.
        origin: the input it came from, as in ``InputRecord.path``.
    """

    payload: bytes
    identity: str
    source: str
    domain: str
    origin: str


class InputRecord(NamedTuple):
    """One input, for the manifest and the inputs' fingerprint.

    Attributes:
        path: the file, or the name and revision of something that is not a file.
        sha256: of the file's bytes, or of what pins the contents.
        num_bytes: of the file; 0 where unknown.
    """

    path: str
    sha256: str
    num_bytes: int


class ReadOptions(NamedTuple):
    """How records become documents.

    Attributes:
        text_field: the field or column that holds the text.
        piece_bytes: a plain file longer than this is cut, at a line end where there is one.
    """

    text_field: str = "text"
    piece_bytes: int = MAX_DOCUMENT_BYTES


class Source(ABC):
    """Something that gives documents, always in the same order."""

    argument: str

    @abstractmethod
    def inputs(self) -> list[InputRecord]:
        """What the documents are made of; two sources with equal inputs give equal documents."""

    @abstractmethod
    def documents(self, options: ReadOptions) -> Iterator[Document]:
        """Every document. Raises UserError where an input is missing or damaged."""
