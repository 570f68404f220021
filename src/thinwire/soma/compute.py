"""How do a job's kernels run?  No weight depends on it, but for an implementation's rounding."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Compute:
    """One process's share of the machine.

    Attributes:
        implementation: of the kernels; ``auto`` takes what the machine has.
        threads: for arithmetic.
    """

    implementation: str = "auto"
    threads: int = 1
