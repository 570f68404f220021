"""How does text become GPT-2's tokens?  Byte-level byte pairs (Radford et al., 2019), by the ``tokenizers`` library.

The library takes valid Unicode alone.  choice: bytes that are not UTF-8 become one token each (the vocabulary has all
256), and the text between them is encoded as always, so that decoding gives back any bytes exactly.
choice: text that spells ``<|endoftext|>`` is ordinary text; only the stream ends documents.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt16

from thinwire.base.errors import UserError
from thinwire.base.files import atomic_write, read_json, sha256_file
from thinwire.data.encode import TextTokenizer, Tokenizer
from thinwire.data.shards import DOCUMENT_END
from thinwire.data.tokenizer_files import HOW_TO_GET, MERGES, VOCABULARY, TokenizerFiles

END_OF_TEXT = "<|endoftext|>"
MAX_VOCABULARY = 65536
BATCH_CHARACTERS = 1 << 20
PIECE_CHARACTERS = 1 << 16
# choice: a text without a space or line end for so long is cut there, so that memory stays bounded.
MAX_PIECE_CHARACTERS = 1 << 20
# The pattern that parts words never joins white space to what stands before it, so a cut here changes no token.
BOUNDARY = re.compile(r"\S(?=[ \n])")
NOT_UTF8 = re.compile("([\udc80-\udcff]+)")


class EncodedBatch(NamedTuple):
    """Part of a stream of documents.

    Attributes:
        tokens: uint16 [n], end tokens included.
        ends: int64 [documents that end here], their places in ``tokens``.
    """

    tokens: UInt16[np.ndarray, " n"]
    ends: Int64[np.ndarray, " documents"]


class BytePairTokenizer(TextTokenizer):
    """GPT-2's tokenizer, or another of its kind with at most 65,536 tokens.

    Args:
        files: the vocabulary and the merges.

    Raises:
        UserError: a file is damaged, or the two do not belong together.
    """

    name: Tokenizer = "gpt2"

    def __init__(self, files: TokenizerFiles) -> None:
        vocabulary = _read_vocabulary(files.vocabulary)
        self._library = _library_tokenizer(files, vocabulary)
        self._files = files
        self.vocab_size, self.end_token = len(vocabulary), vocabulary[END_OF_TEXT]
        self._texts = _token_texts(vocabulary)
        self._byte_tokens = np.array([vocabulary[symbol] for symbol in byte_symbols()], np.uint16)
        self.token_bytes = np.array([len(text) for text in self._texts], np.int64)
        self.sha256 = {VOCABULARY: sha256_file(files.vocabulary), MERGES: sha256_file(files.merges)}

    def encode(self, text: bytes | str) -> Int64[np.ndarray, " tokens"]:
        payload = text.encode() if isinstance(text, str) else text
        batches = [batch.tokens for batch in self.encode_documents([payload])]
        return np.concatenate(batches)[:-1].astype(np.int64)

    def decode(self, tokens: Int64[np.ndarray, " tokens"]) -> bytes:
        if tokens.size and (tokens.min() < 0 or tokens.max() >= self.vocab_size):
            raise IndexError(f"tokens lie in 0..{self.vocab_size - 1}")
        return b"".join([self._texts[token] for token in tokens.tolist()])

    def save(self, folder: Path) -> None:
        atomic_write(folder / VOCABULARY, self._files.vocabulary.read_bytes())
        atomic_write(folder / MERGES, self._files.merges.read_bytes())

    def encode_documents(self, payloads: Iterable[bytes]) -> Iterator[EncodedBatch]:
        """The stream of these documents, an end token after each, in batches that the library's threads share; memory
        is bounded by a batch and the longest document."""
        waiting: list[str | bytes | None] = []
        num_characters = 0
        for payload in payloads:
            for part in chain(_parts(payload), [None]):
                waiting.append(part)
                num_characters += 1 if part is None else len(part)
                if num_characters >= BATCH_CHARACTERS:
                    yield self._encode_batch(waiting)
                    waiting, num_characters = [], 0
        if waiting:
            yield self._encode_batch(waiting)

    def _encode_batch(self, parts: list[str | bytes | None]) -> EncodedBatch:
        """Text, bytes that are not UTF-8, and ends of documents (None), in order."""
        texts = [part for part in parts if isinstance(part, str)]
        encodings = iter(self._library.encode_batch_fast(texts, add_special_tokens=False))
        pieces: list[np.ndarray] = []
        ends, length = [], 0
        for part in parts:
            if part is None:
                ends.append(length)
                pieces.append(np.array([self.end_token], np.uint16))
            elif isinstance(part, str):
                pieces.append(np.asarray(next(encodings).ids, np.uint16))
            else:
                pieces.append(self._byte_tokens[np.frombuffer(part, np.uint8)])
            length += len(pieces[-1])
        return EncodedBatch(np.concatenate(pieces), np.array(ends, np.int64))


def _parts(payload: bytes) -> Iterator[str | bytes]:
    """A document as pieces of text, and as bytes where it is not UTF-8."""
    text = payload.decode("utf-8", "surrogateescape")
    for number, run in enumerate(NOT_UTF8.split(text)):
        if number % 2:
            yield run.encode("utf-8", "surrogateescape")
        elif run:
            yield from _pieces(run)


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of about 64K characters, cut where no token is."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        limit = start + MAX_PIECE_CHARACTERS
        found = BOUNDARY.search(text, start + PIECE_CHARACTERS, limit)
        end = found.end() if found else limit
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte: itself where it has one, else one from 256 upwards."""
    shown = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary = read_json(path)
    numbers: list[Any] = list(vocabulary.values()) if isinstance(vocabulary, dict) else [None]
    if not all(type(number) is int for number in numbers) or sorted(numbers) != list(range(len(numbers))):
        raise _damaged(path, "it is not an object from token to number, 0, 1, 2 ...")
    if not {*byte_symbols(), END_OF_TEXT} <= vocabulary.keys():
        raise _damaged(path, f"it lacks one of the 256 bytes or {END_OF_TEXT}")
    foreign = sorted(set().union(*vocabulary) - {*byte_symbols()})
    if foreign:
        raise _damaged(path, f"{foreign[0]!r} stands for no byte")
    if len(vocabulary) > MAX_VOCABULARY:
        raise _damaged(path, f"it has {len(vocabulary)} tokens, more than {MAX_VOCABULARY}")
    return vocabulary


def _token_texts(vocabulary: dict[str, int]) -> list[bytes]:
    """The bytes of every token; those of the end token are the byte that ends a document of byte shards."""
    byte_of = {ord(symbol): chr(byte) for byte, symbol in enumerate(byte_symbols())}
    in_order = sorted(vocabulary, key=lambda token: vocabulary[token])
    return [DOCUMENT_END if token == END_OF_TEXT else token.translate(byte_of).encode("latin-1") for token in in_order]


def _library_tokenizer(files: TokenizerFiles, vocabulary: dict[str, int]) -> Any:
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import models, pre_tokenizers

    merges = _read_merges(files.merges)
    if len(merges) + 257 != len(vocabulary):
        what = f"{len(merges)} merges do not fit the {len(vocabulary)} tokens of {files.vocabulary.name}"
        raise _damaged(files.merges, what)
    try:
        library = LibraryTokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the library raises bare exceptions
        raise _damaged(files.merges, str(error)) from error
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library


def _read_merges(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is not UTF-8") from error
    merges = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not right or " " in right:
            raise _damaged(path, f"line {number} is not two tokens with a space between them")
        merges.append((left, right))
    return merges


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"a tokenizer file is damaged ({reason})", where=str(path), fix=HOW_TO_GET)
