"""What is one update of EGGROLL?  Every member's loss, a sign a pair, and a step where the signs agree (appendix D.1).

``apply_record`` turns a state and an update's signs into the next state; the step evaluates the signs and applies them.
So a resumed and an uninterrupted run go through the same arithmetic.
"""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.base.progress import Progress, Silent
from thinwire.base.seeds import stream_key
from thinwire.config.fingerprint import fingerprint
from thinwire.data.corpus import Corpus
from thinwire.data.windows import document_windows
from thinwire.kernels.eggroll.api import (
    NoiseAddress,
    eggroll_losses,
    fitness_signs,
    initial_theta,
    next_state,
    sign_update,
    window_losses,
    zero_state,
)
from thinwire.soma.compute import Compute
from thinwire.soma.eggroll_config import EggrollConfig, EggrollTraining
from thinwire.soma.eggroll_log import Record, SignRecord, ValidationRecord, pack_signs
from thinwire.soma.eggroll_streams import Streams, open_streams

PAIRS_PER_THREAD = 1024
"""Between two looks at whether to stop: a tenth of a second at width 20, under a minute at width 339."""
WINDOWS_PER_THREAD = 256


@dataclass(frozen=True)
class EggrollJob:
    """Everything that decides the weights.

    Attributes:
        config: the run's.
        streams: what is read.
        validation: uint8 [n, T + 1], windows of the validation split.
        data_fingerprint: of the corpus.
    """

    config: EggrollConfig
    streams: Streams
    validation: np.ndarray
    data_fingerprint: str

    @property
    def fingerprint(self) -> str:
        """Changes when anything that decides the weights does; the number of updates, lengths of logs do not."""
        config = self.config
        settled = replace(config.training, updates=1, checkpoint_every=1, log_every=1)
        return fingerprint(settled, config.model, config.rules, [config.seed, config.prefix_bytes], self.validation_key)

    @property
    def validation_key(self) -> str:
        """Names the text and the windows."""
        return self.data_fingerprint + hashlib.sha256(self.validation.tobytes()).hexdigest()


def open_job(config: EggrollConfig, *, corpus: Corpus) -> EggrollJob:
    """Raises UserError where the text is too short for the streams, or for one validation window."""
    # choice: validated on the validation split, cut and scored as the test's windows; the paper's "ensemble validation
    # loss" names no windows.
    windows = document_windows(
        corpus.valid,
        window_bytes=config.scoring.window_bytes,
        max_windows=config.training.validation_windows,
        key=stream_key(config.seed, "eggroll validation"),
    ).windows
    streams = open_streams(corpus.train, training=config.training, seed=config.seed)
    return EggrollJob(config, streams, windows, corpus.fingerprint)


@dataclass(frozen=True)
class EggrollState:
    """Between two updates.

    Attributes:
        theta: float32 [M].
        streams: float32 [S, depth, d], where each stream's next update starts.
        update: updates made.
        device_seconds: CPU-seconds that all threads spent on updates so far.
    """

    theta: Tensor
    streams: Tensor
    update: int
    device_seconds: float


class Evaluated(NamedTuple):
    state: EggrollState
    record: SignRecord


def initial_state(job: EggrollJob) -> EggrollState:
    shape = job.config.shape
    streams = zero_state(shape, streams=job.config.training.streams)
    return EggrollState(initial_theta(shape, seed=job.config.seed), streams, 0, 0.0)


def byte_forwards_per_update(training: EggrollTraining) -> int:
    """Input bytes read by all members; what the streams' own states read (``next_state``) is not counted."""
    return training.population * training.update_bytes


def evaluate_update(
    job: EggrollJob, state: EggrollState, *, compute: Compute, should_stop: Callable[[], bool] = lambda: False
) -> Evaluated:
    """Make update ``state.update + 1``.

    Raises:
        RunFailedError: a loss is not finite.
        InterruptedRunError: ``should_stop`` said so; nothing has changed.
    """
    started, update = time.process_time(), state.update + 1
    windows = torch.from_numpy(job.streams.windows(update))
    losses = _population_losses(job, state, windows=windows, compute=compute, should_stop=should_stop)
    train_loss = float(losses.mean())
    refuse_infinite(train_loss, update=update)
    slopes = (losses[:, 0] - losses[:, 1]) / (2 * job.config.rules.sigma)
    signs = fitness_signs(losses)
    moved = _move(job, state, signs, windows=windows, compute=compute)
    seconds = state.device_seconds + time.process_time() - started
    record = SignRecord(
        update=update,
        train_loss=train_loss,
        derivative_rms=float((slopes**2).mean().sqrt()),
        moved_fraction=moved.moved_fraction,
        device_seconds=seconds,
        text_digest=_digest(windows),
        num_pairs=len(signs),
        packed_signs=pack_signs(signs),
    )
    return Evaluated(replace(moved.state, device_seconds=seconds), record)


