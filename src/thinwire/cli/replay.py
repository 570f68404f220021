"""``thinwire replay RUN --to UPDATE --out DIR``"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from thinwire.base.errors import RunFailedError, UserError
from thinwire.cli.terminal import Terminal, print_json, print_table
from thinwire.config.parse import parse


@dataclass(frozen=True)
class Arguments:
    """Rebuild weights from the scalar log, without a perturbed forward pass."""

    run: tyro.conf.Positional[Path]
    """A run folder."""
    to: int
    """The update whose weights are wanted."""
    out: Path
    """Where to write them: OUT/JOB/checkpoints/."""
    job: str = "experts"
    """Which: 'experts' (all), 'seed', or an expert's number."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire replay")
    from thinwire.launch.local import available_cores
    from thinwire.soma.compute import Compute
    from thinwire.soma.replay import replay
    from thinwire.soma.run import SomaRun

    run, terminal = SomaRun.open(arguments.run), Terminal()
    names = [str(index) for index in range(run.num_experts)]
    if arguments.job != "experts":
        if arguments.job not in [*names, "seed"]:
            fix = f"'experts', 'seed' or 0 to {run.num_experts - 1}"
            raise UserError(f"there is no job '{arguments.job}'", where="--job", fix=fix)
        names = [arguments.job]
    compute = Compute(run.config.launch.implementation, available_cores())
    with terminal.progress() as progress:
        results = replay(
            arguments.run, update=arguments.to, out=arguments.out, jobs=names, compute=compute, progress=progress
        )
    verdicts = {True: "equal to the checkpoint, bit for bit", False: "DIFFERS from the checkpoint", None: "rebuilt"}
    if arguments.json:
        jobs = [{"job": r.job, "update": r.update, "agrees_with_checkpoint": r.agrees} for r in results]
        print_json({"update": arguments.to, "out": str(arguments.out), "jobs": jobs})
    else:
        print_table(
            [(f"job {r.job}, update {r.update}", verdicts[r.agrees]) for r in results]
            + [("written to", str(arguments.out))]
        )
    differing = [r.job for r in results if r.agrees is False]
    if differing:
        raise RunFailedError(f"replay differs from the checkpoint of update {arguments.to}: {', '.join(differing)}")
