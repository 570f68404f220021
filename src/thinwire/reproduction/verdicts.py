"""When does an ordering count as seen?  Paired differences over seeds, by one rule for every item."""

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import NamedTuple

from scipy.stats import t as students_t

from thinwire.reproduction.item import Verdict

FEWEST_SEEDS = 3
CONFIDENCE = 0.95


class Paired(NamedTuple):
    """Differences of one pair of arms over seeds, and what they say.

    Attributes:
        mean: of the differences.
        low, high: 95 % interval of the mean by Student's t; infinite for a single seed.
        verdict: ``agrees`` where every seed has the claimed sign; ``differs`` where the interval lies on the other
            side; ``scale too small to tell`` between the two, or with fewer than three seeds.
    """

    mean: float
    low: float
    high: float
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def paired(differences: Sequence[float]) -> Paired:
    """Judge the claim that the differences are above zero."""
    centre, count = mean(differences), len(differences)
    half = float("inf")
    if count > 1:
        half = float(students_t.ppf((1 + CONFIDENCE) / 2, count - 1)) * stdev(differences) / sqrt(count)
    verdict: Verdict = "scale too small to tell"
    if count >= FEWEST_SEEDS and min(differences) > 0:
        verdict = "agrees"
    elif count >= FEWEST_SEEDS and centre + half < 0:
        verdict = "differs"
    return Paired(centre, centre - half, centre + half, verdict)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several claims: all must agree; one that differs decides."""
    found = list(verdicts)
    if "differs" in found:
        return "differs"
    return "agrees" if found and all(verdict == "agrees" for verdict in found) else "scale too small to tell"


def cost_to_fall_to(loss: float, *, costs: Sequence[int | float], losses: Sequence[float]) -> float | None:
    """The cost at which a recorded curve first falls to a loss, linear between its points; None where it never does."""
    reached = [0]
    for i in range(1, len(losses)):
        if losses[i] < losses[reached[-1]]:
            reached.append(i)
    return value_at([-losses[i] for i in reached], [costs[i] for i in reached], cost=-loss)


def value_at(costs: Sequence[int | float], losses: Sequence[int | float], *, cost: float) -> float | None:
    """A loss between recorded points, linear in the cost; None beyond either end."""
    if not costs[0] <= cost <= costs[-1]:
        return None
    for i in range(1, len(costs)):
        if cost <= costs[i]:
            part = (cost - costs[i - 1]) / (costs[i] - costs[i - 1])
            return losses[i - 1] + part * (losses[i] - losses[i - 1])
    return losses[-1]
