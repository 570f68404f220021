"""Are these two configurations the same?  Plain records and back, canonical JSON, its SHA-256, differing keys."""

import dataclasses
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from thinwire.base.files import canonical_json, sha256_text

T = TypeVar("T")
ADDED = MappingProxyType({"thinwire.added": True})
"""``field(default=..., metadata=ADDED)``: a setting that came after runs had been recorded without it.

At its default it does what those runs did, and a record leaves it out: their fingerprints stay what they are.
"""


def as_record(config: Any) -> dict[str, Any]:
    """A frozen dataclass as plain JSON values, less the ``ADDED`` settings that are at their default."""
    record = dataclasses.asdict(config)
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            record[item.name] = as_record(value)
        elif item.metadata == ADDED and value == item.default:
            del record[item.name]
    return record


def from_record(kind: type[T], record: dict[str, Any]) -> T:
    """The frozen dataclass that ``as_record`` made plain.

    Raises:
        TypeError, KeyError: keys are missing or unknown.
    """
    given = dict(record)
    types = get_type_hints(kind)
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        if item.metadata == ADDED and item.name not in record:
            continue
        if dataclasses.is_dataclass(types[item.name]):
            given[item.name] = from_record(types[item.name], record[item.name])
        elif isinstance(record[item.name], list):
            given[item.name] = tuple(record[item.name])
    return kind(**given)


def fingerprint(*parts: Any) -> str:
    """64 hexadecimal digits that change when any part does; dataclasses count by value."""
    return sha256_text(canonical_json([_plain(part) for part in parts]))


def _plain(value: Any) -> Any:
    """Dataclasses as records, at any depth of lists, tuples and dictionaries."""
    if dataclasses.is_dataclass(value):
        return as_record(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def flatten(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differing_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Dotted keys whose values differ, each with both values."""
    a, b = flatten(old), flatten(new)
    return [
        f"{key}: {a.get(key)!r} there, {b.get(key)!r} now"
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]
