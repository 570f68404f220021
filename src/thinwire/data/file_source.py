"""Which files does a path on the command line mean, and in which order are they read?"""

import os
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.files import sha256_file
from thinwire.data.documents import Document, InputRecord, ReadOptions, Source
from thinwire.data.json_lines import read_json_documents
from thinwire.data.parquet import read_parquet_documents
from thinwire.data.text_files import looks_binary, read_pieces

FileKind = Literal["text", "json", "parquet"]
ENDINGS: dict[str, FileKind] = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "json",
    ".jsonl.gz": "json",
    ".jsonl.zst": "json",
    ".parquet": "parquet",
}
ENDINGS_READ = " ".join(ENDINGS)


class TextFile(NamedTuple):
    """One file to read: its kind, the group its documents belong to, and its size."""

    path: Path
    kind: FileKind
    name: str
    num_bytes: int


class FileSource(Source):
    """A file, or every readable file below a folder in the order of its relative path.

    choice: files and folders whose name starts with a dot, and empty files, are passed over inside a folder.

    Raises:
        UserError: nothing there, not readable, empty, or no file of a kind that is read.
    """

    def __init__(self, argument: str) -> None:
        self.argument = argument
        path = Path(argument)
        try:
            self.files = _find(path)
            for file in self.files:
                file.path.open("rb").close()
        except PermissionError as error:
            where = error.filename or argument
            raise UserError("no permission to read", where=str(where), fix="change its permissions") from error

    @cached_property
    def _inputs(self) -> list[InputRecord]:
        return [InputRecord(str(file.path), sha256_file(file.path), file.num_bytes) for file in self.files]

    def inputs(self) -> list[InputRecord]:
        return self._inputs

    def documents(self, options: ReadOptions) -> Iterator[Document]:
        for file in self.files:
            origin = str(file.path)
            if file.kind == "json":
                yield from read_json_documents(file.path, name=file.name, origin=origin, options=options)
            elif file.kind == "parquet":
                yield from read_parquet_documents(file.path, name=file.name, origin=origin, options=options)
            else:
                for number, piece in enumerate(read_pieces(file.path, piece_bytes=options.piece_bytes)):
                    yield Document(piece, f"{origin}\npiece {number}", file.name, file.name, origin)


def _find(path: Path) -> list[TextFile]:
    if path.is_dir():
        return _folder_files(path)
    if not path.exists():
        fix = "check the spelling; a source is a file, a folder, hf:NAME[:SUBSET] or the word python"
        raise UserError("there is no such file or folder", where=str(path), fix=fix)
    if not path.is_file():
        raise UserError("neither a file nor a folder", where=str(path), fix="give a regular file or a folder")
    if path.stat().st_size == 0:
        raise UserError("the file is empty", where=str(path), fix="give a file that holds text")
    kind = _kind(path.name)
    if kind is None and looks_binary(path):
        fix = f"convert it to text; endings that are read: {ENDINGS_READ}, and any file of plain text"
        raise UserError("the file is not text, by its first bytes", where=str(path), fix=fix)
    return [TextFile(path, kind or "text", _stem(path.name), path.stat().st_size)]


def _folder_files(folder: Path) -> list[TextFile]:
    found: list[TextFile] = []
    passed_over: Counter[str] = Counter()
    num_empty = 0
    for path in _walk(folder):
        kind = _kind(path.name)
        if kind is None or not path.is_file():
            passed_over[path.suffix or "no ending"] += 1
        elif path.stat().st_size == 0:
            num_empty += 1
        else:
            found.append(TextFile(path, kind, _group(folder, path, kind), path.stat().st_size))
    if found:
        return found
    fix = f"give a folder with text; endings that are read: {ENDINGS_READ}"
    if num_empty:
        what = f"every file that could be read is empty ({num_empty} files)"
    elif passed_over:
        endings = ", ".join(f"{ending} x {count}" for ending, count in passed_over.most_common(5))
        what = f"no file in the folder can be read as text; {passed_over.total()} passed over ({endings})"
    else:
        what = "the folder is empty"
    raise UserError(what, where=str(folder), fix=fix)


def _walk(folder: Path) -> list[Path]:
    paths = []
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def _raise(error: OSError) -> None:
    raise error


def _group(folder: Path, path: Path, kind: FileKind) -> str:
    """A record file is a group; plain files are grouped by the first folder below the one that was given."""
    if kind != "text":
        return _stem(path.name)
    parts = path.relative_to(folder).parts
    return parts[0] if len(parts) > 1 else folder.resolve().name or "files"


def _kind(name: str) -> FileKind | None:
    return next((kind for ending, kind in ENDINGS.items() if name.lower().endswith(ending)), None)


def _stem(name: str) -> str:
    for ending in ENDINGS:
        if name.lower().endswith(ending):
            return name[: -len(ending)] or name
    return Path(name).stem
