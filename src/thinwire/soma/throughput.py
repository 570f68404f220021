"""How fast does this machine train and serve a run?  Byte-forwards per second beside the peak, and routed scoring.

Everything is timed in turn, round after round: the peak, the perturbed losses of one expert (all that zero-order
training asks for), scoring whole windows by the routed ensemble, and its routing alone (appendix N.1: loading and
compilation are left out; a token is a byte that is scored).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from thinwire.base.progress import Progress, Silent
from thinwire.base.seeds import stream_key
from thinwire.kernels.dispatch import choose
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.peak import run_large_product, run_peak_loops
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.kernels.timing import Timed, timed_in_turn
from thinwire.runs.start import processor_name
from thinwire.soma.config import TrainingConfig
from thinwire.soma.ensemble import Ensemble, score_windows
from thinwire.soma.every_expert import HeldOut, open_subject
from thinwire.soma.run import SomaRun
from thinwire.soma.spsa import SIGNS

MOST_BYTE_FORWARDS = 2_000_000
"""Directions are left out of an update until a round costs no more: the rate is per byte."""


@dataclass(frozen=True)
class Rounds:
    """How much is timed.

    Attributes:
        windows: of the test split, scored in a call.
        repeats: rounds; medians and spreads are of them.
        threads: of the CPU.
        implementation: of the kernels; ``auto`` says what it chose.
    """

    windows: int = 256
    repeats: int = 5
    threads: int = 1
    implementation: str = "auto"


class Contestants(NamedTuple):
    """What is timed, each call returning the work that it did."""

    peak_loop: Callable[[], float] | None
    peak_product: Callable[[], float]
    training: Callable[[], float] | None
    scoring: Callable[[], float]
    routing: Callable[[], float]


def measure_throughput(root: Path, *, rounds: Rounds | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Rates of a run's own experts on its own test windows, as plain values; writes nothing.

    The keys at the top are of training; ``inference`` holds those of scoring, with the share of its time that routing
    takes.

    Raises:
        UserError: no trained SOMA run, its data are gone, or the implementation cannot run here.
    """
    rounds = rounds or Rounds()
    config = SomaRun.open(root).config.experts
    held_out = HeldOut("test", rounds.windows, rounds.threads, rounds.implementation)
    subject = open_subject(root, held_out=held_out)
    windows = subject.windows.windows
    record = measure_speed(subject.ensemble, windows, config=config, rounds=rounds, progress=progress)
    return {"kind": "measure-throughput", **record, "expert_updates": subject.expert_updates}


