"""How does text become a folder that can be trained on?  One pass writes the splits, a second screens them.

Everything is written into a sibling folder and renamed at the end, so that the folder is whole or absent.  Memory is
bounded by one document (64 MiB), a small corpus's buffer and the evaluation splits, not by the corpus.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.base.progress import Progress, Silent
from thinwire.config.check import Violations
from thinwire.data.byte_pairs import BytePairTokenizer
from thinwire.data.byte_progress import ByteTask
from thinwire.data.corpus import BIGRAMS, MANIFEST, Split
from thinwire.data.documents import Document, InputRecord, ReadOptions, Source
from thinwire.data.encode import ByteTokenizer, TextTokenizer, Tokenizer, check_tokenizer
from thinwire.data.manifest import SourceTable, build_manifest, inputs_fingerprint
from thinwire.data.output_folder import filled_beside, finished_manifest, only_writer
from thinwire.data.overlap import REPEATED, Candidates, ScreenResult, read_signatures, screen
from thinwire.data.shards import ByteShards, ShardTotals, ShardWriter
from thinwire.data.sources import automatic_piece_bytes, open_sources
from thinwire.data.split_writer import SplitTotals, write_splits
from thinwire.data.token_writer import write_tokens
from thinwire.data.tokenizer_files import files_in, installed_files

COUNT_STEP_BYTES = 1 << 20
MIN_PIECE_BYTES = 16  # more than any UTF-8 character
EVALUATION_SPLITS: tuple[Split, ...] = ("valid", "test")


@dataclass(frozen=True)
class PrepareOptions:
    """How sources become a data folder.

    Attributes:
        seed: decides, with a document's content, which split it belongs to.
        valid_fraction: part of the documents kept for validation, before the screen.
        test_fraction: part of the documents kept for the test, before the screen.
        max_bytes: at most about so many bytes of text; every source may use an equal share of what is left.
        text_field: the field or column that holds the text.
        tokenizer: byte: the byte shards alone; gpt2: GPT-2's tokens beside them.
        tokenizer_files: folder with GPT-2's vocab.json and merges.txt; None looks in the installed packages.
        piece_bytes: where plain files are cut; None chooses (64 MiB, or less for a few plain files).
    """

    seed: int = 1
    valid_fraction: float = 0.01
    test_fraction: float = 0.01
    max_bytes: int | None = None
    text_field: str = "text"
    tokenizer: Tokenizer = "byte"
    tokenizer_files: Path | None = None
    piece_bytes: int | None = None

    def check(self) -> None:
        """Raises ConfigError with every violation."""
        wrong = Violations()
        wrong.within("valid_fraction", self.valid_fraction, 0.0, 0.5)
        wrong.within("test_fraction", self.test_fraction, 0.0, 0.5)
        total = self.valid_fraction + self.test_fraction
        wrong.require("valid_fraction + test_fraction", total, total < 1, "must leave something to train on")
        wrong.require("max_bytes", self.max_bytes, self.max_bytes is None or self.max_bytes >= 1, "must be at least 1")
        enough = self.piece_bytes is None or self.piece_bytes >= MIN_PIECE_BYTES
        wrong.require("piece_bytes", self.piece_bytes, enough, f"must be at least {MIN_PIECE_BYTES}")
        wrong.raise_any(where="prepare")
        check_tokenizer(self.tokenizer)
        if self.tokenizer == "byte" and self.tokenizer_files is not None:
            fix = "add --tokenizer gpt2, or leave --tokenizer-files out"
            raise UserError("bytes need no tokenizer files", where="--tokenizer-files", fix=fix)

    def record(self, tokenizer: TextTokenizer) -> dict[str, Any]:
        """What the folder's contents depend on: every option, and the tokenizer's files by their hashes, not their
        place. For bytes it is what earlier versions wrote."""
        options = asdict(self)
        del options["tokenizer_files"]
        return options | ({"tokenizer_sha256": tokenizer.sha256} if tokenizer.sha256 else {})


@dataclass(frozen=True)
class PrepareSummary:
    """What ``prepare`` made or found.

    Attributes:
        folder: the data folder.
        state: whether it was made now or was there already, from equal inputs.
        manifest: as in ``manifest.json``.
        seconds: wall time.
        corpus_bytes: bytes of all splits.
    """

    folder: Path
    state: Literal["prepared", "reused"]
    manifest: dict[str, Any]
    seconds: float
    corpus_bytes: int


def prepare(
    sources: Sequence[str], *, out: Path, options: PrepareOptions | None = None, progress: Progress | None = None
) -> PrepareSummary:
    """Read sources, split them by document, screen the evaluation splits, and write a data folder.

    Args:
        sources: files, folders, ``hf:NAME[:SUBSET[:SPLIT]]`` or ``python``.
        out: the folder to make; a finished one from equal inputs and options is reused.
        options: defaults when None.
        progress: where to report; None is silent.

    Raises:
        UserError: a source cannot be read, an option is out of range, or ``out`` is in use or cannot be made.
        OSError: the disk is full; nothing is left behind.
    """
    began = time.perf_counter()
    options, progress = options or PrepareOptions(), progress or Silent()
    options.check()
    tokenizer = _tokenizer(options)
    opened = open_sources(sources)
    with only_writer(out):
        inputs = _hashed(opened, progress)
        found = finished_manifest(out, inputs_fingerprint=inputs_fingerprint(inputs, options.record(tokenizer)))
        if found is not None:
            return _summary(out, found, state="reused", began=began)
        with filled_beside(out) as partial:
            manifest = _fill(partial, opened, inputs=inputs, options=options, tokenizer=tokenizer, progress=progress)
    return _summary(out, manifest, state="prepared", began=began)


def _hashed(sources: list[Source], progress: Progress) -> list[InputRecord]:
    task = progress.task("hashing the inputs", len(sources))
    inputs: list[InputRecord] = []
    for source in sources:
        inputs += source.inputs()
        task.advance()
    task.close()
    return inputs


def _summary(
    folder: Path, manifest: dict[str, Any], *, state: Literal["prepared", "reused"], began: float
) -> PrepareSummary:
    corpus_bytes = sum(split["num_bytes"] for split in manifest["splits"].values())
    return PrepareSummary(folder, state, manifest, time.perf_counter() - began, corpus_bytes)


def _tokenizer(options: PrepareOptions) -> TextTokenizer:
    if options.tokenizer == "byte":
        return ByteTokenizer()
    files = installed_files() if options.tokenizer_files is None else files_in(options.tokenizer_files)
    return BytePairTokenizer(files)


def _fill(
    folder: Path,
    sources: list[Source],
    *,
    inputs: list[InputRecord],
    options: PrepareOptions,
    tokenizer: TextTokenizer,
    progress: Progress,
) -> dict[str, Any]:
    table = SourceTable()
    read = ReadOptions(options.text_field, options.piece_bytes or automatic_piece_bytes(sources))
    documents = _reported(_limited(sources, read, options.max_bytes), progress)
    first = write_splits(
        ((document, table.add(document)) for document in documents if document.payload),
        folder=folder,
        seed=options.seed,
        valid_fraction=options.valid_fraction,
        test_fraction=options.test_fraction,
    )
    if not any(totals.num_documents for totals in first.splits.values()):
        raise _nothing_read(sources, read, options.max_bytes)
    result = _screen(folder, first, progress)
    splits: dict[Split, ShardTotals] = {"train": first.splits["train"]}
    for name, kept in zip(EVALUATION_SPLITS, result.kept, strict=True):
        splits[name] = _keep(first.folders[name], kept, folder / name)
    excluded = {
        name: {**counts, REPEATED: counts[REPEATED] + first.repeated.get(name, 0)}
        for name, counts in zip(EVALUATION_SPLITS, result.excluded, strict=True)
    }
    manifest = build_manifest(
        arguments=[source.argument for source in sources],
        inputs=inputs,
        sources=table,
        splits=splits,
        options=options.record(tokenizer),
        screen={"excluded": excluded, "rule": first.rule_name, "piece_bytes": read.piece_bytes},
        tokens=write_tokens(folder, tokenizer=tokenizer, progress=progress),
    )
    shutil.rmtree(first.scratch)
    write_json(folder / MANIFEST, manifest)
    return manifest


def _limited(sources: list[Source], read: ReadOptions, max_bytes: int | None) -> Iterator[Document]:
    """All documents, or of each source in turn an equal share of the bytes that are left."""
    for number, source in enumerate(sources):
        share = None if max_bytes is None else max_bytes // (len(sources) - number)
        for document in source.documents(read):
            if share is not None and max_bytes is not None:
                if len(document.payload) > share:
                    break
                share -= len(document.payload)
                max_bytes -= len(document.payload)
            yield document


def _nothing_read(sources: list[Source], read: ReadOptions, max_bytes: int | None) -> UserError:
    """Why no document was read: there is none, or not even one fits the limit."""
    where = ", ".join(source.argument for source in sources)
    sizes = (len(document.payload) for source in sources for document in source.documents(read) if document.payload)
    first_bytes = None if max_bytes is None else next(sizes, None)
    if first_bytes is None:
        return UserError("the sources hold no text", where=where, fix="give sources with text in them")
    share = "" if len(sources) == 1 else f" (each of {len(sources)} sources gets an equal share)"
    what = f"--max-bytes {max_bytes}{share} is less than the first document, which has {first_bytes} bytes"
    return UserError(
        what, where=where, fix="raise --max-bytes, or cut plain files into shorter ones with --piece-bytes"
    )


def _reported(documents: Iterator[Document], progress: Progress) -> Iterator[Document]:
    task = ByteTask(progress, "reading", num_bytes=None)
    for document in documents:
        task.advance(len(document.payload))
        yield document
    task.close()


def _screen(folder: Path, first: SplitTotals, progress: Progress) -> ScreenResult:
    """Screen the evaluation splits; the same pass over the training stream counts its byte bigrams."""
    train = first.splits["train"]
    task = ByteTask(progress, "screening for overlap", num_bytes=train.num_bytes)
    counts, previous = np.zeros(65536, np.int64), None

    def count(chunk: np.ndarray) -> None:
        nonlocal previous
        for start in range(0, len(chunk) - 1, COUNT_STEP_BYTES):
            part = chunk[start : start + COUNT_STEP_BYTES + 1].astype(np.uint16)
            counts[:] += np.bincount((part[:-1] << np.uint16(8)) | part[1:], minlength=65536)
        if previous is not None:
            counts[previous * 256 + int(chunk[0])] += 1
        previous = int(chunk[-1])
        task.advance(len(chunk))

    candidates = tuple(
        Candidates(ByteShards.open(first.folders[name]), read_signatures(first.signatures[name]))
        for name in EVALUATION_SPLITS
    )
    result = screen(
        candidates, train_folder=folder / "train", train_signatures=first.signatures["train"], on_chunk=count
    )
    task.close()
    (folder / BIGRAMS).write_bytes(counts.astype(np.uint64).tobytes())
    return result


def _keep(candidates: Path, kept: np.ndarray, folder: Path) -> ShardTotals:
    shards = ByteShards.open(candidates)
    with ShardWriter(folder) as writer:
        for index in kept:
            writer.add(shards.document(int(index)), source=int(shards.sources[index]))
    return writer.close()
