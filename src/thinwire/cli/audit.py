"""``thinwire audit RUN --updates N``"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from thinwire.base.errors import RunFailedError
from thinwire.cli.terminal import Terminal, print_columns, print_json
from thinwire.config.parse import parse


@dataclass(frozen=True)
class Arguments:
    """Evaluate randomly chosen updates of a SOMA run again, and compare the losses with those in its log."""

    run: tyro.conf.Positional[Path]
    """A run folder."""
    updates: int = 10
    """How many, of all jobs together."""
    seed: int = 0
    """Of the draw."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire audit")
    from thinwire.launch.local import available_cores
    from thinwire.soma.audit import audit
    from thinwire.soma.compute import Compute
    from thinwire.soma.run import SomaRun, job_label

    terminal = Terminal()
    compute = Compute(SomaRun.open(arguments.run).config.launch.implementation, available_cores())
    with terminal.progress() as progress:
        found = audit(arguments.run, updates=arguments.updates, seed=arguments.seed, compute=compute, progress=progress)
    differing = [one for one in found if not one.agrees]
    if arguments.json:
        rows = [one._asdict() | {"is_equal": one.is_equal, "agrees": one.agrees} for one in found]
        print_json({"updates": len(found), "agree": len(found) - len(differing), "audited": rows})
    else:
        print_columns(
            ["job", "update", "logged loss", "found", "largest difference", ""],
            [
                [
                    job_label(one.job),
                    f"{one.update:,}",
                    f"{one.logged_loss:.6f}",
                    f"{one.found_loss:.6f}",
                    f"{one.largest_difference:.1e}",
                    _verdict(is_equal=one.is_equal, agrees=one.agrees, has_same_text=one.has_same_text),
                ]
                for one in found
            ],
        )
    if differing:
        raise RunFailedError(f"{len(differing)} of {len(found)} updates are not what the log says")


def _verdict(*, is_equal: bool, agrees: bool, has_same_text: bool) -> str:
    if not has_same_text:
        return "OTHER TEXT"
    return "equal" if is_equal else "agrees" if agrees else "DIFFERS"
