"""How fast does a routed ensemble score and write text here, routing included, and how soon does the first byte come?

``python bench/inference.py [--json] [--record] [--repeats N] [--data DATA]``.  256 experts of width 32 with random
weights, four active; a router for 256 clusters, fitted on 16,384 windows of a prepared folder's text (``--data``) or
of text made up from a fixed seed.  First the kernels are compared with FP64 on the shared cases, and the timed ensemble
with eager PyTorch, two threads with one, windows and texts alone with the same in a batch; where one differs no speed
is printed (exit status 1).

Scoring is ``score_windows`` whole: routing by the first 256 bytes, four experts over 1,024 bytes, mixture in FP64.
Writing is ``generate``: routing, reading a prompt of 256 bytes, then 256 bytes one at a time, for 16 prompts.  A
byte-forward is one byte through one expert; operations are counted as in Eq. (21), for every byte.  Some are not done:
those that the table of 256 bytes saves, as in training, and logits that nobody asked for (of the bytes that route, or
of a prompt); ``done_fraction_of_fma_peak`` leaves both out.  The speed is of two cores, the fraction of the peak of
one; the training kernel's fractions from the same rounds stand beside it.

The eager baseline is the reference in FP32 at the better of one and two threads, without routing and mixture: requests
of the two busiest experts of the call; for writing, the experts of one text read its bytes, without sampling.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from forward_speed import contestants_of, lines_of, measures_of
from inference_checks import disagreements, failures
from inference_ensemble import PREFIX_BYTES, load_saved, make_ensemble, save, windows_for
from measuring import parsed, parser_of, publish
from sgemm import operations_done
from thinwire.base.errors import UserError
from thinwire.base.seeds import stream_key
from thinwire.kernels.dispatch import IMPLEMENTATIONS, choose
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import VOCABULARY
from thinwire.kernels.routed_scores.api import routed_scores
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.kernels.timing import spread_of, timed_in_turn
from thinwire.soma.ensemble import Ensemble, score_windows
from thinwire.soma.generate import generate, generate_batch

SCORED_WINDOWS = (16_384, 4096, 1024, 64)
NUM_PROMPTS = 16
WRITTEN_BYTES = 256
EAGER_EXPERTS, EAGER_REQUESTS = 2, 128
TRAINING_WINDOWS = 64


class Work(NamedTuple):
    """One thing to time.

    Attributes:
        run: does all of it with so many threads.
        route: the routing that it contains, alone.
        eager: byte-forwards done by the reference.
        byte_forwards: of ``run``.
        without_logits: the share of them that have no logits.
    """

    name: str
    run: Callable[[int], object]
    route: Callable[[], object]
    eager: Callable[[], float]
    byte_forwards: float
    without_logits: float


def eager_reading(ensemble: Ensemble, windows: np.ndarray, experts: np.ndarray) -> float:
    """Byte-forwards of windows [n, T + 1] under experts [n, 1]."""
    routed_scores(
        ensemble.thetas,
        shape=ensemble.shape,
        decoder=ensemble.decoder,
        windows=torch.from_numpy(windows),
        experts=torch.from_numpy(experts.astype(np.int64)),
        first_target=0,
        implementation="reference",
    )
    return float(experts.size * (windows.shape[1] - 1))


def scoring(ensemble: Ensemble, windows: np.ndarray, *, implementation: str) -> Work:
    prefixes = [window[:PREFIX_BYTES].tobytes() for window in windows]
    experts = ensemble.route(prefixes).experts
    busiest = np.argsort(-np.bincount(experts.ravel()), kind="stable")[:EAGER_EXPERTS]
    rows, slots = (some[:EAGER_REQUESTS] for some in np.nonzero(np.isin(experts, busiest)))
    return Work(
        name=f"score {len(windows)} windows, N={ensemble.num_experts}, k={experts.shape[1]}, d={ensemble.shape.width}",
        run=lambda threads: score_windows(ensemble, windows, threads=threads, implementation=implementation),
        route=lambda: ensemble.route(prefixes),
        eager=lambda: eager_reading(ensemble, windows[rows], experts[rows, slots][:, None]),
        byte_forwards=float(experts.size * (windows.shape[1] - 1)),
        without_logits=PREFIX_BYTES / (windows.shape[1] - 1),
    )


def writing(ensemble: Ensemble, prompts: list[bytes], *, at_once: int) -> Work:
    """All prompts, ``at_once`` in a call: ``generate`` of one text, ``generate_batch`` of several."""
    experts = ensemble.route(prompts[:1]).experts[0]
    text = prompts[0] + generate(ensemble, prompts[0], num_bytes=WRITTEN_BYTES + 1).text
    windows = np.tile(np.frombuffer(text, np.uint8), (len(experts), 1))
    calls = [prompts[first : first + at_once] for first in range(0, len(prompts), at_once)]
    count = "one text" if at_once == 1 else f"{at_once} texts at once"
    size = f"N={ensemble.num_experts}, k={len(experts)}, d={ensemble.shape.width}"

    def run(threads: int) -> None:
        for some in calls:
            generate_batch(ensemble, some, num_bytes=WRITTEN_BYTES, threads=threads)

    def route() -> None:
        for some in calls:
            ensemble.route(some)

    return Work(
        name=f"write {count}, {len(prompts[0])} bytes read and {WRITTEN_BYTES} written, {size}",
        run=run,
        route=route,
        eager=lambda: eager_reading(ensemble, windows, experts[:, None]),
        byte_forwards=float(len(prompts) * experts.size * (len(prompts[0]) + WRITTEN_BYTES)),
        without_logits=(len(prompts[0]) - 1) / (len(prompts[0]) + WRITTEN_BYTES),
    )


def training_forwards(ensemble: Ensemble) -> float:
    """Two signed pairs of the paper's update on one core; byte-forwards."""
    windows = torch.randint(0, 256, (TRAINING_WINDOWS, 1025), generator=torch.Generator().manual_seed(0))
    expert_losses(
        ensemble.thetas[0],
        shape=ensemble.shape,
        decoder=ensemble.decoder,
        windows=windows.to(torch.uint8),
        address=ProbeAddress(stream_key(0, "bench"), 1),
        directions=range(2),
        epsilon=1e-3,
        implementation="numba",
    )
    return 4.0 * TRAINING_WINDOWS * 1024


