"""``thinwire measure throughput RUN``: how fast this machine trains and scores with a run's own experts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.base.units import format_seconds
from thinwire.cli.terminal import Terminal, print_columns, print_json, print_table
from thinwire.config.parse import parse
from thinwire.kernels.dispatch import Implementation
from thinwire.runs.layout import RunFolder

RESULT = "throughput.json"


@dataclass(frozen=True)
class ThroughputArguments:
    """Speed of a run's forward passes on this machine, beside the machine's peak; training, and routed scoring.

    Medians of rounds in which everything takes its turn. Kept in RUN/results/throughput.json.
    """

    run: tyro.conf.Positional[Path]
    """The run folder; it may still be in progress."""
    windows: int = 256
    """Test windows scored in a call, at most."""
    repeats: int = 5
    """Rounds."""
    threads: int = 0
    """Threads of the CPU; 0 takes all cores."""
    implementation: Implementation = "auto"
    """Whose speed: auto, numba, triton (a CUDA GPU) or reference."""
    json: bool = False
    """Print one JSON object."""


def throughput(argv: list[str]) -> None:
    arguments = parse(ThroughputArguments, argv, prog="thinwire measure throughput")
    for name in ("windows", "repeats"):
        if getattr(arguments, name) < 1:
            raise UserError("there is nothing to measure", where=f"--{name}", fix="give 1 or more")
    if arguments.threads < 0:
        raise UserError("a number of threads cannot be negative", where="--threads", fix="give 1 or more, or 0")
    from thinwire.launch.local import available_cores
    from thinwire.soma.throughput import Rounds, measure_throughput

    rounds = Rounds(
        arguments.windows, arguments.repeats, arguments.threads or available_cores(), arguments.implementation
    )
    with Terminal().progress() as progress:
        record = measure_throughput(arguments.run, rounds=rounds, progress=progress)
    write_json(RunFolder(arguments.run).results / RESULT, record)
    if arguments.json:
        print_json(record)
    else:
        _print(record)


def _print(record: dict[str, Any]) -> None:
    inference, training = record["inference"], record["training"]
    experts = f"{inference['active_experts']} of {inference['num_experts']} experts"
    scoring = f"{inference['tokens_per_s']:,.0f} scored bytes/s, {experts}, routing {inference['routing_share']:.1%}"
    threads = f", {record['threads']} threads" if record["threads"] else ""
    print_table(
        [
            ("on", f"{record['device']}{threads}, {record['implementation']}"),
            ("expert", f"width {record['width']}, depth {record['depth']}, {record['num_parameters']:,} parameters"),
            ("peak", f"{record['peak_flops_per_s'] / 1e9:,.1f} GFLOP/s, single precision"),
            ("an update", f"{format_seconds(training['forward_seconds_per_update'])} of forwards"),
            ("scoring", scoring),
        ]
    )
    rows = [["training", *_cells(training)], ["routed scoring", *_cells(inference)]]
    print_columns(["", "byte-forwards/s", "spread", "GFLOP/s", "of the peak"], rows)


def _cells(rates: dict[str, Any]) -> list[str]:
    return [
        f"{rates['byte_forwards_per_s']:,.0f}",
        f"{rates['spread']:.0%}",
        f"{rates['flops_per_s'] / 1e9:,.1f}",
        f"{rates['fraction_of_peak']:.1%}",
    ]