def apply_record(job: EggrollJob, state: EggrollState, record: Record, *, compute: Compute) -> EggrollState:
    """The next state from an update's signs, without a perturbed forward pass; a validation changes nothing.

    Raises:
        UserError: the job's text is not the one that the record was made on.
    """
    if isinstance(record, ValidationRecord):
        return state
    windows = torch.from_numpy(job.streams.windows(record.update))
    if _digest(windows) != record.text_digest:
        raise UserError(
            f"the training text is not the one that update {record.update} was made on",
            where=str(job.streams.shards.folder),
            fix="restore the data folder from a copy, or prepare it again from the same sources",
        )
    moved = _move(job, state, record.signs, windows=windows, compute=compute)
    return replace(moved.state, device_seconds=record.device_seconds)


def _population_losses(
    job: EggrollJob, state: EggrollState, *, windows: Tensor, compute: Compute, should_stop: Callable[[], bool]
) -> Tensor:
    """float64 [pairs, 2], some pairs at once; how many changes no bit."""
    num_pairs, parts = job.config.training.population // 2, []
    at_once = PAIRS_PER_THREAD * compute.threads
    for first in range(0, num_pairs, at_once):
        if should_stop():
            raise InterruptedRunError(f"stopped before update {state.update + 1} was finished")
        parts.append(
            eggroll_losses(
                state.theta,
                shape=job.config.shape,
                rules=job.config.rules,
                windows=windows,
                address=_noise(job, state.update + 1),
                pairs=range(first, min(first + at_once, num_pairs)),
                state=state.streams,
                implementation=compute.implementation,
                threads=compute.threads,
            )
        )
    return torch.cat(parts)


def _noise(job: EggrollJob, update: int) -> NoiseAddress:
    return NoiseAddress(stream_key(job.config.seed, "eggroll"), update)


class _MovedState(NamedTuple):
    state: EggrollState
    moved_fraction: float


def _move(job: EggrollJob, state: EggrollState, signs: np.ndarray, *, windows: Tensor, compute: Compute) -> _MovedState:
    shape, rules, update = job.config.shape, job.config.rules, state.update + 1
    address = _noise(job, update)
    moved = sign_update(state.theta, signs, shape=shape, rules=rules, address=address, threads=compute.threads)
    # choice: streams go on from the states of the weights that the members were made of, not of the moved ones.
    streams = next_state(
        state.theta,
        shape=shape,
        rules=rules,
        windows=windows,
        state=state.streams,
        implementation=compute.implementation,
        threads=compute.threads,
    )
    return _MovedState(replace(state, theta=moved.theta, streams=streams, update=update), moved.moved_fraction)


def refuse_infinite(loss: float, *, update: int) -> None:
    """Raises RunFailedError where training has diverged; nothing of the update is kept."""
    if not math.isfinite(loss):
        raise RunFailedError(
            f"the loss at update {update} is {loss}: training has diverged\n"
            "  fix:   start another run with a lower --rules.float-step or a higher --rules.sigma-shift"
        )


def scored_losses(
    theta: Tensor, windows: np.ndarray, *, config: EggrollConfig, compute: Compute, progress: Progress | None = None
) -> np.ndarray:
    """float64 [n], mean loss of each window's targets behind its prefix, nats per byte; state zero before each window.

    Args:
        windows: uint8 [n, T + 1]; the targets are byte indices ``prefix_bytes + 1`` to T, as of a SOMA run.
    """
    prefix, losses, at_once = config.prefix_bytes, [], WINDOWS_PER_THREAD * compute.threads
    task = (progress or Silent()).task("score windows", len(windows))
    for first in range(0, len(windows), at_once):
        some = torch.from_numpy(np.ascontiguousarray(windows[first : first + at_once]))
        state, parts = zero_state(config.shape, streams=len(some)), []
        for part in (some[:, : prefix + 1], some[:, prefix:]):
            scored = window_losses(
                theta,
                shape=config.shape,
                rules=config.rules,
                windows=part.contiguous(),
                state=state,
                implementation=compute.implementation,
                threads=compute.threads,
            )
            state = torch.from_numpy(scored.state)
            parts.append(scored.losses)
        losses.append(parts[1])
        task.advance(len(some))
    task.close()
    return np.concatenate(losses)


def validation_loss(job: EggrollJob, theta: Tensor, *, compute: Compute) -> float:
    """Mean over the validation windows, nats per byte."""
    return float(scored_losses(theta, job.validation, config=job.config, compute=compute).mean())


def _digest(windows: Tensor) -> int:
    """64 bits that name the streams' bytes, so that a resumed run can tell whether it reads the same text."""
    return int.from_bytes(hashlib.blake2b(windows.numpy().tobytes(), digest_size=8).digest(), "little")
