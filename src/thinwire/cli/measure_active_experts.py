"""``thinwire measure active-experts RUN``: how the loss falls, and the cost grows, with more experts answering."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from thinwire.base.files import write_json
from thinwire.base.units import format_count
from thinwire.cli.terminal import Terminal, print_columns, print_json, print_table
from thinwire.config.parse import parse
from thinwire.runs.layout import RunFolder

RESULT = "active-experts.json"
ROWS_SHOWN = 20


@dataclass(frozen=True)
class ActiveExpertsArguments:
    """Loss of a trained run for every number k of active experts, 1 to N, at its newest checkpoints.

    Nothing is retrained: the k nearest experts of each window answer. Kept in RUN/results/active-experts.json.
    """

    run: tyro.conf.Positional[Path]
    """The run folder; it may still be in progress."""
    split: Literal["valid", "test"] = "valid"
    """Whose documents are scored; valid, so that k is not chosen on the test split."""
    windows: int = 0
    """At most so many windows, one a document; 0 takes as many as the run's test."""
    json: bool = False
    """Print one JSON object."""


def active_experts(argv: list[str]) -> None:
    arguments = parse(ActiveExpertsArguments, argv, prog="thinwire measure active-experts")
    from thinwire.launch.local import available_cores
    from thinwire.soma.active_experts import measure_active_experts
    from thinwire.soma.every_expert import HeldOut

    held_out = HeldOut(arguments.split, arguments.windows, available_cores())
    with Terminal().progress() as progress:
        record = measure_active_experts(arguments.run, held_out=held_out, progress=progress)
    write_json(RunFolder(arguments.run).results / RESULT, record)
    if arguments.json:
        print_json(record)
    else:
        _print(record)


def _print(record: dict[str, Any]) -> None:
    best, routed = record["best_active_experts"], record["routed_experts"]
    print_table(
        [
            ("scored", f"{record['windows']:,} {record['split']} windows, {record['scored_targets']:,} bytes"),
            ("best", f"{best} of {record['num_experts']} experts, {record['gain_of_best']:.4f} nats/byte below one"),
            ("the run's", f"{routed} active experts"),
        ]
    )
    sweep = record["sweep"]
    shown = sorted({row - 1 for row in (*_spread(len(sweep)), best, routed)})
    header = ["active experts", "nats/byte", "95% interval", "of the gain", "operations/byte"]
    print_columns(header, [_cells(sweep[place]) for place in shown])


def _spread(count: int) -> list[int]:
    """All of a few; of many the first, then ever larger steps to the last."""
    if count <= ROWS_SHOWN:
        return list(range(1, count + 1))
    return sorted({min(round(1.5**power), count) for power in range(ROWS_SHOWN)} | {count})


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["ci95"]
    part = row["part_of_gain"]
    return [
        str(row["active_experts"]),
        f"{row['loss']:.4f}",
        f"{low:.4f} to {high:.4f}",
        "-" if part is None else f"{part:.0%}",
        format_count(row["expert_operations_per_byte"]),
    ]
