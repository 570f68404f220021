"""Is this configuration possible?  Every rule is tried and every violation is raised, once."""

from dataclasses import dataclass, field
from math import inf

from thinwire.base.errors import ConfigError


@dataclass
class Violations:
    """Collects what is wrong; ``raise_any`` raises it together.

    Example::

        wrong = Violations()
        wrong.at_least("experts.batch", config.batch, 1)
        wrong.raise_any(where="preset soma-small")
    """

    lines: list[str] = field(default_factory=list)

    def at_least(self, key: str, value: int | float, low: int | float) -> None:
        self.require(key, value, value >= low, f"must be at least {low:g}")
        self.require(key, value, value != inf, "must be finite")

    def within(self, key: str, value: int | float, low: int | float, high: int | float) -> None:
        self.require(key, value, low <= value <= high, f"must lie between {low:g} and {high:g}")

    def positive(self, key: str, value: int | float) -> None:
        self.require(key, value, value > 0, "must be above zero")
        self.require(key, value, value != inf, "must be finite")

    def require(self, key: str, value: object, holds: bool, rule: str) -> None:
        if not holds:
            self.lines.append(f"{key} = {value}: {rule}")

    def raise_any(self, *, where: str) -> None:
        """Raises ConfigError where anything was collected."""
        if self.lines:
            raise ConfigError(self.lines, where=where)
