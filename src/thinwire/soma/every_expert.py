"""What would every expert have said?  Held-out windows read by all N experts, a part at a time (appendices N.2, N.3).

A part of 64 windows with 768 scored bytes each takes 100 MB of log-probabilities for N = 256, however many windows
there are in all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Silent
from thinwire.base.seeds import stream_key
from thinwire.data.windows import EvaluationWindows, document_windows
from thinwire.soma.ensemble import Ensemble, load_ensemble, scores_under, windows_at_once
from thinwire.soma.run import SomaRun

Split = Literal["valid", "test"]


@dataclass(frozen=True)
class HeldOut:
    """Which windows are read, and by how much of the machine.

    Attributes:
        split: ``valid``, the paper's "ensemble validation set", so that no choice is made on the test split.
        max_windows: at most so many; 0 takes as many as the run's test.
        threads: for arithmetic.
        implementation: of the kernels.
    """

    split: Split = "valid"
    max_windows: int = 0
    threads: int = 1
    implementation: str = "auto"


class Subject(NamedTuple):
    """A trained ensemble and the windows it reads.

    Attributes:
        windows: uint8 [n, T + 1], with their documents.
        expert_updates: the newest checkpoint of each expert, whose weights are read.
    """

    ensemble: Ensemble
    windows: EvaluationWindows
    config_seed: int
    bootstrap_draws: int
    expert_updates: list[int]


def open_subject(root: Path, *, held_out: HeldOut) -> Subject:
    """A run's newest weights, and one window inside each held-out document, chosen by address.

    Raises:
        UserError: no trained SOMA run, its data are gone, or no document of the split is long enough.
    """
    run = SomaRun.open(root)
    ensemble, scoring = load_ensemble(root), run.config.scoring
    corpus = run.open_corpus()
    if held_out.max_windows < 0:
        raise UserError("a number of windows cannot be negative", where="--windows", fix="give 1 or more, or 0")
    windows = document_windows(
        corpus.valid if held_out.split == "valid" else corpus.test,
        window_bytes=scoring.window_bytes,
        max_windows=held_out.max_windows or scoring.max_windows,
        key=stream_key(run.config.seed, f"{held_out.split} windows"),
    )
    updates = [run.last_update(str(expert)) for expert in range(run.num_experts)]
    return Subject(ensemble, windows, run.config.seed, scoring.bootstrap_draws, updates)


class Readings(NamedTuple):
    """Some windows, read by every expert.

    Attributes:
        windows: which of all windows.
        scores: log p of each scored byte, nats.
        experts: who gave column j of ``scores``.
        weights: of the experts' probabilities when all answer; rows sum to one.
    """

    windows: slice
    scores: Float64[np.ndarray, "n N S"]
    experts: Int64[np.ndarray, "n N"]
    weights: Float64[np.ndarray, "n N"]


def read_by_all(
    ensemble: Ensemble,
    windows: UInt8[np.ndarray, "n T1"],
    *,
    order: Literal["routed", "number"],
    held_out: HeldOut,
    progress: Progress | None = None,
) -> Iterator[Readings]:
    """Every window under every expert, in parts.

    Args:
        order: ``routed`` puts the experts that answer first in front, so that the first k columns are the ones that
            would answer for ``active_experts = k``; ``number`` goes by number, equally weighted.
    """
    ensemble, count = ensemble.placed_for(held_out.implementation), ensemble.num_experts
    at_once = windows_at_once(count, num_targets=windows.shape[1] - 1 - ensemble.prefix_bytes)
    task = (progress or Silent()).task("windows under every expert", len(windows))
    for start in range(0, len(windows), at_once):
        part = windows[start : start + at_once]
        if order == "routed":
            routes = ensemble.route([row[: ensemble.prefix_bytes].tobytes() for row in part], active_experts=count)
            experts, weights = routes.experts.astype(np.int64), routes.weights
        else:
            experts = np.tile(np.arange(count, dtype=np.int64), (len(part), 1))
            weights = np.full(experts.shape, 1.0 / count)
        scores = scores_under(
            ensemble, part, experts=experts, implementation=held_out.implementation, threads=held_out.threads
        )
        yield Readings(slice(start, start + len(part)), scores.numpy(), experts, weights)
        task.advance(len(part))
    task.close()
