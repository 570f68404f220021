"""What does a person see while work goes on?  Bars with time left on a terminal, now and then a line elsewhere.

Standard output carries results alone; everything else goes to standard error.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from thinwire.base.progress import Progress, Task
from thinwire.base.units import format_seconds

LINE_EVERY_SECONDS = 20.0
BARS_SHOWN = 12


class _Bar:
    def __init__(self, bars: RichProgress, name: str, total: int | None) -> None:
        self._bars = bars
        self._id = bars.add_task(name, total=total, note="")

    def advance(self, count: int = 1) -> None:
        self._bars.advance(self._id, count)

    def note(self, text: str) -> None:
        self._bars.update(self._id, note=text)

    def close(self) -> None:
        """Full; where there are many, finished bars go, so that those at work stay on the screen."""
        task = next(task for task in self._bars.tasks if task.id == self._id)
        visible = sum(other.visible for other in self._bars.tasks)
        self._bars.update(self._id, total=task.completed, visible=visible <= BARS_SHOWN)


class _Bars:
    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars

    def task(self, name: str, total: int | None) -> Task:
        return _Bar(self._bars, name, total)


class _Line:
    """Progress for a log file: a line at the end, and every 20 seconds until then."""

    def __init__(self, console: Console, name: str, total: int | None) -> None:
        self._console, self._name, self._total = console, name, total
        self._done, self._note = 0, ""
        self._started = self._spoken = time.monotonic()

    def advance(self, count: int = 1) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._spoken >= LINE_EVERY_SECONDS:
            self._spoken = now
            left = ""
            if self._total and self._done:
                seconds = (now - self._started) * (self._total - self._done) / self._done
                left = f", {format_seconds(max(seconds, 0.0))} left"
            self._say(f"{self._done:,} of {self._total:,}{left}" if self._total else f"{self._done:,}")

    def note(self, text: str) -> None:
        self._note = text

    def close(self) -> None:
        self._say(f"done in {format_seconds(time.monotonic() - self._started)}")

    def _say(self, text: str) -> None:
        self._console.print(f"{self._name}: {text}{f'  {self._note}' if self._note else ''}", highlight=False)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console

    def task(self, name: str, total: int | None) -> Task:
        return _Line(self._console, name, total)


class Terminal:
    """Standard error for people, standard output for results."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Bars while the block runs."""
        if not self.console.is_terminal:
            yield _Lines(self.console)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with RichProgress(*columns, console=self.console) as bars:
            yield _Bars(bars)


def print_json(record: Any) -> None:
    """The one object on standard output, in ASCII: whatever a text or a file's name holds, it can be written."""
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")


def print_table(rows: list[tuple[str, str]]) -> None:
    """Names and values, aligned, on standard output."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        sys.stdout.write(f"  {name:<{width}}  {value}\n")


def print_columns(header: list[str], lines: list[list[str]]) -> None:
    """A table behind an empty line: the first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    sys.stdout.write("\n")
    for line in [header, *lines]:
        first, *rest = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        sys.stdout.write("  " + "  ".join(cells).rstrip() + "\n")


def printable(text: bytes) -> str:
    """Bytes for a screen: UTF-8 where they are, and a replacement character for what is not or would steer it."""
    decoded = text.decode("utf-8", errors="replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in decoded)


def print_bytes(text: bytes) -> None:
    """As they are into a file or pipe, printable on a terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(printable(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
