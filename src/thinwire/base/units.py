"""Which unit is this number in?  Conversions and the words a person reads."""

import math

NATS_PER_BIT = math.log(2.0)


def bits_per_byte(loss_nats_per_byte: float) -> float:
    return loss_nats_per_byte / NATS_PER_BIT


def format_bytes(num_bytes: int | float) -> str:
    """Decimal units: 1 MB is 1,000,000 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def format_seconds(seconds: int | float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def format_count(count: int | float) -> str:
    """12,345 below a million, then 1.23M, 4.56G, 7.89T."""
    if count < 1e6:
        return f"{count:,.0f}"
    for unit in "MG":
        count /= 1e6 if unit == "M" else 1e3
        if count < 1e3:
            return f"{count:.2f}{unit}"
    return f"{count / 1e3:.2f}T"
