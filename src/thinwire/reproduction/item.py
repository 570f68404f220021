"""What is one item of a reproduction?  A figure or table of a paper: how it is found again, and by what rule judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from thinwire.reproduction.workplace import Workplace

Scale = Literal["smoke", "cpu", "paper"]
"""smoke: seconds, in every test run; cpu: minutes on two cores; paper: the published setting, for GPUs."""
Verdict = Literal["agrees", "differs", "scale too small to tell"]
AxisScale = Literal["linear", "log"]
Number = int | float


class Series(NamedTuple):
    """One row of points of a panel; a dashed one (a prediction) takes the colour of the series of the same name.

    Attributes:
        error: half lengths of the points' error bars; None draws none.
    """

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    error: Sequence[Number] | None = None
    kind: Literal["line", "points", "dashed"] = "line"


class Panel(NamedTuple):
    """One pair of axes; the labels hold the units."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    x_scale: AxisScale = "linear"
    y_scale: AxisScale = "linear"


class Findings(NamedTuple):
    """What an item found.

    Attributes:
        rows: the CSV, one observation a row, units in the keys; rows may have different keys.
        ours: one line with our numbers, to stand beside the paper's.
        verdict: computed from the rows by the item's rule.
        panels: the figure; none where the item is a table.
        notes: the scale it was run at, which budget is held equal, what differs from the paper.
    """

    rows: list[dict[str, Any]]
    ours: str
    verdict: Verdict
    panels: list[Panel]
    notes: str = ""


@dataclass(frozen=True)
class Item:
    """One figure or table.

    Attributes:
        name: e.g. ``"soma-fig11"``.
        covers: other names that find it, e.g. ``"soma-table8"``.
        shows: what the figure or table shows, in a few words.
        paper: the paper's values.
        rule: how the verdict is computed.
        minutes: about how long it takes on two cores.
        find: does the work, reading nothing but its workplace.
    """

    name: str
    covers: tuple[str, ...]
    shows: str
    paper: str
    rule: str
    minutes: Mapping[Scale, Number]
    find: Callable[["Workplace"], Findings]
