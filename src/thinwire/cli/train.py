"""``thinwire train PRESET --data DATA --out RUN [--section.key value ...]``"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.cli.program import program
from thinwire.cli.terminal import Terminal, print_json, print_table
from thinwire.config.parse import parse
from thinwire.experiments.registry import describe, preset
from thinwire.soma.config import SomaConfig


@dataclass(frozen=True)
class Arguments:
    """Train a preset on a data folder, or go on with the run that is there."""

    data: Path
    """A data folder made by 'thinwire prepare'."""
    out: Path
    """The run folder; an unfinished or shorter run in it goes on."""
    config: Annotated[SomaConfig, tyro.conf.arg(name="")]
    json: bool = False
    """Print one JSON object: the test scores."""


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<22}{line}" for name, line in describe().items())
        usage = "usage: thinwire train PRESET --data DATA --out RUN [--section.key value ...]"
        sys.stdout.write(f"{usage}\n\npresets:\n{listed}\n\nthinwire train PRESET --help lists its settings.\n")
        return
    name, rest = argv[0], argv[1:]
    if name.startswith("-"):
        raise UserError(
            "the preset comes first", where="thinwire train PRESET ...", fix="thinwire train --help lists them"
        )
    arguments = _parse(preset(name), rest, prog=f"thinwire train {name}")
    from thinwire.soma.recipe import train  # the heavy imports come after the flags are known to be right

    terminal = Terminal()
    with terminal.progress() as progress:
        record = train(
            arguments.config,
            data=arguments.data,
            out=arguments.out,
            preset=name,
            command=shlex.join([program(), "train", *argv]),
            voice=Voice(progress, terminal.say),
        )
    if arguments.json:
        print_json(record)
        return
    from thinwire.cli.evaluate import score_rows

    print_table([*score_rows(record), ("run folder", str(arguments.out))])


def _parse(config: SomaConfig, argv: list[str], *, prog: str) -> Arguments:
    def fill(
        data: Path,
        out: Path,
        config: Annotated[SomaConfig, tyro.conf.arg(name="")] = config,
        json: bool = False,
    ) -> Arguments:
        return Arguments(data, out, config, json)

    fill.__doc__ = f"""{Arguments.__doc__}

    Args:
        data: A data folder made by 'thinwire prepare'.
        out: The run folder; an unfinished or shorter run in it goes on.
        json: Print one JSON object, the test scores.
    """
    return parse(fill, argv, prog=prog)
