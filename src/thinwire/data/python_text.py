"""What text does a machine have that was given none?  What every Python installation carries.

The standard library's code and documentation, the help topics of ``pydoc``, and the code, documentation, licences and C
headers of the installed packages; one document per module, topic or file.

choice: which files are read, when a domain holds more than its limit, is decided by a hash of their names, with a limit
for each package, so that no package fills a domain.
"""

import hashlib
import importlib
import os
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from thinwire.data.documents import Document, InputRecord, ReadOptions, Source
from thinwire.data.python_modules import split_module

PYTHON_SOURCE = "python"
MEGABYTE = 1_000_000
MIN_DOCUMENT_BYTES, MAX_FILE_BYTES = 256, MEGABYTE
# Tests and vendored copies repeat other text; "encodings" and "ops" are generated tables.
# Hidden folders, and this package's own metadata: its README would make the corpus change with every version.
SKIPPED_STARTS = (".", "thinwire-")
SKIPPED_FOLDERS = frozenset(
    {
        *("__pycache__", "lib-dynload", "site-packages", "dist-packages", "ensurepip", "pydoc_data", "thinwire"),
        *("test", "tests", "testing", "idle_test"),
        *("_vendor", "vendor", "vendored", "externals", "pip", "setuptools", "pkg_resources"),
        *("encodings", "ops"),
    }
)
LICENCE_NAMES = ("licen", "copying", "copyright", "notice", "authors")
# A file is prose when so many of its first bytes are letters and spaces; tables of numbers are not.
MIN_LETTER_FRACTION, PROSE_SNIFF_BYTES = 0.65, 4096


class Domain(NamedTuple):
    """Where a domain's files lie and how much of them is read."""

    endings: tuple[str, ...]
    max_bytes: int
    max_package_bytes: int


