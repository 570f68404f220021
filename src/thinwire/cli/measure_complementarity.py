"""``thinwire measure complementarity RUN``: do experts whose errors differ gain more from being averaged?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from thinwire.base.files import write_json
from thinwire.cli.terminal import Terminal, print_columns, print_json, print_table
from thinwire.config.parse import parse
from thinwire.runs.layout import RunFolder

RESULT = "complementarity.json"
TWO_EXPERTS = "errors of two experts about their mean are opposite, so the correlation of -1 says nothing"


@dataclass(frozen=True)
class ComplementarityArguments:
    """Every pair of a run's experts: what averaging the two gains, against how alike their errors are.

    An error is an expert's loss on a byte less the mean of all experts there. Kept in
    RUN/results/complementarity.json.
    """

    run: tyro.conf.Positional[Path]
    """The run folder; it may still be in progress."""
    split: Literal["valid", "test"] = "valid"
    """Whose documents are scored."""
    windows: int = 0
    """At most so many windows, one a document; 0 takes as many as the run's test."""
    json: bool = False
    """Print one JSON object."""


def complementarity(argv: list[str]) -> None:
    arguments = parse(ComplementarityArguments, argv, prog="thinwire measure complementarity")
    from thinwire.launch.local import available_cores
    from thinwire.soma.complementarity import measure_complementarity
    from thinwire.soma.every_expert import HeldOut

    held_out = HeldOut(arguments.split, arguments.windows, available_cores())
    with Terminal().progress() as progress:
        record = measure_complementarity(arguments.run, held_out=held_out, progress=progress)
    write_json(RunFolder(arguments.run).results / RESULT, record)
    if arguments.json:
        print_json(record)
    else:
        _print(record)


def _print(record: dict[str, Any]) -> None:
    scored = f"{record['windows']:,} {record['split']} windows, {record['scored_targets']:,} bytes"
    print_table(
        [
            ("scored", scored),
            ("pairs", f"{record['num_pairs']:,} of {record['num_experts']} experts"),
            ("mean reduction", f"{record['mean_reduction']:.4f} nats/byte below the mean of the two"),
            ("slope", slope_words(record)),
            *([("note", TWO_EXPERTS)] if record["num_experts"] == 2 else []),
        ]
    )
    print_columns(
        ["pairs", "correlation", "reduction", "+-"],
        [
            [
                f"{group['pairs']:,}",
                f"{group['correlation']:+.3f}",
                f"{group['reduction']:.4f}",
                f"{group['standard_error']:.4f}",
            ]
            for group in record["bins"]
        ],
    )


def slope_words(record: dict[str, Any]) -> str:
    slope, between = record["slope"], record["slope_ci95"]
    if slope is None:
        return "none: the pairs are all equally alike"
    words = f"{slope:+.4f} nats/byte a unit of correlation"
    if between is None:
        return f"{words} (an interval needs 4 experts)"
    return f"{words} [{between[0]:+.4f}, {between[1]:+.4f}]"
