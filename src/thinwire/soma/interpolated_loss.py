"""What was the loss at a cost between two recorded points?  Straight lines in cost and in its logarithm (Table 10)."""

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import NamedTuple

from thinwire.soma.recorded_curve import CostUnit, CurvePoint


class LossRange(NamedTuple):
    """Between the two interpolations, nats per byte."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class CostRange(NamedTuple):
    """Between the two interpolations, in the unit asked for."""

    low: float
    high: float


def loss_at(points: Sequence[CurvePoint], *, cost: float, unit: CostUnit) -> LossRange | None:
    """The loss at a cost; None where the recorded points, rising in cost, do not cover it."""
    for left, right in pairwise(points):
        first, last = left.cost(unit), right.cost(unit)
        if first <= cost <= last:
            parts = _parts(cost, first, last)
            losses = [
                left.loss_nats_per_byte + part * (right.loss_nats_per_byte - left.loss_nats_per_byte) for part in parts
            ]
            return LossRange(min(losses), max(losses))
    return None


def cost_to_reach(points: Sequence[CurvePoint], *, loss: float, unit: CostUnit) -> CostRange | None:
    """Where a curve first falls to ``loss``; None where it never does, or is below it from its first point on."""
    for left, right in pairwise(points):
        if left.loss_nats_per_byte > loss >= right.loss_nats_per_byte:
            part = (left.loss_nats_per_byte - loss) / (left.loss_nats_per_byte - right.loss_nats_per_byte)
            first, last = left.cost(unit), right.cost(unit)
            costs = (first + part * (last - first), first * (last / first) ** part)
            return CostRange(min(costs), max(costs))
    return None


def _parts(cost: float, first: float, last: float) -> tuple[float, float]:
    """How far between two costs, linear and logarithmic."""
    if last == first:
        return 0.0, 0.0
    return (cost - first) / (last - first), log(cost / first) / log(last / first)
