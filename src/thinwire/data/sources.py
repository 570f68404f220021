"""Which source of text does a word on the command line mean?  A path, ``hf:NAME[:SUBSET[:SPLIT]]`` or ``python``."""

from collections.abc import Sequence

from thinwire.base.errors import UserError
from thinwire.data.documents import MAX_DOCUMENT_BYTES, Document, ReadOptions, Source
from thinwire.data.file_source import FileSource
from thinwire.data.hugging_face import HUGGING_FACE_PREFIX, HuggingFaceSource
from thinwire.data.python_text import PYTHON_SOURCE, PythonSource

# choice: a handful of plain files is cut into about 8,192 pieces, else one long text could not be split by document.
FEW_PLAIN_FILES = 64
WANTED_PIECES = 8192
MIN_PIECE_BYTES = 8192


def open_source(argument: str) -> Source:
    """Raises UserError where a path or a name cannot be a source."""
    if argument == PYTHON_SOURCE:
        return PythonSource()
    if argument.startswith(HUGGING_FACE_PREFIX):
        return HuggingFaceSource(argument)
    return FileSource(argument)


def open_sources(arguments: Sequence[str]) -> list[Source]:
    """Every source, in order; the same path twice is refused."""
    repeated = sorted({argument for argument in arguments if list(arguments).count(argument) > 1})
    if repeated:
        raise UserError("a source is given twice", where=", ".join(repeated), fix="name each source once")
    if not arguments:
        fix = "name files, folders, hf:NAME[:SUBSET] or the word python"
        raise UserError("no source was given", where="SOURCE", fix=fix)
    return [open_source(argument) for argument in arguments]


def automatic_piece_bytes(sources: Sequence[Source]) -> int:
    """Where a plain file is cut: at 64 MiB, or earlier when the whole input is a few plain files."""
    files = [file for source in sources if isinstance(source, FileSource) for file in source.files]
    only_plain = all(isinstance(source, FileSource) for source in sources) and all(f.kind == "text" for f in files)
    if not only_plain or len(files) >= FEW_PLAIN_FILES:
        return MAX_DOCUMENT_BYTES
    total = sum(file.num_bytes for file in files)
    return min(max(total // WANTED_PIECES, MIN_PIECE_BYTES), MAX_DOCUMENT_BYTES)


def read_documents(argument: str, *, text_field: str = "text", max_bytes: int | None = None) -> list[Document]:
    """A whole source in memory, e.g. a text to evaluate on; a plain file is one document up to 64 MiB.

    Args:
        argument: the source, as on the command line.
        text_field: the field or column that holds the text.
        max_bytes: stop after the document that reaches this many bytes.

    Raises:
        UserError: the source cannot be read.
    """
    documents, num_bytes = [], 0
    for document in open_source(argument).documents(ReadOptions(text_field)):
        documents.append(document)
        num_bytes += len(document.payload)
        if max_bytes is not None and num_bytes >= max_bytes:
            break
    return documents
