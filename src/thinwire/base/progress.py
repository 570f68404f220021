"""How does long work say how far it is?  The command line draws bars; a library caller may stay silent."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@runtime_checkable
class Task(Protocol):
    """One bar."""

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None:
        """A few words beside the bar, e.g. the last loss."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Progress(Protocol):
    def task(self, name: str, total: int | None) -> Task:
        """Open a bar; ``total`` in the units that ``advance`` counts, None where unknown."""
        ...


class _SilentTask:
    def advance(self, count: int = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class Silent:
    """Says nothing."""

    def task(self, name: str, total: int | None) -> Task:  # noqa: ARG002
        return _SilentTask()


def _unheard(text: str) -> None:
    pass


@dataclass(frozen=True)
class Voice:
    """How a recipe speaks: bars, and lines of text. Silent by default."""

    progress: Progress = field(default_factory=Silent)
    say: Callable[[str], None] = _unheard
