"""What does it cost that two ranks make an update together: by losses, and by the paper's gradients?

``python bench/exchange.py [--json] [--record] [--repeats N]``.  Two processes of one thread share every update of one
expert, over this machine's loopback and over modelled links. First both forms' weights are compared with one process's,
bit for bit; where they differ no time is printed (exit status 1). Then updates by losses and by gradients are timed in
turn, round after round: medians, and (largest - smallest) / median beside them. Beside them stands what each rank
spends on rebuilding probes: all directions' where losses travel, its own half where gradients do.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from measuring import parsed, parser_of, publish
from thinwire.comm.collectives import barrier
from thinwire.comm.link import Link
from thinwire.comm.process import open_store
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import weighted_probe_sum
from thinwire.kernels.timing import spread_of
from thinwire.soma.compute import Compute
from thinwire.soma.config import TrainingConfig
from thinwire.soma.expert_job import ExpertJob, addresses_of, initial_state
from thinwire.soma.expert_update import evaluate_update
from thinwire.soma.perturbation_parallel import Crew, bytes_of_update, meet, parts_of
from training import make_job

RANKS, LOCALHOST, TIMEOUT_SECONDS = 2, "127.0.0.1", 300.0
LINKS: tuple[float, ...] = (0.0, 300e6, 100e6)
"""bit/s of each rank's end; 0 is the loopback as it is."""
ONE_CORE = Compute("numba", 1)


class Case(NamedTuple):
    name: str
    width: int
    directions: int
    batch: int
    window_bytes: int

    @property
    def config(self) -> TrainingConfig:
        return TrainingConfig(
            directions=self.directions,
            batch=self.batch,
            window_bytes=self.window_bytes,
            difference="one_sided",
        )


CASES = (
    Case("d=32, 1024 directions, 4 windows of 256", 32, 1024, 4, 256),
    Case("d=361, 64 directions, 4 windows of 64", 361, 64, 4, 64),
)
TINY = (Case("tiny", 8, 4, 2, 8),)


def forms_of(job: ExpertJob) -> dict[str, ExpertJob]:
    return {"scalars": job, "gradients": replace(job, gradient_parts=RANKS)}


def update_seconds(job: ExpertJob, crew: Crew) -> float:
    state = initial_state(job)
    barrier(crew.group)
    started = time.perf_counter()
    evaluate_update(job, state, compute=ONE_CORE, crew=crew)
    barrier(crew.group)
    return time.perf_counter() - started


def differs(job: ExpertJob, crew: Crew) -> list[str]:
    """Forms whose update on two ranks has other bits than in one process."""
    wrong = []
    for name, form in forms_of(job).items():
        together = evaluate_update(form, initial_state(form), compute=ONE_CORE, crew=crew).state.expert.theta
        alone = evaluate_update(form, initial_state(form), compute=ONE_CORE).state.expert.theta
        if not torch.equal(together, alone):
            wrong.append(f"{name}: other weights than one process's")
    return wrong


def rebuild_seconds(job: ExpertJob, *, directions: range) -> float:
    """The weighted sum of some directions' probes, on one core."""
    (address,) = addresses_of(job, 1)
    started = time.perf_counter()
    weighted_probe_sum(np.ones(len(directions)), address=address, shape=job.shape, first_direction=directions.start)
    return time.perf_counter() - started


