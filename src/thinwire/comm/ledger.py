"""How many bytes did this rank send, for what, in which step and to whom?  Counted where they are sent (section 5.2).

A message is counted once, on the rank that sends it, with the bytes its tensors hold; what a transport adds around them
(TCP/IP headers, gloo's notices) is not counted. The sum over all ranks is what crossed the wires.
"""

import threading
from collections import defaultdict
from typing import NamedTuple


class LedgerRow(NamedTuple):
    """All messages of one operation, tag and step to one peer."""

    operation: str
    tag: str
    step: int
    peer: int
    num_bytes: int
    num_messages: int


class Ledger:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: defaultdict[tuple[str, str, int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._totals: defaultdict[tuple[str, str], int] = defaultdict(int)

    def count(self, *, operation: str, tag: str, step: int, num_bytes: int, peer: int) -> None:
        """Add one message.

        Args:
            operation: how it travels: ``send``.
            tag: what it is for, e.g. ``kv-forward``.
            step: of the training.
            num_bytes: what its tensors hold.
            peer: the rank it goes to.
        """
        with self._lock:
            row = self._rows[operation, tag, step, peer]
            row[0] += num_bytes
            row[1] += 1
            self._totals[operation, tag] += num_bytes

    def total(self, *, operation: str | None = None, tag: str | None = None, step: int | None = None) -> int:
        """Bytes sent; what is not given is summed over. Without ``step``, forgotten steps count as well."""
        with self._lock:
            if step is None:
                found = [
                    num_bytes
                    for (row_operation, row_tag), num_bytes in self._totals.items()
                    if operation in (None, row_operation) and tag in (None, row_tag)
                ]
            else:
                found = [
                    row[0]
                    for (row_operation, row_tag, row_step, _), row in self._rows.items()
                    if row_step == step and operation in (None, row_operation) and tag in (None, row_tag)
                ]
            return sum(found)

    def by_tag(self) -> dict[str, int]:
        """Bytes sent for each tag since the start."""
        totals: dict[str, int] = {}
        with self._lock:
            for (_, tag), num_bytes in self._totals.items():
                totals[tag] = totals.get(tag, 0) + num_bytes
        return totals

    def rows(self) -> list[LedgerRow]:
        """In the order of (operation, tag, step, peer)."""
        with self._lock:
            return [LedgerRow(*key, *row) for key, row in sorted(self._rows.items())]

    def forget_steps(self, *, before: int) -> None:
        """Drop the rows of earlier steps, so that a long run's ledger stays small; the totals keep them."""
        with self._lock:
            for key in [key for key in self._rows if key[2] < before]:
                del self._rows[key]
