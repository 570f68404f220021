"""``thinwire train PRESET --data DATA --out RUN [--section.key value ...]``"""

import shlex
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.cli.program import program
from thinwire.cli.terminal import Terminal, print_json, print_table
from thinwire.config.parse import parse
from thinwire.experiments.registry import Config, describe, preset


@dataclass(frozen=True)
class Arguments:
    """Train a preset on a data folder, or go on with the run that is there."""

    data: Path
    out: Path
    config: Config
    json: bool


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        presets = describe()
        width = max(map(len, presets))
        columns = max(shutil.get_terminal_size().columns, 2 * width)
        listed = "\n".join(
            textwrap.fill(f"  {name:<{width}}  {line}", columns, subsequent_indent=" " * (width + 4))
            for name, line in presets.items()
        )
        usage = "usage: thinwire train PRESET --data DATA --out RUN [--section.key value ...]"
        sys.stdout.write(f"{usage}\n\npresets:\n{listed}\n\nthinwire train PRESET --help lists its settings.\n")
        return
    name, rest = argv[0], argv[1:]
    if name.startswith("-"):
        raise UserError(
            "the preset comes first", where="thinwire train PRESET ...", fix="thinwire train --help lists them"
        )
    arguments = _parse(preset(name), rest, prog=f"thinwire train {name}")
    from thinwire.api.verbs import train  # the heavy imports come after the flags are known to be right

    terminal = Terminal()
    with terminal.progress() as progress:
        record = train(
            arguments.config,
            data=arguments.data,
            out=arguments.out,
            preset=name,
            command=shlex.join([*program(), "train", *argv]),
            voice=Voice(progress, terminal.say) if _is_heard() else Voice(),
        )
    if not record:  # this process is one rank of many, and the first one reports
        return
    if arguments.json:
        print_json(record)
        return
    from thinwire.cli.evaluate import score_rows

    print_table([*score_rows(record), ("run folder", str(arguments.out))])


def _is_heard() -> bool:
    """Of the ranks of one run that torchrun started, only the first speaks."""
    from thinwire.comm.process import place_from_environment

    place = place_from_environment()
    return place is None or place.rank == 0


def _parse(config: Config, argv: list[str], *, prog: str) -> Arguments:
    """The flags of the preset's own method, filled with its settings."""

    def fill(data: Path, out: Path, config: Any = config, json: bool = False) -> Arguments:
        return Arguments(data, out, config, json)

    fill.__annotations__["config"] = Annotated[type(config), tyro.conf.arg(name="")]
    fill.__doc__ = f"""{Arguments.__doc__}

    Args:
        data: A data folder made by 'thinwire prepare'.
        out: The run folder; an unfinished run in it goes on (of SOMA and EGGROLL, one with fewer updates too).
        json: Print one JSON object, the test scores.
    """
    return parse(fill, argv, prog=prog)
