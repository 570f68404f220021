"""Which numbers does a model see for a text?  Its bytes: 256 symbols, one UTF-8 byte each (Table 1, "byte vocabulary").

The identity is written down as a function so that the shards have one place where text becomes symbols.
"""

from typing import Literal, get_args

from thinwire.base.errors import UserError

Tokenizer = Literal["byte"]


def encode(payload: bytes, *, tokenizer: Tokenizer = "byte") -> bytes:
    """The symbols of one document; bytes that are not UTF-8 are kept as they are.

    Raises:
        UserError: an unknown tokenizer.
    """
    check_tokenizer(tokenizer)
    return payload


def check_tokenizer(tokenizer: str) -> None:
    """Raises UserError unless the name is one that is offered."""
    if tokenizer not in get_args(Tokenizer):
        offered = ", ".join(get_args(Tokenizer))
        raise UserError(f"unknown tokenizer '{tokenizer}'", where="--tokenizer", fix=f"choose one of: {offered}")
