"""``thinwire VERB ...``: find the verb, run it, turn every outcome into an exit status (0, 1, 2 or 130)."""

import difflib
import errno
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from thinwire.base.errors import InterruptedRunError, ThinwireError
from thinwire.cli.program import program

VERBS = {
    "demo": "the whole recipe on text that this machine already has, in minutes",
    "prepare": "text -> a data folder of byte shards with splits",
    "train": "train a preset on a data folder, or go on with a run",
    "evaluate": "score a run on held-out text, beside baselines",
    "generate": "let a run continue a prompt",
    "measure": "bytes or gradient noise of a run, beside the closed forms",
    "plan": "what fits a budget, a deadline or a link, from closed forms",
    "export": "a run's model as a stock Hugging Face Llama",
    "replay": "rebuild the weights of any update from the scalar log",
    "audit": "evaluate randomly chosen updates of a run again, against its log",
    "reproduce": "figures and tables of the paper again, ours beside the paper's, with a verdict",
    "report": "one self-contained page, CSVs and figures about runs",
    "doctor": "what this machine has, which kernels it uses, what is missing",
}
DISK_ERRORS = {
    errno.ENOSPC: ("the disk is full", "free some space, then give the same command again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, then give the same command again"),
    errno.EROFS: ("the file system is read-only", "choose a folder that can be written"),
    errno.EACCES: ("permission denied", "choose a folder that can be written, or change its permissions"),
    errno.EPERM: ("the operation is not permitted", "choose a folder that can be written"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "check the path"),
    errno.EISDIR: ("this is a folder, and a file was wanted", "check the path"),
    errno.ENOENT: ("there is no such file or folder", "check the path"),
    errno.EEXIST: ("a file stands where a folder is wanted", "check the path, or choose another"),
    errno.ELOOP: ("the path goes round in circles of links", "check the path"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
    errno.ENAMETOOLONG: ("the path is too long", "choose a shorter one"),
    errno.EFBIG: ("the file would exceed the size limit", "raise the limit (ulimit -f), or choose another disk"),
    errno.EIO: ("the disk reports an error", "check the disk, then give the same command again"),
}


def usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {what}" for verb, what in VERBS.items()]
    return "\n".join(["usage: thinwire VERB ...", "", *lines, "", "thinwire VERB --help tells more."])


def run() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line; returns its exit status."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage() + "\n")
        return 0
    if argv[0] == "--version":
        from thinwire import __version__

        sys.stdout.write(f"thinwire {__version__}\n")
        return 0
    verb, rest = argv[0], list(argv[1:])
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "thinwire --help lists the verbs"
        return _complain(f"error: there is no verb '{verb}'\n  where: thinwire VERB\n  fix:   {hint}", 2)
    signal.signal(signal.SIGTERM, _interrupt)

    def call() -> None:
        importlib.import_module(f"thinwire.cli.{verb}").main(rest)

    return _outcome(call, command=shlex.join([*program(), *argv]))


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _outcome(call: Callable[[], None], *, command: str) -> int:
    try:
        call()
        sys.stdout.flush()
    except (KeyboardInterrupt, InterruptedRunError):
        return _complain(f"interrupted; every finished update is kept\n  to go on: {command}", 130)
    except ThinwireError as error:
        return _complain(f"error: {error}", error.exit_status)
    except BrokenPipeError:
        # The reader of standard output has gone (``| head``): what it read is all it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _complain("error: the machine ran out of memory\n  fix:   use a smaller batch or fewer processes", 1)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        what, fix = DISK_ERRORS[error.errno]
        return _complain(f"error: {what}\n  where: {error.filename or 'unknown'}\n  fix:   {fix}", 2)
    return 0


def _complain(message: str, status: int) -> int:
    sys.stderr.write(message + "\n")
    return status
