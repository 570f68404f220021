"""How is a part of a run folder read when it may be absent, torn or wrong?  Built, or left out with one sentence."""

import base64
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from thinwire.base.errors import UserError
from thinwire.base.files import read_json
from thinwire.report.records import Sample

T = TypeVar("T")
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What building a record from wrong JSON raises (a bad base64 text is a ValueError)."""
KINDS = ("soma", "eggroll", "subspaces")


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a run of any method.

    Raises:
        UserError: the folder is absent, holds no run, or one of another kind.
    """
    fix = "give the folder that 'thinwire train PRESET --data DATA --out RUN' wrote; it holds config.json"
    if not folder.is_dir():
        raise UserError("there is no such run folder", where=str(folder), fix=fix)
    path = folder / "config.json"
    if not path.is_file():
        raise UserError("this folder holds no run: config.json is missing", where=str(folder), fix=fix)
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        raise UserError("config.json does not describe a run", where=str(path), fix=fix)
    if record.get("kind") not in KINDS:
        kind, fix = record.get("kind"), f"give the folder of a run of kind {' or '.join(KINDS)}"
        raise UserError(f"a run of kind {kind!r} has no report", where=str(path), fix=fix)
    return record


def unique_names(resolved: Sequence[Path]) -> list[str]:
    """The folders' own names, with as many parents as it takes to tell them apart."""
    depth = 1
    while True:
        names = [
            "/".join([part for part in folder.parts if part != folder.anchor][-depth:]) or "run" for folder in resolved
        ]
        if len(set(names)) == len(names) or depth > max(len(folder.parts) for folder in resolved):
            return names
        depth += 1


def read_part(folder: Path, relative: str, build: Callable[[Any], T], damage: list[str]) -> T | None:
    """Build one part from its JSON file; None where the file is absent, or damaged (then one sentence is added)."""
    path = folder / relative
    if not path.is_file():
        return None
    try:
        return build(read_json(path))
    except (UserError, OSError):
        damage.append(f"{relative} is not valid JSON and was left out.")
    except MALFORMED as error:
        damage.append(
            f"{relative} lacks a value or holds a wrong one ({type(error).__name__}: {error}) and was left out."
        )
    return None


def build_record(record: Any) -> dict[str, Any]:
    return dict(record)


def optional(value: Any, convert: Callable[[Any], T]) -> T | None:
    return None if value is None else convert(value)


def finite(value: Any) -> float:
    """A number. Raises ValueError where it is not finite."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a loss is not finite")
    return number


def build_sample(record: Any) -> Sample:
    """``bytes_base64`` is exact and wins over ``text``; a prompt repeated at its start is taken off."""
    prompt = str(record.get("prompt") or "")
    encoded = record.get("bytes_base64")
    generated = base64.b64decode(encoded, validate=True) if encoded else record["text"].encode("utf-8", "surrogatepass")
    return Sample(
        prompt=prompt,
        continuation=generated.removeprefix(prompt.encode("utf-8", "surrogatepass")),
        temperature=optional(record.get("temperature"), float),
        seed=optional(record.get("seed"), int),
    )