def measured(case: Case, crew: Crew, *, folder: Path, link: float, repeats: int) -> dict[str, Any]:
    """One case on one link; on rank 0 the row, on the other what it took part in."""
    job = make_job(folder, config=case.config, shape=ExpertShape(width=case.width))
    if wrong := differs(job, crew):
        return {"wrong": [f"{case.name}: {one}" for one in wrong]}
    rounds = [{name: update_seconds(form, crew) for name, form in forms_of(job).items()} for _ in range(repeats)]
    own = parts_of(case.directions, parts=RANKS)[0]
    times = {name: spread_of([one[name] for one in rounds]) for name in rounds[0]}
    wholes = [rebuild_seconds(job, directions=range(case.directions)) for _ in range(repeats)]
    halves = [rebuild_seconds(job, directions=own) for _ in range(repeats)]
    parameters = job.shape.num_parameters
    by_losses, by_sums = (
        bytes_of_update(case.config, num_parameters=parameters, ranks=RANKS, gradient_parts=parts)
        for parts in (1, RANKS)
    )
    return {
        "case": f"{case.name}, {'loopback' if link == 0 else f'{link / 1e6:.0f} Mbit/s'}",
        "implementation": "numba",
        "link_bits_per_s": link,
        "parameters": parameters,
        "scalars_seconds": times["scalars"].median,
        "scalars_spread": times["scalars"].spread,
        "gradients_seconds": times["gradients"].median,
        "gradients_spread": times["gradients"].spread,
        "rebuild_all_seconds": float(np.median(wholes)),
        "rebuild_own_seconds": float(np.median(halves)),
        "scalars_bytes": sum(by_losses),
        "gradients_bytes": sum(by_sums),
        "repeats": repeats,
    }


def rank(number: int, *, port: int, folder: Path, repeats: int, is_tiny: bool) -> None:
    """One of the two processes; the first prints a row a line."""
    torch.set_num_threads(1)
    store = open_store(host=LOCALHOST, port=port, serve=False, timeout_seconds=TIMEOUT_SECONDS)
    for link in LINKS:
        place = {"rank": number, "size": RANKS, "name": f"link-{link}", "timeout_seconds": TIMEOUT_SECONDS}
        modelled = Link(link) if link else None
        with meet(store, **place, should_stop=lambda: False, link=modelled) as crew:
            for case in TINY if is_tiny else CASES:
                row = measured(case, crew, folder=folder / str(number), link=link, repeats=repeats)
                if number == 0:
                    print(json.dumps(row), flush=True)


def rows_of(*, repeats: int, is_tiny: bool) -> Iterator[dict[str, Any]]:
    """As they are measured."""
    store = open_store(host=LOCALHOST, port=0, serve=True, timeout_seconds=TIMEOUT_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        words = [str(store.port), folder, str(repeats), str(int(is_tiny))]
        second, first = (
            subprocess.Popen([sys.executable, __file__, "--child", number, *words], stdout=subprocess.PIPE, text=True)
            for number in ("1", "0")
        )
        for line in first.stdout or ():
            yield json.loads(line)
        if first.wait() or second.wait():
            raise SystemExit("a rank ended badly; what it said stands above")


def as_text(row: Mapping[str, Any]) -> str:
    lines = [f"{row['case']}: {row['parameters']:,} parameters, median of {row['repeats']}"]
    for form in ("scalars", "gradients"):
        seconds, spread, sent = (row[f"{form}_{key}"] for key in ("seconds", "spread", "bytes"))
        rebuilt = row["rebuild_all_seconds" if form == "scalars" else "rebuild_own_seconds"]
        lines.append(f"  {form:<9} {seconds:8.3f} s  [{spread:.0%}]  {sent:>13,} bytes, rebuilding {rebuilt:.3f} s")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 where ranks end with other weights than one process."""
    parser = parser_of("bench/exchange.py", "Updates that two ranks make together: by losses, and by gradients.")
    parser.add_argument("--tiny", action="store_true", help="a toy's sizes, to try the benchmark itself")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = parsed(parser, argv)
    if arguments.child:
        number, port, folder, repeats, tiny = arguments.child
        rank(int(number), port=int(port), folder=Path(folder), repeats=int(repeats), is_tiny=bool(int(tiny)))
        return 0
    rows = []
    for row in rows_of(repeats=arguments.repeats, is_tiny=arguments.tiny):
        if "wrong" in row:
            print("an update is wrong, so its time means nothing:", *row["wrong"], sep="\n  ", file=sys.stderr)
            return 1
        rows.append(row)
    publish(rows, arguments=arguments, bench="exchange", as_text=as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
