"""How is a speed measured?  Contestants in turn, round after round; medians and spreads of the rounds."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Timed(NamedTuple):
    """Units of work per second: the median of the rounds, and (largest - smallest) / median."""

    median: float
    spread: float


def timed_in_turn(contestants: Mapping[str, Callable[[], float]], *, repeats: int) -> dict[str, Timed]:
    """Units of work per second of each contestant, which returns the work it did.

    All are run in turn in every round, so that a busy moment hits them alike.  Whatever has to be compiled or touched
    once must be so before.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            started = time.perf_counter()
            work = run()
            rates[name].append(work / (time.perf_counter() - started))
    return {name: spread_of(values) for name, values in rates.items()}


def spread_of(values: Sequence[float]) -> Timed:
    median = statistics.median(values)
    return Timed(median, (max(values) - min(values)) / median)
