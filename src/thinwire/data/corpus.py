"""What does a prepared folder hold?  Three splits, their manifest and the byte-bigram counts of the training split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import UInt64

from thinwire.base.errors import UserError
from thinwire.base.files import read_json
from thinwire.data.shards import ByteShards

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
MANIFEST = "manifest.json"
BIGRAMS = "bigrams.bin"
TOKENIZER_FOLDER = "tokenizer"
FORMAT = "thinwire-bytes-1"


@dataclass(frozen=True)
class Corpus:
    """A prepared folder, memory-mapped.

    Attributes:
        folder: where it lies.
        train, valid, test: the splits.
        manifest: the parsed manifest.
        fingerprint: SHA-256 that identifies the contents (it depends on the shards' bytes, not on paths or times).
        bigrams: uint64 [256, 256], counts over the training stream; row is the previous byte, column the next.
    """

    folder: Path
    train: ByteShards
    valid: ByteShards
    test: ByteShards
    manifest: dict[str, Any]
    fingerprint: str
    bigrams: UInt64[np.ndarray, "256 256"]

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        """Open a folder that ``prepare`` made.

        Raises:
            UserError: not a prepared folder, or damaged (sizes disagree with the manifest).
        """
        manifest = read_manifest(folder)
        splits = {name: ByteShards.open(folder / name) for name in SPLITS}
        for name, shards in splits.items():
            entry = manifest["splits"][name]
            found = (shards.num_documents, shards.num_bytes)
            if found != (entry["num_documents"], entry["num_bytes"]):
                raise _damaged(folder / name, f"{found[0]} documents, {found[1]} bytes; the manifest says otherwise")
        path = folder / BIGRAMS
        if not path.is_file() or path.stat().st_size != 256 * 256 * 8:
            raise _damaged(path, "the bigram counts are missing or cut short")
        bigrams = np.fromfile(path, np.uint64).reshape(256, 256)
        return cls(folder=folder, **splits, manifest=manifest, fingerprint=manifest["fingerprint"], bigrams=bigrams)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Raises UserError where the folder was not made by ``prepare``, or by another version's format."""
    fix = "make it with: thinwire prepare SOURCE... --out FOLDER"
    if not folder.is_dir():
        raise UserError("there is no such data folder", where=str(folder), fix=fix)
    if not (folder / MANIFEST).is_file():
        raise UserError("this is not a prepared data folder (it has no manifest.json)", where=str(folder), fix=fix)
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise UserError(f"the folder's format is {found!r}, this version reads {FORMAT!r}", where=str(folder), fix=fix)
    missing = [key for key in ("splits", "sources", "fingerprint") if key not in manifest]
    if missing or any(name not in manifest["splits"] for name in SPLITS):
        raise _damaged(folder / MANIFEST, "entries are missing from the manifest")
    return manifest


def _damaged(path: Path, reason: str) -> UserError:
    fix = "prepare the data again: thinwire prepare SOURCE... --out FOLDER"
    return UserError(f"a prepared data folder is damaged ({reason})", where=str(path), fix=fix)