def measure(work: Work, ensemble: Ensemble, *, implementation: str, repeats: int) -> dict[str, Any]:
    """One row of the result; keys as in the contract, and spreads beside them."""

    def run(threads: int) -> float:
        work.run(threads)
        return work.byte_forwards

    def routed() -> float:
        work.route()
        return 1.0

    contestants = contestants_of(one_core=lambda: run(1), two_cores=lambda: run(2), eager=work.eager)
    contestants |= {"routing": routed, "training": lambda: training_forwards(ensemble)}
    for warm in ("peak loop", "matrix product", "two cores", "training"):
        contestants[warm]()
    timed, operations = timed_in_turn(contestants, repeats=repeats), ensemble.shape.operations_per_byte
    row = {"case": work.name, "implementation": implementation}
    row |= measures_of(timed, operations_per_byte=operations, repeats=repeats)
    done = operations_done(ensemble.shape) - work.without_logits * 2 * VOCABULARY * ensemble.shape.embed_width
    return row | {
        "done_fraction_of_fma_peak": row["fraction_of_fma_peak"] * done / operations,
        "training_fraction_of_fma_peak": timed["training"].median * operations / row["fma_peak_flops_per_s"],
        "training_done_fraction_of_fma_peak": timed["training"].median
        * operations_done(ensemble.shape)
        / row["fma_peak_flops_per_s"],
        # The same routing whether one core works on the rest or two, hence the larger of the two shares.
        "routing_share": row["byte_forwards_per_s"] / work.byte_forwards / timed["routing"].median,
        "tokens_per_s": row["byte_forwards_per_s"] / ensemble.active_experts,
        "resident_bytes": ensemble.resident.num_bytes,
    }


def first_bytes(ensemble: Ensemble, prompts: list[bytes], folder: Path, *, repeats: int) -> dict[str, Any]:
    """Seconds from a prompt to its first byte: experts packed, not yet packed, and from the start of a process."""

    def seconds(run: Callable[[bytes], object]) -> dict[str, float]:
        taken = []
        for prompt in prompts[: max(repeats, 3)]:
            started = time.perf_counter()
            run(prompt)
            taken.append(time.perf_counter() - started)
        return spread_of(taken)._asdict()

    save(ensemble, folder)
    command = [sys.executable, str(Path(__file__).resolve()), "--first-byte", str(folder)]
    ways: dict[str, Callable[[bytes], object]] = {
        "first_byte": lambda prompt: generate(ensemble, prompt, num_bytes=1),
        "unpacked_first_byte": lambda prompt: generate(replace(ensemble), prompt, num_bytes=1),
        "process_first_byte": lambda prompt: subprocess.run(
            command, input=prompt, stdout=subprocess.DEVNULL, check=True
        ),
    }
    found: dict[str, Any] = {}
    for name, run in ways.items():
        run(prompts[0])
        measured = seconds(run)
        found |= {f"{name}_seconds": measured["median"], f"{name}_spread": measured["spread"]}
    return found


