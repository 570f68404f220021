"""How is a data set on the Hugging Face Hub read, and is it the one that is meant?  Streaming, at a pinned revision."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Literal, NamedTuple

from thinwire.base.errors import UserError, missing_extra
from thinwire.base.files import sha256_text
from thinwire.data.documents import Document, InputRecord, ReadOptions, Source
from thinwire.data.json_lines import record_document, text_bytes
from thinwire.data.protocols import HEADING_ROW

HUGGING_FACE_PREFIX = "hf:"
WIKITEXT = "Salesforce/wikitext"
FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
# Short names for the paper's corpora: "fineweb-edu" (Table 1, appendix L) and "wikitext-103" (appendix L.1).
NAMED: dict[str, tuple[str, str]] = {
    "fineweb-edu": (FINEWEB_EDU, "sample-100BT"),
    "wikitext-103": (WIKITEXT, "wikitext-103-raw-v1"),
}
# Appendix L.1 names WikiText's revision.
# choice: the paper names none for FineWeb-Edu; this is the commit that "main" pointed to when this was written. Of any
# other data set "main" is resolved when it is read, and the manifest keeps its commit.
PINNED_REVISIONS: dict[str, str] = {
    WIKITEXT: "b08601e04326c79dfdd32d625aee71d232d685c3",
    FINEWEB_EDU: "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
}
# SHA-256 of the raw files; validation and test are the same text in WikiText-2 and WikiText-103.
WIKITEXT_SHA256: dict[str, str] = {
    "validation": "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7",
    "test": "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
}
# The Hub's rows hold "" where the raw file has this line.
WIKITEXT_BLANK_ROW = " \n"
WikitextSplit = Literal["validation", "test"]


class HubName(NamedTuple):
    """``hf:NAME[:SUBSET[:SPLIT]]``, with the short names written out."""

    name: str
    subset: str | None
    split: str


def parse_hub_name(argument: str) -> HubName:
    """Raises UserError where the name has an empty or a fourth part."""
    parts = argument.removeprefix(HUGGING_FACE_PREFIX).split(":")
    if not 1 <= len(parts) <= 3 or not all(parts):
        fix = "write hf:NAME, hf:NAME:SUBSET or hf:NAME:SUBSET:SPLIT, e.g. hf:HuggingFaceFW/fineweb-edu:sample-100BT"
        raise UserError("not a name of a data set", where=argument, fix=fix)
    if parts[0] in NAMED:
        name, subset = NAMED[parts[0]]
        return HubName(name, subset, parts[1] if len(parts) == 2 else "train")
    return HubName(parts[0], parts[1] if len(parts) > 1 else None, parts[2] if len(parts) > 2 else "train")


class HuggingFaceSource(Source):
    """One split of one data set; WikiText comes as its articles (train) or as one raw text (validation, test)."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self.hub = parse_hub_name(argument)
        _datasets()

    @cached_property
    def revision(self) -> str:
        """The commit: pinned where it is known, else what "main" is now."""
        return PINNED_REVISIONS.get(self.hub.name) or _resolve_main(self.hub.name)

    @property
    def origin(self) -> str:
        subset = f":{self.hub.subset}" if self.hub.subset else ""
        return f"{HUGGING_FACE_PREFIX}{self.hub.name}{subset}:{self.hub.split}@{self.revision}"

    def inputs(self) -> list[InputRecord]:
        return [InputRecord(self.origin, sha256_text(self.origin), 0)]

    def documents(self, options: ReadOptions) -> Iterator[Document]:
        rows = _stream(self.hub, self.revision)
        if self.hub.name == WIKITEXT:
            yield from self._wikitext(row["text"] for row in rows)
            return
        name = self.hub.name.rsplit("/", 1)[-1]
        for number, row in enumerate(rows, start=1):
            text = row.get(options.text_field)
            if not isinstance(text, str):
                fix = f"name the column with --text-field (columns here: {', '.join(row)})"
                where = f"{self.origin}, row {number}"
                raise UserError(f"a row has no text in column '{options.text_field}'", where=where, fix=fix)
            record = {**row, "source": name, "domain": row.get("domain") or name}
            place = f"row {number}"
            yield record_document(record, text_bytes(text), name=name, origin=self.origin, fallback_id=place)

    def _wikitext(self, rows: Iterable[str]) -> Iterator[Document]:
        if self.hub.split in WIKITEXT_SHA256:
            texts: Iterable[bytes] = [rebuild_wikitext(rows, split=self.hub.split)]  # type: ignore[arg-type]
        else:
            texts = wikitext_articles(rows)
        for number, text in enumerate(texts):
            yield Document(text, f"{self.origin}\n{number}", "wikitext", "encyclopedia", self.origin)


def rebuild_wikitext(rows: Iterable[str], *, split: WikitextSplit) -> bytes:
    """The raw file's bytes from the Hub's rows.

    Raises:
        UserError: the bytes are not the official ones.
    """
    raw = "".join(row or WIKITEXT_BLANK_ROW for row in rows).encode()
    if hashlib.sha256(raw).hexdigest() != WIKITEXT_SHA256[split]:
        fix = "score the official file wiki.{valid,test}.raw instead"
        raise UserError(f"WikiText's {split} split differs from the official text", where=WIKITEXT, fix=fix)
    return raw


def wikitext_articles(rows: Iterable[str]) -> Iterator[bytes]:
    """The training split's articles, cut before top-level headings, one at a time."""
    article: list[bytes] = []
    for row in itertools.chain(rows, [None]):
        line = b"" if row is None else (row or WIKITEXT_BLANK_ROW).encode()
        if article and (row is None or HEADING_ROW.match(line)):
            yield b"".join(article)
            article = []
        article.append(line)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise missing_extra("datasets", extra="hf", needed_for="reading hf: sources") from error
    return datasets


def _stream(hub: HubName, revision: str) -> Iterator[dict[str, Any]]:
    try:
        rows = _datasets().load_dataset(hub.name, hub.subset, split=hub.split, streaming=True, revision=revision)
        yield from rows
    except (OSError, ValueError) as error:
        raise _unreachable(hub.name, error) from error


def _resolve_main(name: str) -> str:
    import huggingface_hub

    try:
        return str(huggingface_hub.HfApi().dataset_info(name, revision="main").sha)
    except (OSError, ValueError) as error:
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    fix = "check the network and the spelling of NAME, SUBSET and SPLIT; files on this machine need no network"
    return UserError("a data set on the Hugging Face Hub cannot be read", where=f"{name}: {reason}", fix=fix)
