"""How many bytes did a run's ranks send, and how many does the formula say?  Each job's ``exchange.jsonl`` (Fig. 12).

Experts never talk to each other: what is sent is sent between the ranks that make one expert's updates together. A line
says what was sent since those ranks began; what they sent after the last validation before a kill is not known.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.files import read_json_lines
from thinwire.soma.config import gradient_parts
from thinwire.soma.perturbation_parallel import AGREEMENT, GRADIENT, HANDED, LOSSES, ExchangedBytes, bytes_of_update
from thinwire.soma.run import SEED_NAME, SomaRun


class Exchanged(NamedTuple):
    """What all ranks together sent for one job, as far as it was written down.

    Attributes:
        job: ``seed`` or an expert's number.
        ranks: that trained it, of each start.
        updates: that these bytes were sent for.
        counted, expected: by the ledger, and by the formula.
        agreement_bytes: at validations: validation loss, digests and counts as text, which no formula gives.
        handed_bytes: once a start: first weights, windows and state, from rank 0 to the others.
    """

    job: str
    ranks: tuple[int, ...]
    updates: int
    counted: ExchangedBytes
    expected: ExchangedBytes
    agreement_bytes: int
    handed_bytes: int

    @property
    def is_equal(self) -> bool:
        return self.counted == self.expected


def exchanged_by_job(root: Path) -> list[Exchanged]:
    """The seed run, then every expert. Raises UserError where this is no SOMA run, or a line is damaged."""
    run = SomaRun.open(root)
    names = [SEED_NAME, *(str(expert) for expert in range(run.num_experts))]
    return [_of_job(run, name) for name in names]


def _of_job(run: SomaRun, name: str) -> Exchanged:
    path = run.job_folder(name).exchange
    lines = list(read_json_lines(path))
    for line in lines:
        _refuse_damaged(line, path=path)
    starts = _last_lines(lines)
    counted, expected, total, agreement, handed = ExchangedBytes(0, 0), ExchangedBytes(0, 0), 0, 0, 0
    for line in starts:
        each = _of_update(run, name, ranks=line["ranks"])
        updates, sent = line["update"] - line["after"], line["wire_bytes"]
        total += updates
        counted = ExchangedBytes(counted.losses + sent.get(LOSSES, 0), counted.gradient + sent.get(GRADIENT, 0))
        expected = ExchangedBytes(expected.losses + updates * each.losses, expected.gradient + updates * each.gradient)
        agreement += sent.get(AGREEMENT, 0)
        handed += sent.get(HANDED, 0)
    ranks = tuple(line["ranks"] for line in starts)
    return Exchanged(name, ranks, total, counted, expected, agreement, handed)


def _refuse_damaged(line: dict[str, Any], *, path: Path) -> None:
    counts = line.get("wire_bytes")
    numbers = [line.get("after"), line.get("update"), line.get("ranks")]
    numbers += list(counts.values()) if isinstance(counts, dict) else [None]
    is_whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)
    if not (is_whole and line["after"] <= line["update"] and line["ranks"] >= 1):
        fix = "restore exchange.jsonl from a copy of the run, or remove this line"
        raise UserError(f"a line of what ranks sent is damaged: {line}", where=str(path), fix=fix)


def _last_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each start the last line."""
    return [line for line, later in pairwise(lines) if _is_new(line, later)] + lines[-1:]


def _is_new(line: dict[str, Any], later: dict[str, Any]) -> bool:
    return later["after"] != line["after"] or later["update"] <= line["update"]


def _of_update(run: SomaRun, name: str, *, ranks: int) -> ExchangedBytes:
    parts = 1 if gradient_parts(run.config) == 1 else ranks
    num_parameters = run.shape.num_parameters
    return bytes_of_update(run.training_of(name), num_parameters=num_parameters, ranks=ranks, gradient_parts=parts)
