"""Which numbers does a model see for a text?  Bytes (Table 1 of the first paper), or GPT-2's tokens (the second's).

Both name the same text: a split's stream of tokens, put back into bytes, is its stream of bytes.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int64

from thinwire.base.errors import UserError
from thinwire.data.shards import DOCUMENT_END

Tokenizer = Literal["byte", "gpt2"]
BYTE_SYMBOLS = 256


class TextTokenizer(ABC):
    """Text to token numbers and back, without loss for any bytes.

    Attributes:
        name: as on the command line.
        vocab_size: tokens there are.
        end_token: follows every document of a stream.
        token_bytes: int64 [vocab_size], bytes of text that each token stands for.
        sha256: of the files that define it, by name; empty for bytes.
    """

    name: Tokenizer
    vocab_size: int
    end_token: int
    token_bytes: Int64[np.ndarray, " vocab"]
    sha256: dict[str, str]

    @abstractmethod
    def encode(self, text: bytes | str) -> Int64[np.ndarray, " tokens"]:
        """The tokens of one text; bytes that are not UTF-8 are kept as they are. No end token is added."""

    @abstractmethod
    def decode(self, tokens: Int64[np.ndarray, " tokens"]) -> bytes:
        """The bytes of some tokens, which need not be whole characters; the end token gives 0x00, as in byte shards.

        Raises:
            IndexError: a number is not a token.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Copy what defines it into ``folder``, for ``open_tokenizer``; of bytes there is nothing to copy."""


class ByteTokenizer(TextTokenizer):
    """Every byte is a token."""

    name: Tokenizer = "byte"
    vocab_size = BYTE_SYMBOLS
    end_token = DOCUMENT_END[0]

    def __init__(self) -> None:
        self.token_bytes = np.ones(BYTE_SYMBOLS, np.int64)
        self.sha256 = {}

    def encode(self, text: bytes | str) -> Int64[np.ndarray, " tokens"]:
        payload = text.encode() if isinstance(text, str) else text
        return np.frombuffer(payload, np.uint8).astype(np.int64)

    def decode(self, tokens: Int64[np.ndarray, " tokens"]) -> bytes:
        if tokens.size and (tokens.min() < 0 or tokens.max() >= BYTE_SYMBOLS):
            raise IndexError(f"tokens lie in 0..{BYTE_SYMBOLS - 1}")
        return tokens.astype(np.uint8).tobytes()

    def save(self, folder: Path) -> None:
        pass


def check_tokenizer(tokenizer: str) -> None:
    """Raises UserError unless the name is one that is offered."""
    if tokenizer not in get_args(Tokenizer):
        offered = ", ".join(get_args(Tokenizer))
        raise UserError(f"unknown tokenizer '{tokenizer}'", where="--tokenizer", fix=f"choose one of: {offered}")
