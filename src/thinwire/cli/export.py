"""``thinwire export RUN --out DIR``"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from thinwire.base.units import format_bytes, format_count
from thinwire.cli.terminal import print_json, print_table
from thinwire.config.parse import parse


@dataclass(frozen=True)
class Arguments:
    """Write a run's model as a stock Hugging Face Llama, which loads with no code of ours."""

    run: tyro.conf.Positional[Path]
    """A run folder of a subspaces preset."""
    out: Path
    """The folder to make; it must be new or empty."""
    json: bool = False
    """Print one JSON object: what was written."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire export")
    from thinwire.api.verbs import export

    done = export(arguments.run, out=arguments.out)
    if arguments.json:
        print_json(
            {
                "out": str(done.folder),
                "files": list(done.files),
                "num_bytes": done.num_bytes,
                "num_parameters": done.num_parameters,
                "model": done.model,
                "phase": done.phase,
                "step": done.step,
                "planned_steps": done.planned_steps,
            }
        )
        return
    state = "" if done.step >= done.planned_steps else f" of {done.planned_steps:,}: training is not finished"
    print_table(
        [
            ("model", f"{done.model} Llama, {format_count(done.num_parameters)} parameters"),
            ("checkpoint", f"update {done.step:,}{state}"),
            ("files", f"{', '.join(done.files)} ({format_bytes(done.num_bytes)})"),
            ("folder", str(done.folder)),
        ]
    )
