"""What did the person ask for?  A preset plus dotted overrides; a mistyped flag is answered with the nearest one."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro

T = TypeVar("T")


def parse(target: Callable[..., T] | type[T], argv: Sequence[str], *, prog: str, description: str | None = None) -> T:
    """Fill ``target`` (a dataclass or an annotated function) from a command line.

    Exits with status 2 and a message where a flag or value is wrong, as every command line tool does.
    """
    value: Any = tyro.cli(target, args=list(argv), prog=prog, description=description)
    return value
