"""How do documents reach their splits in one pass?  Small corpora are held back and ranked; others stream."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from thinwire.data.corpus import SPLITS, Split
from thinwire.data.documents import Document
from thinwire.data.overlap import SignatureWriter, signature
from thinwire.data.shards import ShardTotals, ShardWriter
from thinwire.data.splits import (
    SMALL_CORPUS_BYTES,
    SMALL_CORPUS_DOCUMENTS,
    content_address,
    fraction_rule,
    rank_rule,
)

SCRATCH = "scratch"


class SplitTotals(NamedTuple):
    """What the first pass wrote.

    Attributes:
        splits: counts; validation and test are candidates, not yet screened.
        folders: each split's shards.
        signatures: each split's file of signatures.
        scratch: the folder that holds what is not kept.
        rule_name: ``fraction`` or ``rank``.
        repeated: copies of an evaluation document that were left out.
    """

    splits: dict[Split, ShardTotals]
    folders: dict[Split, Path]
    signatures: dict[Split, Path]
    scratch: Path
    rule_name: str
    repeated: dict[Split, int]


def write_splits(
    numbered: Iterable[tuple[Document, int]], *, folder: Path, seed: int, valid_fraction: float, test_fraction: float
) -> SplitTotals:
    """Write every document to the split that its content says.

    Args:
        numbered: documents with the number of their source.
        folder: training shards go to ``folder/train``, the rest to ``folder/scratch``.
        seed: of the split.
        valid_fraction, test_fraction: of the documents.
    """
    scratch = folder / SCRATCH
    folders: dict[Split, Path] = {"train": folder / "train", "valid": scratch / "valid", "test": scratch / "test"}
    signatures: dict[Split, Path] = {name: scratch / f"{name}-signatures.bin" for name in SPLITS}
    scratch.mkdir()
    stream = iter(numbered)
    held, is_whole = _hold_back(stream)
    rule = fraction_rule(valid_fraction=valid_fraction, test_fraction=test_fraction)
    if is_whole:
        addresses = [content_address(document.payload, seed=seed) for document, _ in held]
        rule = rank_rule(addresses, valid_fraction=valid_fraction, test_fraction=test_fraction)
    repeated: Counter[Split] = Counter()
    seen: set[int] = set()
    with ExitStack() as stack:
        writers = {name: stack.enter_context(ShardWriter(path)) for name, path in folders.items()}
        signers = {name: SignatureWriter(path) for name, path in signatures.items()}
        for signer in signers.values():
            stack.callback(signer.close)
        for document, source in _drained(held, stream):
            address = content_address(document.payload, seed=seed)
            split = rule.split(address)
            # Copies of one evaluation document are left out here, so that a text that repeats itself stays small.
            if split != "train" and address in seen:
                repeated[split] += 1
                continue
            if split != "train":
                seen.add(address)
            writers[split].add(document.payload, source=source)
            signers[split].add(signature(document))
    totals = {name: writer.close() for name, writer in writers.items()}
    return SplitTotals(totals, folders, signatures, scratch, "rank" if is_whole else "fraction", dict(repeated))


def _hold_back(stream: Iterator[tuple[Document, int]]) -> tuple[list[tuple[Document, int]], bool]:
    """The first documents, and whether they are all there are."""
    held, num_bytes = [], 0
    for entry in stream:
        held.append(entry)
        num_bytes += len(entry[0].payload)
        if len(held) > SMALL_CORPUS_DOCUMENTS or num_bytes > SMALL_CORPUS_BYTES:
            return held, False
    return held, True


def _drained(
    held: list[tuple[Document, int]], stream: Iterator[tuple[Document, int]]
) -> Iterator[tuple[Document, int]]:
    """The documents held back, each released as it is given, then the rest."""
    held.reverse()
    while held:
        yield held.pop()
    yield from stream
