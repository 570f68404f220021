"""How do a split's tokens lie on disk?  One flat file of 16-bit numbers, and where each document starts in it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thinwire.base.progress import Progress
from thinwire.data.byte_pairs import BytePairTokenizer
from thinwire.data.byte_progress import ByteTask
from thinwire.data.corpus import SPLITS, TOKENIZER_FOLDER
from thinwire.data.encode import TextTokenizer
from thinwire.data.shards import ByteShards, HashedFile

TOKENS, TOKEN_STARTS = "tokens.bin", "token_starts.bin"


class TokenTotals(NamedTuple):
    """What was written; ``files`` maps a file's name to its SHA-256."""

    num_tokens: int
    files: dict[str, str]


def write_tokens(folder: Path, *, tokenizer: TextTokenizer, progress: Progress) -> dict[str, Any] | None:
    """Write every split's tokens beside its byte shards, and the tokenizer's files into the data folder.

    Returns:
        What the manifest says of them; None for bytes, which are their own tokens.
    """
    if not isinstance(tokenizer, BytePairTokenizer):
        return None
    tokenizer.save(folder / TOKENIZER_FOLDER)
    splits = {
        name: write_split_tokens(ByteShards.open(folder / name), tokenizer=tokenizer, progress=progress)._asdict()
        for name in SPLITS
    }
    return {
        "name": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "end_token": tokenizer.end_token,
        "sha256": tokenizer.sha256,
        "splits": splits,
    }


def write_split_tokens(shards: ByteShards, *, tokenizer: BytePairTokenizer, progress: Progress) -> TokenTotals:
    """One split; its documents are read one by one."""
    files = {name: HashedFile(shards.folder / name) for name in (TOKENS, TOKEN_STARTS)}
    task = ByteTask(progress, f"tokens of {shards.folder.name}", num_bytes=shards.num_bytes)
    num_tokens, next_start = 0, 0
    for batch in tokenizer.encode_documents(shards.document(index) for index in range(shards.num_documents)):
        files[TOKENS].write(batch.tokens.tobytes())
        starts = np.append(next_start, num_tokens + batch.ends + 1)  # of the documents that end here, and of the next
        files[TOKEN_STARTS].write(starts[:-1].astype(np.int64).tobytes())
        next_start = int(starts[-1])
        num_tokens += len(batch.tokens)
        task.advance(int(tokenizer.token_bytes[batch.tokens].sum()))
    task.close()
    return TokenTotals(num_tokens, {name: file.close() for name, file in files.items()})
