"""Which scale and which text does a folder of items keep to?  ``reproduction.json``: its numbers can be compared."""

from pathlib import Path

from thinwire.base.errors import UserError
from thinwire.base.files import read_json, write_json
from thinwire.reproduction.item import Scale

PLACE = "reproduction.json"


def settled_text(out: Path, *, scale: Scale) -> str | None:
    """Fingerprint of the text that a folder's items learn from; None where no item has begun.

    Raises:
        UserError: its items are of another scale.
    """
    path = out / PLACE
    if not path.is_file():
        return None
    there = read_json(path)
    if there.get("scale") != scale:
        raise _another("scale", out=out)
    return there.get("data_fingerprint")


def settle(out: Path, *, scale: Scale, text: str) -> None:
    """Remember scale and text (its fingerprint).

    Raises:
        UserError: the folder holds items of another scale or text.
    """
    there = settled_text(out, scale=scale)
    if there is None:
        write_json(out / PLACE, {"scale": scale, "data_fingerprint": text})
    elif there != text:
        raise _another("text", out=out)


def _another(what: str, *, out: Path) -> UserError:
    return UserError(
        f"this folder holds items of another {what}; their numbers could not be compared",
        where=str(out),
        fix="give another --out, or the --data and --scale that it was begun with",
    )
