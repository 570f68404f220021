"""What is one training job?  The seed run and every expert are such jobs (section 4): inputs, state, addresses."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.base.seeds import stream_key
from thinwire.config.fingerprint import fingerprint
from thinwire.data.shards import ByteShards
from thinwire.data.windows import draw_training_windows
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.soma.config import TrainingConfig
from thinwire.soma.model import Expert
from thinwire.soma.plateau import PlateauState
from thinwire.soma.spsa import SIGNS
from thinwire.soma.updates import AdamState

SEED_RUN = -1
BPTT_PASSES = 3


@dataclass(frozen=True)
class ExpertJob:
    """Everything that decides the weights of one job.

    Attributes:
        expert: 0..N-1, or ``SEED_RUN``; part of every random address.
        seed: the run's seed.
        config: the job's slice of the configuration.
        shape: sizes of the expert.
        start: weights before the first update.
        shards: the training split's bytes.
        train, validation: int64 window indices of the job's training and validation parts.
        cluster_window_bytes: size of the windows that those indices count.
        moments: Adam's of theta before the first update, of a continuation; None starts from zero.
        summed_losses: how many experts' losses are added before they are told apart; 1 learns from its own.
        gradient_parts: in how many parts an update's probes are summed, one a rank (the paper's DDPP); 1 sums them
            whole. Rounding depends on it.
    """

    expert: int
    seed: int
    config: TrainingConfig
    shape: ExpertShape
    start: Expert
    shards: ByteShards
    train: np.ndarray
    validation: np.ndarray
    cluster_window_bytes: int
    moments: AdamState | None = None
    summed_losses: int = 1
    gradient_parts: int = 1

    @property
    def fingerprint(self) -> str:
        """Changes when anything that decides the weights does; the number of updates, lengths of logs do not."""
        settled = replace(self.config, updates=1, checkpoint_every=1, log_every=1)
        arrays = (self.start.theta.numpy(), self.start.decoder.numpy(), self.train, self.validation)
        digests = [_sha256(array) for array in arrays]
        place = [self.expert, self.seed, self.cluster_window_bytes, self.shards.num_bytes]
        added: list[Any] = [] if self.summed_losses == 1 else [{"summed_losses": self.summed_losses}]
        if self.gradient_parts != 1:
            added.append({"gradient_parts": self.gradient_parts})
        if self.moments is not None:
            first, second, updates = self.moments
            added.append([_sha256(first.numpy()), _sha256(second.numpy()), updates])
        return fingerprint(settled, self.shape, place, digests, *added)


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@dataclass(frozen=True)
class ExpertState:
    """Between two updates.

    Attributes:
        expert: FP32 weights.
        body, decoder: Adam's moments of theta and of E (E's stay empty where it is frozen).
        plateau: what the rates follow.
        update: updates made.
        device_seconds: time spent on updates so far.
    """

    expert: Expert
    body: AdamState
    decoder: AdamState
    plateau: PlateauState
    update: int
    device_seconds: float


def initial_state(job: ExpertJob) -> ExpertState:
    body = job.moments or AdamState.zeros_like(job.start.theta)
    return ExpertState(job.start, body, AdamState.zeros_like(job.start.decoder), PlateauState(), 0, 0.0)


def validates(job: ExpertJob, update: int) -> bool:
    """Whether a validation follows this update."""
    return update % job.config.validate_every == 0 or update == job.config.updates


def addresses_of(job: ExpertJob, update: int) -> list[ProbeAddress]:
    key = stream_key(job.seed, "probe", job.expert)
    return [ProbeAddress(key, update, accumulation) for accumulation in range(job.config.accumulation)]


def batch_of(job: ExpertJob, *, update: int, accumulation: int) -> Tensor:
    """uint8 [B, T + 1], drawn by address."""
    windows = draw_training_windows(
        job.shards,
        job.train,
        key=stream_key(job.seed, "batch", job.expert),
        update=update,
        accumulation=accumulation,
        batch=job.config.batch,
        input_bytes=job.config.window_bytes,
        window_bytes=job.cluster_window_bytes,
    )
    return torch.from_numpy(windows)


def byte_forwards_per_update(config: TrainingConfig) -> int:
    """Input bytes read by one update's forwards, of every direction, sign and accumulation batch.

    choice: backpropagation counts as three forwards of its batch, a backward pass as two (the usual estimate).
    """
    passes = BPTT_PASSES if config.estimator == "bptt" else config.directions * len(SIGNS[config.difference])
    return passes * config.batch * config.window_bytes * config.accumulation


def batches_of(job: ExpertJob, update: int) -> list[Tensor]:
    return [batch_of(job, update=update, accumulation=a) for a in range(job.config.accumulation)]
