"""What does a person mean by 300Mbps, 20ms, 16B or 10h?  Numbers with units, as they are typed on a command line."""

import re
from typing import NamedTuple

from thinwire.base.errors import UserError
from thinwire.soma.recorded_curve import CostUnit

NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([a-zA-Z/]*)\s*", re.IGNORECASE)
RATES = {"": 1.0, "bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12}
"""Bits per second; ``Mbit/s`` is read as ``Mbps``."""
DURATIONS = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
MEMORIES = {
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
}
WORK: dict[str, CostUnit] = {
    "byte-forwards": "byte_forwards",
    "operations": "operations",
    "ops": "operations",
    "flop": "operations",
    "flops": "operations",
}
LARGEST = 1e60
"""choice: a number above it is a slip; products of three of them still have a place in a float."""
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


def bits_per_s(text: str, *, where: str) -> float:
    """``300Mbps`` -> 3e8. Raises UserError where it is no rate above zero."""
    value = _parse(re.sub(r"bit/s$", "bps", text.strip(), flags=re.IGNORECASE), RATES, where, "300Mbps or 1.5Gbps")
    if value <= 0:
        raise UserError("a link needs a rate above zero", where=f"{where} {text}", fix="for example 300Mbps")
    return value


def seconds(text: str, *, where: str) -> float:
    """``20ms`` -> 0.02; only 0 needs no unit. Raises UserError where it is no duration."""
    if text.strip() == "0":
        return 0.0
    return _parse(text, DURATIONS, where, "20ms, 1.5s, 12h or 30d")


def count(text: str, *, where: str) -> int:
    """``16B`` -> 16,000,000,000. Raises UserError where it is no number."""
    return round(_parse(text, COUNTS, where, "16B or 300M"))


def _parse(text: str, units: dict[str, float], where: str, example: str) -> float:
    found = NUMBER.fullmatch(text)
    unit = found.group(2).lower() if found else ""
    if found is not None and not unit and unit not in units:
        raise UserError(
            f"{text.strip()!r} has no unit", where=where, fix=f"give one of {', '.join(units)}: for example {example}"
        )
    if found is None or unit not in units:
        raise UserError(f"cannot read {text!r}", where=where, fix=f"for example {example}")
    return _plausible(float(found.group(1)) * units[unit], text, where=where, example=example)


def _plausible(value: float, text: str, *, where: str, example: str) -> float:
    if value > LARGEST:
        raise UserError(f"{text!r} is too large a number", where=where, fix=f"for example {example}")
    return value


def num_bytes(text: str, *, where: str) -> int:
    """``16GB`` -> 16,000,000,000. Raises UserError where it is no amount of memory above zero."""
    value = round(_parse(text, MEMORIES, where, "16GB or 512MiB"))
    if value <= 0:
        raise UserError("memory must be above zero", where=f"{where} {text}", fix="for example 16GB")
    return value


class Budget(NamedTuple):
    """What may be spent in all, C of Eq. (6): of all experts together."""

    amount: float
    unit: CostUnit


def budget(text: str, *, where: str) -> Budget:
    """``10h`` -> 36,000 device-seconds; ``3e12 byte-forwards``, ``1e15 ops`` (Eq. 21).

    Raises:
        UserError: it is none of them, or not above zero.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([a-z-]*)\s*", text, re.IGNORECASE)
    example = "10h (device-hours), 3e12 byte-forwards or 1e15 ops"
    fix = f"for example {example}"
    unit = found.group(2).lower() if found else ""
    if found is not None and unit in WORK:
        amount, kind = _plausible(float(found.group(1)), text, where=where, example=example), WORK[unit]
    elif found is not None and not unit:
        raise UserError(
            f"{text.strip()!r} has no unit", where=where, fix=f"give s, min, h, d, w, byte-forwards or ops: {fix}"
        )
    else:
        plain = re.sub(r"(device|core|gpu)-(?=hours?|seconds?)", "", text, flags=re.IGNORECASE)
        plain = re.sub(r"\s*hours?$", "h", re.sub(r"\s*seconds?$", "s", plain))
        amount, kind = _parse(plain, DURATIONS, where, example), "device_seconds"
    if amount <= 0:
        raise UserError("a budget must be above zero", where=f"{where} {text}", fix=fix)
    return Budget(amount, kind)
