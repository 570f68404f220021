"""How do tests give command lines?  In this process, where it is quick, or in one of its own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from thinwire.cli.main import main

PROGRAM = [sys.executable, "-c", "from thinwire.cli.main import run; run()"]


class Outcome(NamedTuple):
    """How a command line ended; what it wrote, standard output as bytes."""

    status: int
    out: bytes
    err: str


Here = Callable[..., Outcome]


def in_this_process(*argv: str | Path) -> int:
    """The exit status."""
    try:
        return main([str(word) for word in argv])
    except SystemExit as ended:
        return int(ended.code or 0)


def apart(*argv: str | Path) -> Outcome:
    """In a process of its own."""
    ended = subprocess.run([*PROGRAM, *map(str, argv)], capture_output=True, check=False)
    return Outcome(ended.returncode, ended.stdout, ended.stderr.decode())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(outcome: Outcome, message: str) -> None:
    assert outcome.status == 2, outcome.err
    assert message in outcome.err
    assert "where:" in outcome.err
    assert "fix:" in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == b""
