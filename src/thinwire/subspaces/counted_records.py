"""Which records of a run's log tell what was counted, and can they be believed?  Types and ranges, before any sum."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from thinwire.base.errors import UserError
from thinwire.base.files import read_json_lines
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.schedule import Phase

NEEDED = {"step": ("step", "ranks", "phase", "wire_bytes"), "validation": ("step", "phase"), "event": ("step", "what")}
"""What a record of each kind must say; one that lacks it is passed over, as other versions may write others."""


def counted_records(log: Path, config: SubspacesConfig) -> Iterator[dict[str, Any]]:
    """The steps, validations and events of a log, in its order.

    Raises:
        UserError: a value is of another type, or cannot be one of this run.
    """
    for record in read_json_lines(log):
        needed = NEEDED.get(str(record.get("kind")))
        if needed is None or any(key not in record for key in needed):
            continue
        for key, wrong in _violations(record, config):
            raise UserError(
                f"a record of kind '{record['kind']}' is damaged: {key} = {record.get(key)!r}, {wrong}",
                where=str(log),
                fix="restore log.jsonl from a copy of the run, or remove this line",
            )
        yield record


def _violations(record: dict[str, Any], config: SubspacesConfig) -> Iterator[tuple[str, str]]:
    """(key, what it must be) of everything that is wrong."""
    limits = {"step": (0, config.optimizer.steps), "ranks": (1, config.sequence.chunks), "sequences": (0, None)}
    for key, (least, most) in limits.items():
        if key in record and not (_is_count(record[key], least) and (most is None or record[key] <= most)):
            yield key, f"not a whole number of {least} or more" if most is None else f"not within {least}..{most}"
    if "phase" in record and record["phase"] not in get_args(Phase):
        yield "phase", f"not one of {', '.join(get_args(Phase))}"
    if "what" in record and not isinstance(record["what"], str):
        yield "what", "not a word"
    if "wire_bytes" in record:
        counts = record["wire_bytes"]
        if not isinstance(counts, dict) or not all(_is_count(count, 0) for count in counts.values()):
            yield "wire_bytes", "not whole numbers by tag"
        elif record["kind"] == "event" and "ranks" not in record:
            yield "ranks", "which is missing beside wire_bytes"


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