def measure_speed(
    ensemble: Ensemble,
    windows: np.ndarray,
    *,
    config: TrainingConfig | None,
    rounds: Rounds,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Rates of any ensemble, trained or not.

    Args:
        windows: uint8 [n, T + 1], scored in one call; training reads their beginnings.
        config: of one expert's updates; None times no training.
    """
    placed = ensemble.placed_for(rounds.implementation)
    implementation = choose(rounds.implementation, like=placed.thetas)
    parts = _contestants(placed, windows, config=config, rounds=replace(rounds, implementation=implementation))
    given = {name: run for name, run in parts._asdict().items() if run is not None}
    task = (progress or Silent()).task("throughput", (rounds.repeats + 1) * len(given))

    def counted(run: Callable[[], float]) -> Callable[[], float]:
        def call() -> float:
            work = run()
            task.advance()
            return work

        return call

    contestants = {name: counted(run) for name, run in given.items()}
    for run in contestants.values():
        run()  # compiles, packs, and touches memory
    timed = timed_in_turn(contestants, repeats=rounds.repeats)
    task.close()
    peak = max(timed[name].median for name in ("peak_loop", "peak_product") if name in timed)
    device, operations = placed.thetas.device, ensemble.shape.operations_per_byte
    inference = _inference(ensemble, windows, timed=timed, peak=peak, operations=operations)
    training = None if config is None else _rates(timed["training"], peak=peak, operations=operations)
    return {
        **(training or _rates(timed["scoring"], peak=peak, operations=operations)),
        "peak_flops_per_s": peak,
        "implementation": implementation,
        "device": _device_name(device),
        "threads": rounds.threads if device.type == "cpu" else None,
        "repeats": rounds.repeats,
        **_sizes(ensemble.shape),
        "training": training and training | _update(config, rate=timed["training"].median),
        "inference": inference,
    }


def _contestants(
    ensemble: Ensemble, windows: np.ndarray, *, config: TrainingConfig | None, rounds: Rounds
) -> Contestants:
    device, threads = ensemble.thetas.device, rounds.threads
    prefixes = [row[: ensemble.prefix_bytes].tobytes() for row in windows]
    read = float(len(windows) * ensemble.active_experts * (windows.shape[1] - 1))

    def score() -> float:
        score_windows(ensemble, windows, threads=threads, implementation=rounds.implementation)
        return read

    def route() -> float:
        ensemble.route(prefixes)
        return 1.0

    return Contestants(
        (lambda: run_peak_loops(threads=threads)) if device.type == "cpu" else None,
        lambda: run_large_product(device=device, threads=threads),
        None if config is None else lambda: _train(ensemble, windows, config=config, rounds=rounds),
        score,
        route,
    )


def _train(ensemble: Ensemble, windows: np.ndarray, *, config: TrainingConfig, rounds: Rounds) -> float:
    """The losses of an update's first directions; byte-forwards."""
    signs = SIGNS[config.difference]
    length = min(config.window_bytes, windows.shape[1] - 1)
    batch = torch.from_numpy(np.resize(windows[:, : length + 1], (config.batch, length + 1)))
    each = len(signs) * config.batch * length
    directions = min(config.directions, max(MOST_BYTE_FORWARDS // each, 1))
    losses = expert_losses(
        ensemble.thetas[0],
        shape=ensemble.shape,
        decoder=ensemble.decoder if ensemble.decoder.dim() == 2 else ensemble.decoder[0],
        windows=batch,
        address=ProbeAddress(stream_key(0, "throughput"), 0),
        directions=range(directions),
        epsilon=config.epsilon,
        signs=signs,
        implementation=rounds.implementation,
        threads=rounds.threads,
    )
    assert bool(torch.isfinite(losses).all())  # reading them waits for the device
    return float(directions * each)


def _rates(timed: Timed, *, peak: float, operations: int) -> dict[str, float]:
    """Operations counted as in Eq. (21)."""
    return {
        "byte_forwards_per_s": timed.median,
        "spread": timed.spread,
        "flops_per_s": timed.median * operations,
        "fraction_of_peak": timed.median * operations / peak,
    }


def _update(config: TrainingConfig | None, *, rate: float) -> dict[str, Any]:
    """An update's forwards, and the seconds they take at this rate; the rest of an update is not timed here."""
    assert config is not None
    forwards = len(SIGNS[config.difference]) * config.directions * config.batch * config.window_bytes
    forwards *= config.accumulation
    return {"byte_forwards_per_update": forwards, "forward_seconds_per_update": forwards / rate}


def _inference(
    ensemble: Ensemble, windows: np.ndarray, *, timed: dict[str, Timed], peak: float, operations: int
) -> dict[str, Any]:
    length = windows.shape[1] - 1
    targets = len(windows) * (length - ensemble.prefix_bytes)
    rates = _rates(timed["scoring"], peak=peak, operations=operations)
    seconds = len(windows) * ensemble.active_experts * length / timed["scoring"].median
    return rates | {
        "tokens_per_s": targets / seconds,
        "seconds": seconds,
        "routing_share": 1 / timed["routing"].median / seconds,
        "windows": len(windows),
        "window_bytes": length,
        "scored_targets": targets,
        "num_experts": ensemble.num_experts,
        "active_experts": ensemble.active_experts,
    }


def _sizes(shape: ExpertShape) -> dict[str, int]:
    return {
        "width": shape.width,
        "depth": shape.depth,
        "num_parameters": shape.num_parameters,
        "operations_per_byte": shape.operations_per_byte,
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
