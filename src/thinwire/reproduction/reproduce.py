"""How do items get done?  One after another, each resuming; one that fails is said at the end and hides no other."""

import errno
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.base.errors import InterruptedRunError, RunFailedError, ThinwireError, UserError
from thinwire.base.files import atomic_write
from thinwire.base.progress import Voice
from thinwire.config.fingerprint import as_record, flatten
from thinwire.data.corpus import read_manifest
from thinwire.launch.local import available_cores
from thinwire.report.figures import new_figure
from thinwire.reproduction.corpus import usual_corpus
from thinwire.reproduction.folder import settle
from thinwire.reproduction.item import Item, Scale
from thinwire.reproduction.outcome import keep_findings
from thinwire.reproduction.workplace import Workplace
from thinwire.runs.layout import exclusive
from thinwire.soma.config import SomaConfig

FAILURE = "failure.txt"
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


class ItemsFailedError(RunFailedError):
    """Some items failed.

    Attributes:
        outcomes: of all others, in order.
    """

    def __init__(self, failures: Sequence[Failure], *, outcomes: Sequence[dict[str, Any]], out: Path) -> None:
        self.outcomes = list(outcomes)
        lines = [f"{len(failures)} of {len(failures) + len(outcomes)} items failed; the others are done"]
        for name, error in failures:
            hint = "" if isinstance(error, ThinwireError) else f" ({out / name / FAILURE} has the place)"
            lines += [f"  {name}: {_first_line(error)}{hint}"]
            if isinstance(error, UserError):
                lines.append(f"    fix: {error.fix}")
        super().__init__("\n".join(lines))


def reproduce(items: Sequence[Item], request: Request) -> list[dict[str, Any]]:
    """The outcome of every item, in order. What is there already, made from the same inputs, is kept.

    Raises:
        UserError: ``data`` is no prepared folder, ``texts`` is no folder, ``out`` holds another scale or text,
            matplotlib is missing, or the only item wants something else.
        ItemsFailedError: one or more items failed; all others are done.
        InterruptedRunError, KeyboardInterrupt: a person stopped it; every finished part is kept.
    """
    if request.texts is not None and not request.texts.is_dir():
        raise UserError("there is no such folder of texts", where=str(request.texts), fix="check the path of --texts")
    new_figure(1.0)  # a missing package is said before any work
    data = request.data or usual_corpus(request.scale, out=request.out, voice=request.voice)
    settle(request.out, scale=request.scale, text=read_manifest(data)["fingerprint"])
    outcomes: list[dict[str, Any]] = []
    failures: list[Failure] = []
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
        if len(items) > 1:
            request.voice.say(f"{item.name}: {outcome['verdict']}")
    if failures:
        raise ItemsFailedError(failures, outcomes=outcomes, out=request.out)
    return outcomes


def _one(item: Item, request: Request, *, data: Path) -> dict[str, Any]:
    place = Workplace(
        scale=request.scale,
        out=request.out,
        item=item.name,
        data=data,
        voice=_without_repeats(request.voice),
        threads=request.threads or available_cores(),
        texts=request.texts,
        command=request.command,
    )
    with exclusive(place.folder):
        try:
            outcome = keep_findings(place, item, item.find(place))
        except UserError as error:
            raise _in_item(item, error) from error
        (place.folder / FAILURE).unlink(missing_ok=True)
    return outcome


def _without_repeats(voice: Voice) -> Voice:
    """An item opens the same runs again and again; that they are kept is said once."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            voice.say(text)

    return replace(voice, say=say)


def _in_item(item: Item, error: UserError) -> UserError:
    """The same mistake with the item's name; an item's settings are its own, so that only more text can suit them."""
    is_setting = error.where in flatten(as_record(SomaConfig()))
    fix = "give more text with --data: the settings are the item's own" if is_setting else error.fix
    return UserError(error.what, where=f"{item.name}: {error.where}", fix=fix)


def _note(item: Item, error: Exception, *, out: Path) -> Failure:
    """Keep where in the code an item failed, unless it is a person's mistake."""
    if not isinstance(error, ThinwireError):
        text = "".join(traceback.format_exception(error))
        atomic_write(out / item.name / FAILURE, text.encode())
    return Failure(item.name, error)


def _first_line(error: Exception) -> str:
    text = str(error).split("\n")[0]
    return text if isinstance(error, ThinwireError) else f"{type(error).__name__}: {text}"
