"""Which tokens does a context-parallel step, or an evaluation, see?  Sequences of a split's stream, chosen by address,
so that a draw can be repeated alone and a resumed run sees what an uninterrupted one would (section 5.1).
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from thinwire.base.errors import UserError
from thinwire.base.seeds import StreamKey, draw_below, draw_words
from thinwire.data.byte_pairs import BytePairTokenizer
from thinwire.data.corpus import TOKENIZER_FOLDER, Corpus, Split
from thinwire.data.encode import BYTE_SYMBOLS, ByteTokenizer, TextTokenizer, Tokenizer
from thinwire.data.shards import ByteShards, mapped
from thinwire.data.token_writer import TOKEN_STARTS, TOKENS
from thinwire.data.tokenizer_files import files_in

Cut = Literal["inside documents", "consecutive"]
# choice: with fewer documents than this a bootstrap over documents says little.
WANTED_DOCUMENTS = 16


class TokenStream(ABC):
    """One split as tokens, memory-mapped; every document is followed by one end token.

    Attributes:
        vocab_size: tokens there are.
        num_tokens: length of the stream, ends of documents included.
        document_starts: int64 [documents], offset of each document's first token.
        document_lengths: int64 [documents], tokens of each document, its end excluded.
        token_bytes: int64 [vocab_size], text bytes that each token stands for.  choice: the end of a document counts
            as its one byte of the byte stream, so that losses per byte have one denominator whatever the tokenizer.
        where: the split's folder, for messages.
    """

    vocab_size: int
    num_tokens: int
    document_starts: Int64[np.ndarray, " documents"]
    document_lengths: Int64[np.ndarray, " documents"]
    token_bytes: Int64[np.ndarray, " vocab"]
    where: str

    @abstractmethod
    def gather(self, starts: Int64[np.ndarray, " n"], *, length: int) -> Int64[np.ndarray, "n length"]:
        """Copy sequences out of the stream.

        Args:
            starts: offsets, each with ``length`` tokens behind it.
            length: tokens of every sequence.

        Raises:
            IndexError: a sequence leaves the stream.
        """

    def num_text_bytes(self, tokens: Int64[np.ndarray, "..."]) -> int:
        """Bytes of text that these (target) tokens cover: the denominator of a loss per byte."""
        return int(self.token_bytes[tokens].sum())


class ByteStream(TokenStream):
    """The bytes themselves."""

    def __init__(self, shards: ByteShards) -> None:
        self._shards = shards
        self.vocab_size, self.num_tokens = BYTE_SYMBOLS, shards.num_bytes
        self.document_starts, self.document_lengths = shards.starts, shards.lengths
        self.token_bytes = np.ones(BYTE_SYMBOLS, np.int64)
        self.where = str(shards.folder)

    def gather(self, starts: Int64[np.ndarray, " n"], *, length: int) -> Int64[np.ndarray, "n length"]:
        return self._shards.gather(starts, length=length).astype(np.int64)


class TokenFile(TokenStream):
    """Tokens that ``prepare`` wrote.

    Args:
        folder: the split's.
        num_tokens, num_documents: what the manifest says; files that disagree are refused.
        token_bytes: int64 [vocab_size].

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(
        self, folder: Path, *, num_tokens: int, num_documents: int, token_bytes: Int64[np.ndarray, " vocab"]
    ) -> None:
        for name in (TOKENS, TOKEN_STARTS):
            if not (folder / name).is_file():
                raise _damaged(folder / name, "it is missing")
        self._tokens = mapped(folder / TOKENS, np.uint16)
        self.document_starts = mapped(folder / TOKEN_STARTS, np.int64)
        if (self._tokens.size, self.document_starts.size) != (num_tokens, num_documents):
            raise _damaged(folder, "its tokens are not as many as the manifest says")
        self.num_tokens, self.vocab_size, self.token_bytes = num_tokens, len(token_bytes), token_bytes
        self.document_lengths = np.diff(self.document_starts, append=num_tokens) - 1
        self.where = str(folder)

    def gather(self, starts: Int64[np.ndarray, " n"], *, length: int) -> Int64[np.ndarray, "n length"]:
        if starts.size and (starts.min() < 0 or starts.max() + length > self.num_tokens):
            raise IndexError(f"a sequence of {length} tokens leaves the stream of {self.num_tokens} tokens")
        return self._tokens[starts[:, None] + np.arange(length)].astype(np.int64)


class EvaluationSequences(NamedTuple):
    """Sequences to score; each carries one token more than the model reads.

    Attributes:
        sequences: int64 [n, tokens + 1]; the model reads all but the last.
        documents: int64 [n], the document of each sequence's first token (the groups of the document bootstrap).
        cut: whether sequences stay inside documents, or are consecutive pieces of the stream.
    """

    sequences: Int64[np.ndarray, "n tokens"]
    documents: Int64[np.ndarray, " n"]
    cut: Cut


