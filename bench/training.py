"""Where does a whole update's time go, does memory grow with the directions, and how long does compilation take?

``python bench/training.py [--json] [--record] [--repeats N]``.  First the kernels' correctness cases and the probes'
bits are checked; where one fails no time is printed (exit status 1).  Then, for d = 32 and windows of 1,024 bytes:

- a whole update: ``evaluate_update`` with batches, forwards, weighted sum and Adam, the scalar log's record, and the
  preset's share of a line of the log (1/10), a validation (1/100) and a checkpoint (1/200), each timed by itself;
- of that, the part inside ``expert_losses``; probe generation, which happens in there, by itself for every signed
  direction on one core; the weighted sum by itself;
- peak memory of fresh processes with 64 and 4,096 directions;
- seconds that a fresh process spends in the first call of every kernel, with an empty cache and with a full one.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

import kernels
from measuring import parsed, parser_of, publish
from thinwire.base.files import append_json_line
from thinwire.base.progress import Voice
from thinwire.base.seeds import stream_key
from thinwire.data.shards import ByteShards, ShardWriter
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe, weighted_probe_sum
from thinwire.kernels.sign_probe.cases import CASES as PROBE_CASES
from thinwire.kernels.sign_probe.cpu_impl import perturb
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.timing import spread_of
from thinwire.runs.layout import JobFolder
from thinwire.soma import expert_job, expert_update, job_checkpoint, job_log
from thinwire.soma.compute import Compute
from thinwire.soma.config import Difference, TrainingConfig
from thinwire.soma.expert_job import ExpertJob, ExpertState
from thinwire.soma.expert_training import log_header
from thinwire.soma.model import initial_expert
from thinwire.soma.scalar_log import ScalarLog
from thinwire.soma.warm_kernels import warm_kernels

SHAPE = ExpertShape(width=32)
WINDOW_BYTES, CORPUS_WINDOWS, THREADS = 1024, 512, 2
COMPUTE = Compute("numba", THREADS)
MEMORY_DIRECTIONS = (64, 4096)
MEMORY_WINDOW_BYTES = 64


class UpdateCase(NamedTuple):
    name: str
    directions: int
    batch: int
    difference: Difference


CASES = (
    UpdateCase("64 directions, 64 windows, central", 64, 64, "central"),
    UpdateCase("1024 directions, 4 windows, one-sided", 1024, 4, "one_sided"),
    UpdateCase("1024 directions, 16 windows, one-sided", 1024, 16, "one_sided"),
)


def failures() -> list[str]:
    """What is wrong with the kernels of an update; empty where nothing is."""
    wrong = kernels.failures("numba")
    for case in PROBE_CASES:
        address = ProbeAddress(stream_key(0, "bench"), case.update, case.accumulation)
        kwargs = {"shape": case.shape, "direction": case.direction}
        exact = sign_probe(address, **kwargs, implementation="reference")
        if not np.array_equal(sign_probe(address, **kwargs), exact):
            wrong.append(f"probe, {case.name}: other bits than the reference")
    return wrong


def make_job(folder: Path, *, config: TrainingConfig, shape: ExpertShape = SHAPE) -> ExpertJob:
    """An expert on random bytes; nothing that is timed depends on what they are."""
    if not (folder / "starts.bin").is_file():
        text = np.random.default_rng(0).integers(1, 256, CORPUS_WINDOWS * WINDOW_BYTES, dtype=np.uint8)
        with ShardWriter(folder) as writer:
            writer.add(text.tobytes(), source=0)
    indices = np.arange(CORPUS_WINDOWS)
    return ExpertJob(
        expert=0,
        seed=0,
        config=config,
        shape=shape,
        start=initial_expert(shape, seed=0),
        shards=ByteShards.open(folder),
        train=indices[: CORPUS_WINDOWS // 2],
        validation=indices[CORPUS_WINDOWS // 2 :],
        cluster_window_bytes=WINDOW_BYTES,
    )


class Clock:
    """Adds up the seconds spent in a function while it is patched."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def around(self, module: Any, name: str) -> Iterator[None]:
        original = getattr(module, name)

        def timed(*arguments: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*arguments, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        with mock.patch.object(module, name, timed):
            yield


def seconds_of(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def probe_seconds(case: UpdateCase) -> float:
    """Every signed direction of an update perturbed once, on one core."""
    theta, always = np.zeros(SHAPE.num_parameters, np.float32), gain_words(SHAPE)
    out, key, step = np.empty_like(theta), stream_key(0, "probe"), np.float32(1e-3)
    signed = case.directions * (2 if case.difference == "central" else 1)
    started = time.perf_counter()
    for index in range(signed):
        perturb(theta, always, key.low, key.high, index, 1, 0, step, out)
    return time.perf_counter() - started


def one_round(job: ExpertJob, state: ExpertState, *, folder: JobFolder, log: ScalarLog, case: UpdateCase) -> dict:
    """Seconds of every part of an update, once."""
    clock, config = Clock(), job.config
    started = time.perf_counter()
    with clock.around(expert_update, "expert_losses"):
        evaluated = expert_update.evaluate_update(job, state, compute=COMPUTE)
    update = time.perf_counter() - started
    weights = np.ones(case.directions)
    address = ProbeAddress(stream_key(0, "probe"), 1)
    parts = {
        "record_seconds": seconds_of(lambda: log.append(evaluated.record)),
        "line_seconds": seconds_of(lambda: append_json_line(folder.log, job_log.update_line(job, evaluated.record))),
        "validation_seconds": seconds_of(
            lambda: expert_update.validation_loss(job, evaluated.state.expert, compute=COMPUTE)
        ),
        "checkpoint_seconds": seconds_of(lambda: job_checkpoint.save_state(job, evaluated.state, folder)),
        "probe_seconds": probe_seconds(case) / THREADS,
        "sum_seconds": seconds_of(lambda: weighted_probe_sum(weights, address=address, shape=SHAPE, threads=THREADS)),
    }
    whole = update + parts["record_seconds"] + parts["line_seconds"] / config.log_every
    whole += parts["validation_seconds"] / config.validate_every + parts["checkpoint_seconds"] / config.checkpoint_every
    return parts | {
        "whole_update_seconds": whole,
        "losses_seconds": clock.seconds,
        "losses_share": clock.seconds / whole,
        "probe_and_sum_share": (parts["probe_seconds"] + parts["sum_seconds"]) / whole,
    }


def measure_update(case: UpdateCase, *, folder: Path, repeats: int) -> dict[str, Any]:
    """Medians of the rounds, and the spread of the whole update."""
    torch.set_num_threads(1)
    config = TrainingConfig(
        directions=case.directions, batch=case.batch, window_bytes=WINDOW_BYTES, difference=case.difference
    )
    job = make_job(folder / "text", config=config)
    state = expert_job.initial_state(job)
    warm_kernels(job.start, config=config, shape=SHAPE, implementation="numba", voice=Voice())
    job_folder = JobFolder(folder / case.name.replace(" ", "-"))
    job_folder.root.mkdir()
    log = ScalarLog(job_folder.scalars, good_bytes=0, header=log_header(job))
    rounds = [one_round(job, state, folder=job_folder, log=log, case=case) for _ in range(repeats)]
    log.close()
    forwards = expert_job.byte_forwards_per_update(config)
    medians = {name: spread_of([one[name] for one in rounds]).median for name in rounds[0]}
    return {
        "case": case.name,
        "implementation": "numba",
        **medians,
        "whole_update_spread": spread_of([one["whole_update_seconds"] for one in rounds]).spread,
        "byte_forwards_per_s": forwards / medians["whole_update_seconds"],
        "repeats": repeats,
    }


def in_fresh_process(*arguments: str, cache: Path | None = None) -> dict[str, float]:
    """What ``bench/training.py --child ...`` prints."""
    environment = dict(os.environ) | ({"NUMBA_CACHE_DIR": str(cache)} if cache else {})
    command = [sys.executable, __file__, "--child", *arguments]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(finished.stdout)


def measure_memory(folder: Path) -> dict[str, Any]:
    """Peak resident bytes of one update of a fresh process, by number of directions."""
    peaks = {n: in_fresh_process("memory", str(n), str(folder))["peak_bytes"] for n in MEMORY_DIRECTIONS}
    few, many = (peaks[n] for n in MEMORY_DIRECTIONS)
    names = {f"peak_bytes_{n}_directions": peak for n, peak in peaks.items()}
    return {"case": "memory", "implementation": "numba", **names, "growth_bytes": many - few}


def measure_compilation() -> dict[str, Any]:
    """First calls with an empty cache, then with the one that it left."""
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (in_fresh_process("compile", cache=Path(cache))["seconds"] for _ in range(2))
    return {"case": "compilation", "implementation": "numba", "cold_seconds": cold, "warm_seconds": warm}


def rows_of(*, repeats: int) -> Iterator[dict[str, Any]]:
    """As they are measured."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for case in CASES:
            yield measure_update(case, folder=folder, repeats=repeats)
        yield measure_memory(folder / "text")
    yield measure_compilation()


def peak_bytes() -> float:
    """The largest resident size of this program. ``getrusage`` would not do: its maximum survives ``exec``, so that a
    child smaller than this benchmark reports the benchmark's size."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[1])


def child(arguments: Sequence[str]) -> dict[str, float]:
    """One measurement that needs a process of its own."""
    if arguments[0] == "compile":
        config = TrainingConfig(batch=16, difference="one_sided", decoder="trained")
        start = initial_expert(SHAPE, seed=0)
        return {"seconds": warm_kernels(start, config=config, shape=SHAPE, implementation="numba", voice=Voice())}
    config = TrainingConfig(directions=int(arguments[1]), batch=4, window_bytes=MEMORY_WINDOW_BYTES)
    job = make_job(Path(arguments[2]), config=config)
    expert_update.evaluate_update(job, expert_job.initial_state(job), compute=COMPUTE)
    return {"peak_bytes": peak_bytes()}


def as_text(row: Mapping[str, Any]) -> str:
    if row["case"] == "memory":
        few, many = (f"{row[f'peak_bytes_{n}_directions'] / 1e6:.0f} MB with {n}" for n in MEMORY_DIRECTIONS)
        return f"memory: peak {few} directions, {many}"
    if row["case"] == "compilation":
        cold, warm = row["cold_seconds"], row["warm_seconds"]
        return f"compilation: {cold:.1f} s with an empty cache, {warm:.1f} s with a full one"
    milliseconds = {name.removesuffix("_seconds"): 1e3 * row[name] for name in row if name.endswith("_seconds")}
    small = ", ".join(f"{name} {milliseconds[name]:.2f} ms" for name in ("validation", "checkpoint", "record", "line"))
    lines = (
        f"{row['case']} (median of {row['repeats']})",
        f"  whole update      {row['whole_update_seconds']:8.3f} s  [{row['whole_update_spread']:.0%}]",
        f"  expert_losses     {row['losses_share']:8.1%}",
        f"  probes and sum    {row['probe_and_sum_share']:8.2%}",
        f"  probes {milliseconds['probe']:.1f} ms, sum {milliseconds['sum']:.1f} ms, {small}",
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 where a correctness case fails."""
    parser = parser_of("bench/training.py", "Where a whole update's time goes.")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parsed(parser, argv)
    if arguments.child:
        print(json.dumps(child(arguments.child)))
        return 0
    if wrong := failures():
        print("a kernel is wrong, so its time means nothing:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    publish(rows_of(repeats=arguments.repeats), arguments=arguments, bench="training", as_text=as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