def rows_of(ensemble: Ensemble, windows: np.ndarray, *, implementation: str, repeats: int) -> list[dict[str, Any]]:
    works = [scoring(ensemble, windows[:count], implementation=implementation) for count in SCORED_WINDOWS]
    rows = [measure(work, ensemble, implementation=implementation, repeats=repeats) for work in works]
    prompts = [window[:PREFIX_BYTES].tobytes() for window in windows[:NUM_PROMPTS]]
    for at_once in (1, NUM_PROMPTS):
        work = writing(ensemble, prompts, at_once=at_once)
        row = measure(work, ensemble, implementation=implementation, repeats=repeats)
        share = WRITTEN_BYTES / (WRITTEN_BYTES + PREFIX_BYTES) / ensemble.active_experts
        row |= {"written_bytes_per_s": row["byte_forwards_per_s"] * share}
        rows.append(row | {"one_core_written_bytes_per_s": row["one_core_byte_forwards_per_s"] * share})
    with tempfile.TemporaryDirectory() as folder:
        rows[-2] |= first_bytes(ensemble, prompts, Path(folder), repeats=repeats)
    later = WRITTEN_BYTES / rows[-2]["one_core_written_bytes_per_s"] - rows[-2]["first_byte_seconds"]
    rows[-2] |= {"later_bytes_per_s": (WRITTEN_BYTES - 1) / later}
    return rows


def as_text(row: Mapping[str, Any]) -> str:
    lines = [
        *lines_of(row),
        f"  training, same   {row['training_fraction_of_fma_peak']:8.1%}",
        f"  operations done  {row['done_fraction_of_fma_peak']:8.1%} of the peak",
        f"  training, done   {row['training_done_fraction_of_fma_peak']:8.1%}",
        f"  routing          {row['routing_share']:8.1%} of the time",
    ]
    if "written_bytes_per_s" in row:
        one, two = row["one_core_written_bytes_per_s"], row["written_bytes_per_s"]
        lines.append(f"  written          {two:8.0f} bytes/s; with one thread {one:.0f}")
    if "first_byte_seconds" in row:
        ways = ("first_byte", "unpacked_first_byte", "process_first_byte")
        packed, unpacked, process = (f"{row[f'{way}_seconds'] * 1e3:.1f} ms" for way in ways)
        lines.append(
            f"  first byte       {packed}; experts not packed {unpacked}; from the start of a process {process}"
        )
        lines.append(f"  later bytes      {row['later_bytes_per_s']:8.0f} bytes/s, one thread")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 where a check fails, or 2 where an option is wrong."""
    parser = parser_of("bench/inference.py", "Scoring and writing, checked first.")
    parser.add_argument("--data", type=Path, help="a prepared folder; without it the text is made up")
    parser.add_argument(
        "--implementation",
        choices=IMPLEMENTATIONS,
        default="numba",
        help="which implementation to time (default numba)",
    )
    parser.add_argument("--first-byte", type=Path, help=argparse.SUPPRESS)
    arguments = parsed(parser, argv)
    if arguments.first_byte:
        sys.stdout.buffer.write(generate(load_saved(arguments.first_byte), sys.stdin.buffer.read(), num_bytes=1).text)
        return 0
    implementation = arguments.implementation
    try:
        choose(implementation, like=torch.empty(0))
        fitted, windows = windows_for(arguments.data, count=max(SCORED_WINDOWS))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    wrong = failures(implementation)
    ensemble = make_ensemble(fitted)
    wrong += disagreements(ensemble, windows, implementation=implementation)
    if wrong:
        print(f"{implementation} is wrong, so its speed means nothing:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    rows = rows_of(ensemble, windows, implementation=implementation, repeats=arguments.repeats)
    publish(rows, arguments=arguments, bench="inference", as_text=as_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
