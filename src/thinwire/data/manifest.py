"""What does a prepared folder say about itself?  Inputs with hashes, sources with counts, splits, screen, versions."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from thinwire.base.files import canonical_json, sha256_text
from thinwire.data.corpus import FORMAT, Split
from thinwire.data.documents import Document, InputRecord
from thinwire.data.shards import ShardTotals

MAX_SOURCES = 4096
MAX_DOMAINS = 64
OTHERS = "(others)"
RECORDED_PACKAGES = ("thinwire", "numpy", "zstandard")


@dataclass
class _SourceCounts:
    documents: int = 0
    num_bytes: int = 0
    domains: Counter[str] = field(default_factory=Counter)
    origins: dict[str, None] = field(default_factory=dict)


class SourceTable:
    """Numbers the sources as their documents arrive and counts them.

    choice: past 4,096 sources, and past 64 domains in one source, further names are counted together as "(others)", so
    that a field with a value of its own in every record does not grow the manifest without bound.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _SourceCounts] = {}
        self._numbers: dict[str, int] = {}

    def add(self, document: Document) -> int:
        """Count one document; returns the number of its source."""
        name = document.source
        if name not in self._counts and len(self._counts) >= MAX_SOURCES:
            name = OTHERS
        counts = self._counts.setdefault(name, _SourceCounts())
        number = self._numbers.setdefault(name, len(self._numbers))
        counts.documents += 1
        counts.num_bytes += len(document.payload)
        known = document.domain in counts.domains or len(counts.domains) < MAX_DOMAINS
        counts.domains[document.domain if known else OTHERS] += 1
        counts.origins.setdefault(document.origin)
        return number

    def records(self, inputs: list[InputRecord]) -> list[dict[str, Any]]:
        """One entry a source, in the order of their numbers; a source of several files has the hash of their hashes."""
        hashes = {record.path: record.sha256 for record in inputs}
        return [
            {
                "name": name,
                "path": next(iter(counts.origins)),
                "num_files": len(counts.origins),
                "sha256": _joint_hash([hashes[origin] for origin in counts.origins]),
                "documents": counts.documents,
                "bytes": counts.num_bytes,
                "domains": dict(sorted(counts.domains.items())),
            }
            for name, counts in self._counts.items()
        ]


def _joint_hash(hashes: list[str]) -> str:
    return hashes[0] if len(hashes) == 1 else sha256_text("\n".join(hashes))


def inputs_fingerprint(inputs: list[InputRecord], options: dict[str, Any]) -> str:
    """Identifies what a folder would be made from; where the files lie does not count, their names (groups) do."""
    listed = [[record.path.rsplit("/", 1)[-1], record.sha256] for record in inputs]
    return sha256_text(canonical_json([FORMAT, listed, options]))


def contents_fingerprint(splits: dict[Split, ShardTotals], tokens: dict[str, Any] | None) -> str:
    """Identifies the prepared bytes, and the tokens where there are any."""
    files = {name: totals.files for name, totals in splits.items()}
    return sha256_text(canonical_json([FORMAT, files] if tokens is None else [FORMAT, files, tokens]))


def build_manifest(
    *,
    arguments: list[str],
    inputs: list[InputRecord],
    sources: SourceTable,
    splits: dict[Split, ShardTotals],
    options: dict[str, Any],
    screen: dict[str, Any],
    tokens: dict[str, Any] | None,
) -> dict[str, Any]:
    """Everything that ``manifest.json`` holds; ``tokenizer`` alone where there are ``tokens`` beside the bytes."""
    manifest = {
        "format": FORMAT,
        "fingerprint": contents_fingerprint(splits, tokens),
        "inputs_fingerprint": inputs_fingerprint(inputs, options),
        "arguments": arguments,
        "inputs": [record._asdict() for record in inputs],
        "sources": sources.records(inputs),
        "splits": {name: totals._asdict() for name, totals in splits.items()},
        "options": options,
        "screen": screen,
        "versions": {"python": sys.version.split()[0], **{name: version(name) for name in RECORDED_PACKAGES}},
    }
    return manifest if tokens is None else manifest | {"tokenizer": tokens}
