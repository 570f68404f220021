"""How do JSON lines, plain or compressed, become documents?  One record a line: ``text`` and optionally ``id``,
``source`` and ``domain``.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from thinwire.base.errors import UserError
from thinwire.data.documents import MAX_DOCUMENT_BYTES, MEBIBYTE, Document, ReadOptions
from thinwire.data.zstd_stream import ZstdStream

MAX_LINE_BYTES = MAX_DOCUMENT_BYTES
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json_documents(path: Path, *, name: str, origin: str, options: ReadOptions) -> Iterator[Document]:
    """Every record of a ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst`` file, in order.

    Bytes that are not UTF-8 pass through JSON and back unchanged (``surrogateescape``).  Blank lines are passed over.

    Args:
        path: the file.
        name: the group of records that have no ``source`` of their own.
        origin: the file's name in the manifest.
        options: which field holds the text.

    Raises:
        UserError: with file:line, where a line is not JSON, not a record with text, or too long; where the
            compression is damaged or the file is cut short.
    """
    number = 0
    try:
        with _open(path) as handle:
            while line := handle.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise _bad_line(path, number, f"a line is longer than {MAX_LINE_BYTES // MEBIBYTE} MiB", _TOO_LONG)
                line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                if line.strip():
                    record = _parse(line, path=path, number=number)
                    payload = _text(record, options.text_field, path=path, number=number)
                    yield _document(record, payload, name=name, origin=origin, number=number)
    except EOFError as error:
        where = f"{path}, after line {number}: {error}"
        raise UserError("a compressed file is cut short", where=where, fix="fetch or compress it again") from error
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        where = f"{path}, after line {number}: {error}"
        raise UserError("a compressed file is damaged", where=where, fix="fetch or compress it again") from error


_TOO_LONG = "split the text over several records, or give it as a .txt file, which is cut as needed"


def _open(path: Path) -> io.BufferedIOBase:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rb")
    if path.name.endswith(".zst"):
        return io.BufferedReader(ZstdStream(path), MEBIBYTE)
    return io.BufferedReader(path.open("rb", buffering=0), MEBIBYTE)


def _parse(line: bytes, *, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        reason = f"a line is not valid JSON ({error})"
        raise _bad_line(path, number, reason, "correct or remove the line") from error
    if not isinstance(record, dict):
        fix = 'write one object a line, e.g. {"text": "..."}'
        raise _bad_line(path, number, f"a line is a JSON {type(record).__name__}, not an object", fix)
    return record


def _text(record: dict[str, Any], field: str, *, path: Path, number: int) -> bytes:
    if field not in record:
        present = ", ".join(map(repr, list(record)[:10])) or "none"
        fix = f"name the field that holds the text with --text-field (fields here: {present})"
        raise _bad_line(path, number, f"a record has no field '{field}'", fix)
    text = record[field]
    if not isinstance(text, str):
        kind = type(text).__name__
        raise _bad_line(path, number, f"the field '{field}' holds a {kind}, not text", "correct or remove the line")
    return text_bytes(text)


def text_bytes(text: str) -> bytes:
    """UTF-8; escaped bytes become themselves again, and lone surrogates, which JSON can spell, three bytes each."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _document(record: dict[str, Any], payload: bytes, *, name: str, origin: str, number: int) -> Document:
    return record_document(record, payload, name=name, origin=origin, fallback_id=f"line {number}")


def record_document(record: dict[str, Any], payload: bytes, *, name: str, origin: str, fallback_id: str) -> Document:
    """A document from a record's optional ``id``, ``source`` and ``domain``.

    choice: an id counts inside its source; a record without one is named by its place, so that it equals no other.
    """
    source = str(record.get("source") or name)
    domain = str(record.get("domain") or source)
    identifier = record.get("id")
    identity = f"{origin}\n{fallback_id}" if identifier is None else f"{source}\n{identifier}"
    return Document(payload, identity, source, domain, origin)


def _bad_line(path: Path, number: int, what: str, fix: str) -> UserError:
    return UserError(what, where=f"{path}:{number}", fix=fix)