def open_tokens(corpus: Corpus, split: Split) -> TokenStream:
    """A split of a data folder as the tokens it was prepared with.

    Raises:
        UserError: the token files are missing or damaged.
    """
    shards = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[split]
    tokenizer = tokenizer_of(corpus)
    if tokenizer.name == "byte":
        return ByteStream(shards)
    totals = corpus.manifest["tokenizer"]["splits"][split]
    return TokenFile(
        shards.folder,
        num_tokens=totals["num_tokens"],
        num_documents=shards.num_documents,
        token_bytes=tokenizer.token_bytes,
    )


def tokenizer_of(corpus: Corpus) -> TextTokenizer:
    """What a data folder was prepared with.

    Raises:
        UserError: its tokenizer files are missing, or not those it was prepared with.
    """
    record = corpus.manifest.get("tokenizer", {"name": "byte"})
    tokenizer = open_tokenizer(record["name"], folder=corpus.folder / TOKENIZER_FOLDER)
    if isinstance(tokenizer, BytePairTokenizer) and tokenizer.sha256 != record["sha256"]:
        raise _damaged(corpus.folder / TOKENIZER_FOLDER, "its files are not those that the manifest names")
    return tokenizer


def open_tokenizer(name: Tokenizer, *, folder: Path) -> TextTokenizer:
    """A tokenizer that was saved in a data or run folder.

    Args:
        name: what it is.
        folder: where ``TextTokenizer.save`` put its files; bytes have none.

    Raises:
        UserError: a file is missing or damaged.
    """
    return ByteTokenizer() if name == "byte" else BytePairTokenizer(files_in(folder))


def draw_sequences(
    stream: TokenStream, *, key: StreamKey, step: int, count: int, tokens: int
) -> Int64[np.ndarray, "count length"]:
    """The sequences of one training step; a pure function of the address (key, step).

    choice: starts are uniform over the stream, with replacement, and a sequence may span documents; the paper does not
    say how it samples.  Sequence i does not depend on ``count``.

    Args:
        stream: the training split.
        key: the stream of draws, ``stream_key(seed, purpose)``.
        step: the address of the step.
        count: sequences to draw.
        tokens: tokens that the model reads.

    Returns:
        int64 [count, tokens + 1].

    Raises:
        UserError: the stream is shorter than one sequence.
    """
    _require_length(stream, tokens)
    starts = draw_below(key, np.full(count, stream.num_tokens - tokens, np.int64), c2=step)
    return stream.gather(starts, length=tokens + 1)


def evaluation_sequences(
    stream: TokenStream, *, tokens: int, max_sequences: int, key: StreamKey
) -> EvaluationSequences:
    """Held-out sequences: one inside each document that is long enough, or else consecutive pieces of the stream.

    choice: sequences stay inside documents where at least 16 documents (or ``max_sequences``, if fewer) are long
    enough.  Which documents or pieces are taken where there are more than ``max_sequences``, and the place inside a
    document, are drawn by address; rows come in the stream's order.

    Raises:
        UserError: the stream is shorter than one sequence.
    """
    _require_length(stream, tokens)
    long_enough = np.flatnonzero(stream.document_lengths > tokens)
    if long_enough.size >= min(WANTED_DOCUMENTS, max_sequences):
        chosen = _some(long_enough, max_sequences, key)
        lengths = np.asarray(stream.document_lengths[chosen], np.int64)
        starts = np.asarray(stream.document_starts[chosen], np.int64) + draw_below(key, lengths - tokens)
        return EvaluationSequences(stream.gather(starts, length=tokens + 1), chosen, "inside documents")
    starts = _some(np.arange((stream.num_tokens - 1) // tokens), max_sequences, key) * tokens
    documents = np.searchsorted(stream.document_starts, starts, side="right") - 1
    return EvaluationSequences(stream.gather(starts, length=tokens + 1), documents, "consecutive")


def _some(candidates: Int64[np.ndarray, " n"], count: int, key: StreamKey) -> Int64[np.ndarray, " m"]:
    """At most ``count`` of them, chosen by address, in order."""
    if candidates.size <= count:
        return candidates
    rank = draw_words(key, candidates.size, c1=1)
    return np.sort(candidates[np.argsort(rank, kind="stable")[:count]])


def _require_length(stream: TokenStream, tokens: int) -> None:
    if stream.num_tokens <= tokens:
        what = f"the split holds {stream.num_tokens} tokens, fewer than one sequence of {tokens + 1}"
        fix = "prepare more text, raise --valid-fraction and --test-fraction, or use shorter sequences"
        raise UserError(what, where=stream.where, fix=fix)


def _damaged(path: Path, reason: str) -> UserError:
    fix = "prepare the data again: thinwire prepare SOURCE... --out FOLDER --tokenizer gpt2"
    return UserError(f"the tokens of a data folder are damaged ({reason})", where=str(path), fix=fix)
