"""How do items get done?  One after another, each resuming; one that fails is said at the end and hides no other."""

import errno
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.base.errors import InterruptedRunError, RunFailedError, ThinwireError, UserError
from thinwire.base.files import atomic_write, read_json, write_json
from thinwire.base.progress import Voice
from thinwire.data.corpus import read_manifest
from thinwire.launch.local import available_cores
from thinwire.report.figures import new_figure
from thinwire.reproduction.corpus import usual_corpus
from thinwire.reproduction.item import Item, Scale
from thinwire.reproduction.outcome import keep_findings
from thinwire.reproduction.workplace import Workplace
from thinwire.runs.layout import exclusive

FAILURE, PLACE = "failure.txt", "reproduction.json"
DISK_IS_USELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Request:
    """What is to be reproduced, and where.

    Attributes:
        scale: how much work is done.
        out: the folder of all items of this scale.
        data: a prepared folder; None prepares the text that every Python installation carries, once.
        texts: further texts that some items score.
        threads: for arithmetic; 0 is one a core.
        command: the command line that goes on with this work.
        voice: bars and messages.
    """

    scale: Scale
    out: Path
    data: Path | None = None
    texts: Path | None = None
    threads: int = 0
    command: str | None = None
    voice: Voice = field(default_factory=Voice)


class Failure(NamedTuple):
    item: str
    error: Exception


def reproduce(items: Sequence[Item], request: Request) -> list[dict[str, Any]]:
    """The outcome of every item, in order. What is there already, made from the same inputs, is kept.

    Raises:
        UserError: ``data`` is no prepared folder, ``out`` holds another scale or text, matplotlib is missing, or the
            only item wants something else.
        RunFailedError: one or more items failed; all others are done.
        InterruptedRunError, KeyboardInterrupt: a person stopped it; every finished part is kept.
    """
    new_figure(1.0)  # a missing package is said before any work
    data = request.data or usual_corpus(request.scale, out=request.out, voice=request.voice)
    _settle(request, data=data)
    outcomes, failures = [], []
    for item in items:
        request.voice.say(f"{item.name}: {item.shows}")
        try:
            outcome = _one(item, request, data=data)
        except (InterruptedRunError, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_IS_USELESS:
                raise
            if isinstance(error, UserError) and len(items) == 1:
                raise
            failures.append(_note(item, error, out=request.out))
            request.voice.say(f"{item.name}: failed: {_first_line(error)}")
            continue
        outcomes.append(outcome)
        request.voice.say(f"{item.name}: {outcome['verdict']}: {outcome['ours']}")
    if failures:
        raise _failed(failures, total=len(items), out=request.out)
    return outcomes


def _one(item: Item, request: Request, *, data: Path) -> dict[str, Any]:
    place = Workplace(
        scale=request.scale,
        out=request.out,
        item=item.name,
        data=data,
        voice=request.voice,
        threads=request.threads or available_cores(),
        texts=request.texts,
        command=request.command,
    )
    with exclusive(place.folder):
        outcome = keep_findings(place, item, item.find(place))
        (place.folder / FAILURE).unlink(missing_ok=True)
    return outcome


def _settle(request: Request, *, data: Path) -> None:
    """Remember scale and text of a folder; raises UserError where it is another's."""
    record = {"scale": request.scale, "data_fingerprint": read_manifest(data)["fingerprint"]}
    path = request.out / PLACE
    if not path.is_file():
        write_json(path, record)
        return
    there = read_json(path)
    if there != record:
        what = "scale" if there.get("scale") != request.scale else "text"
        raise UserError(
            f"this folder holds items of another {what}; their numbers could not be compared",
            where=str(request.out),
            fix="give another --out, or the --data and --scale that it was begun with",
        )


def _note(item: Item, error: Exception, *, out: Path) -> Failure:
    """Keep where in the code an item failed, unless it is a person's mistake."""
    if not isinstance(error, ThinwireError):
        text = "".join(traceback.format_exception(error))
        atomic_write(out / item.name / FAILURE, text.encode())
    return Failure(item.name, error)


def _failed(failures: Sequence[Failure], *, total: int, out: Path) -> RunFailedError:
    lines = [f"{len(failures)} of {total} items failed; the others are done"]
    for name, error in failures:
        hint = "" if isinstance(error, ThinwireError) else f" ({out / name / FAILURE} has the place)"
        lines += [f"  {name}: {_first_line(error)}{hint}"]
        if isinstance(error, UserError):
            lines.append(f"    fix: {error.fix}")
    return RunFailedError("\n".join(lines))


def _first_line(error: Exception) -> str:
    text = str(error).split("\n")[0]
    return text if isinstance(error, ThinwireError) else f"{type(error).__name__}: {text}"