STANDARD_MODULES = Domain((".py",), 10 * MEGABYTE, 10 * MEGABYTE)
PACKAGE_MODULES = Domain((".py",), 14 * MEGABYTE, 4 * MEGABYTE)
PACKAGE_DOCS = Domain((".md", ".rst", ".txt", "METADATA"), 6 * MEGABYTE, 2 * MEGABYTE)
LICENCES = Domain((), 1 * MEGABYTE, MEGABYTE // 4)
C_HEADERS = Domain((".h", ".hpp", ".cuh"), 6 * MEGABYTE, 4 * MEGABYTE)


class InstalledFile(NamedTuple):
    """A file below one of the installation's folders; ``label`` is its path there."""

    path: Path
    label: str
    num_bytes: int

    @property
    def package(self) -> str:
        return self.label.split("/", 1)[0]

    def read(self) -> bytes:
        return self.path.read_bytes()


class PythonSource(Source):
    """The text of the running Python's installation; the domain of a document is also its source."""

    argument = PYTHON_SOURCE

    @cached_property
    def _standard(self) -> list[InstalledFile]:
        return _select(_walk(Path(sysconfig.get_path("stdlib"))), STANDARD_MODULES)

    @cached_property
    def _installed(self) -> list[InstalledFile]:
        return sorted(_walk(Path(sysconfig.get_path("purelib"))), key=lambda file: file.label)

    @cached_property
    def _package_modules(self) -> list[InstalledFile]:
        return _select(self._installed, PACKAGE_MODULES)

    @cached_property
    def _package_docs(self) -> list[InstalledFile]:
        prose = (file for file in self._installed if _is_prose(file) and not _is_licence(file))
        return _select(prose, PACKAGE_DOCS)

    @cached_property
    def _licences(self) -> list[InstalledFile]:
        return _select((file for file in self._installed if _is_licence(file)), LICENCES)

    @cached_property
    def _headers(self) -> list[InstalledFile]:
        own = _walk(Path(sysconfig.get_path("include")))
        return _select([*own, *self._installed], C_HEADERS)

    def _domains(self) -> dict[str, list[InstalledFile]]:
        return {
            "python-source": self._standard,
            "python-docs": self._standard,
            "package-source": self._package_modules,
            "package-reference": self._package_modules,
            "package-docs": self._package_docs,
            "licences": self._licences,
            "c-headers": self._headers,
        }

    def inputs(self) -> list[InputRecord]:
        return [
            InputRecord(_origin(domain), _joint_hash(files), sum(file.num_bytes for file in files))
            for domain, files in self._domains().items()
        ]

    def documents(self, options: ReadOptions) -> Iterator[Document]:  # noqa: ARG002 (there are no fields to name)
        for label, text in _topics():
            yield from _document(text, label, "python-docs")
        yield from _modules(self._standard, code="python-source", documentation="python-docs")
        yield from _modules(self._package_modules, code="package-source", documentation="package-reference")
        for domain in ("package-docs", "licences", "c-headers"):
            for file in self._domains()[domain]:
                yield from _document(_body(file), file.label, domain)


def _origin(domain: str) -> str:
    return f"{PYTHON_SOURCE}:{domain}"


def _document(payload: bytes, label: str, domain: str) -> Iterator[Document]:
    if len(payload) >= MIN_DOCUMENT_BYTES:
        yield Document(payload, f"{_origin(domain)}\n{label}", domain, domain, _origin(domain))


def _topics() -> list[tuple[str, bytes]]:
    """The language reference as ``help()`` shows it, one text a topic; some distributions leave it out."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        return []
    return [(f"topic {name}", text.encode()) for name, text in sorted(topics.items())]


def _modules(files: list[InstalledFile], *, code: str, documentation: str) -> Iterator[Document]:
    for file in files:
        text = file.read().decode("utf-8", "replace").replace("\r\n", "\n")
        name = file.label.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        parts = split_module(text, name=name)
        if parts is not None:
            yield from _document(parts.code.encode(), file.label, code)
            yield from _document(parts.documentation.encode(), file.label, documentation)


def _body(file: InstalledFile) -> bytes:
    """The file's bytes; of a package's METADATA only the description below the header."""
    payload = file.read()
    return payload.partition(b"\n\n")[2] if file.path.name == "METADATA" else payload


def _walk(folder: Path) -> list[InstalledFile]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(SKIPPED_STARTS)
        )
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and MIN_DOCUMENT_BYTES <= path.stat().st_size <= MAX_FILE_BYTES:
                found.append(InstalledFile(path, path.relative_to(folder).as_posix(), path.stat().st_size))
    return found


def _select(files: Iterable[InstalledFile], domain: Domain) -> list[InstalledFile]:
    """Files with the domain's endings up to its limits, drawn by the hash of their labels, in the order of labels."""
    used: defaultdict[str, int] = defaultdict(int)
    chosen = []
    for file in sorted(files, key=lambda file: hashlib.blake2b(file.label.encode("utf-8", "replace")).digest()):
        fits = used[""] + file.num_bytes <= domain.max_bytes
        fits &= used[file.package] + file.num_bytes <= domain.max_package_bytes
        if fits and (not domain.endings or file.path.name.endswith(domain.endings)):
            used[""] += file.num_bytes
            used[file.package] += file.num_bytes
            chosen.append(file)
    return sorted(chosen, key=lambda file: file.label)


def _is_licence(file: InstalledFile) -> bool:
    name = file.path.name.lower()
    return name.startswith(LICENCE_NAMES) and file.path.suffix.lower() in {"", ".txt", ".md", ".rst"}


def _is_prose(file: InstalledFile) -> bool:
    if not file.path.name.endswith(PACKAGE_DOCS.endings):
        return False
    with file.path.open("rb") as handle:
        head = handle.read(PROSE_SNIFF_BYTES)
    return sum(byte == 32 or chr(byte).isalpha() for byte in head) > MIN_LETTER_FRACTION * len(head)


def _joint_hash(files: list[InstalledFile]) -> str:
    """Names and contents of all files, and the version of Python, which parses them and holds the topics."""
    digest = hashlib.sha256(sys.version.encode())
    for file in files:
        digest.update(file.label.encode("utf-8", "replace") + b"\n" + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()
