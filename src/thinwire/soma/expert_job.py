"""What is one training job, and what is one update of it?  The seed run and every expert are such jobs (section 4).

``apply_record`` turns a state and an update's scalars into the next state; the step evaluates the scalars and applies
them, replay only applies.  So a resumed, a replayed and an uninterrupted run go through the same arithmetic.
"""

import hashlib
import math
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import RunFailedError, UserError
from thinwire.base.seeds import stream_key
from thinwire.config.fingerprint import fingerprint
from thinwire.data.shards import ByteShards
from thinwire.data.windows import draw_training_windows
from thinwire.kernels.dispatch import device_for
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.soma.config import TrainingConfig
from thinwire.soma.decoder import decoder_gradient
from thinwire.soma.model import Expert
from thinwire.soma.plateau import PlateauState, observe, rates
from thinwire.soma.scalar_log import Record, UpdateRecord, ValidationRecord
from thinwire.soma.spsa import SIGNS, estimate, gradient_from_differences
from thinwire.soma.updates import AdamState, adam

SEED_RUN = -1


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

    @property
    def fingerprint(self) -> str:
        """Changes when anything that decides the weights does; the number of updates, lengths of logs do not."""
        settled = replace(self.config, updates=1, checkpoint_every=1, log_every=1)
        digests = [
            hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            for array in (self.start.theta.numpy(), self.start.decoder.numpy(), self.train, self.validation)
        ]
        place = (self.expert, self.seed, self.cluster_window_bytes, self.shards.num_bytes)
        return fingerprint(settled, self.shape, list(place), digests)


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


class Evaluated(NamedTuple):
    state: ExpertState
    record: UpdateRecord


def initial_state(job: ExpertJob) -> ExpertState:
    decoder = AdamState.zeros_like(job.start.decoder)
    return ExpertState(job.start, AdamState.zeros_like(job.start.theta), decoder, PlateauState(), 0, 0.0)


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
    """Input bytes read by the perturbed forwards of one update, both signs and all accumulation batches."""
    per_batch = config.directions * len(SIGNS[config.difference]) * config.batch * config.window_bytes
    return per_batch * config.accumulation


def evaluate_update(job: ExpertJob, state: ExpertState, *, implementation: str, threads: int) -> Evaluated:
    """Make update ``state.update + 1``: forwards, scalars, then ``apply_record``."""
    started = time.perf_counter()
    config, update = job.config, state.update + 1
    learning_rate, epsilon = rates(state.plateau, config=config)
    batches = [batch_of(job, update=update, accumulation=a) for a in range(config.accumulation)]
    device = device_for(implementation)
    theta, decoder = state.expert.theta.to(device), state.expert.decoder.to(device)

    def losses(address: ProbeAddress) -> Tensor:
        return expert_losses(
            theta,
            shape=job.shape,
            decoder=decoder,
            windows=batches[address.accumulation],
            address=address,
            directions=range(config.directions),
            epsilon=epsilon,
            signs=SIGNS[config.difference],
            implementation=implementation,
            threads=threads,
        )

    estimated = estimate(
        losses,
        addresses=addresses_of(job, update),
        shape=job.shape,
        epsilon=epsilon,
        difference=config.difference,
        threads=threads,
    )
    train_loss = float(np.mean([batch.mean_loss for batch in estimated.batches]))
    refuse_infinite(job, train_loss, update=update)
    record = UpdateRecord(
        update=update,
        learning_rate=learning_rate,
        epsilon=epsilon,
        train_loss=train_loss,
        device_seconds=0.0,
        batch_digest=_digest(batches),
        differences=np.stack([batch.differences for batch in estimated.batches]),
    )
    moved = _move(
        job, state, record, gradient=estimated.gradient, batches=batches, implementation=implementation, threads=threads
    )
    seconds = state.device_seconds + time.perf_counter() - started
    return Evaluated(replace(moved, device_seconds=seconds), record._replace(device_seconds=seconds))


def apply_record(
    job: ExpertJob, state: ExpertState, record: Record, *, implementation: str, threads: int
) -> ExpertState:
    """The next state from an update's or a validation's scalars, without a perturbed forward pass.

    The plateau rule looks at validations in its own rhythm alone, so that a run made longer later is the run that was
    planned that long.

    Raises:
        UserError: the decoder trains and the job's text is not the one the record was made on.
    """
    if isinstance(record, ValidationRecord):
        if record.update % job.config.validate_every:
            return state
        return replace(state, plateau=observe(state.plateau, record.loss, update=record.update, config=job.config))
    gradient = gradient_from_differences(
        list(record.differences),
        addresses=addresses_of(job, record.update),
        shape=job.shape,
        epsilon=record.epsilon,
        difference=job.config.difference,
        threads=threads,
    )
    batches = []
    if job.config.decoder == "trained":
        batches = [batch_of(job, update=record.update, accumulation=a) for a in range(job.config.accumulation)]
        if _digest(batches) != record.batch_digest:
            raise UserError(
                f"the training text is not the one that update {record.update} was made on",
                where=str(job.shards.folder),
                fix="restore the data folder from a copy, or prepare it again from the same sources",
            )
    moved = _move(
        job, state, record, gradient=gradient, batches=batches, implementation=implementation, threads=threads
    )
    return replace(moved, device_seconds=record.device_seconds)


def _move(
    job: ExpertJob,
    state: ExpertState,
    record: UpdateRecord,
    *,
    gradient: Tensor,
    batches: list[Tensor],
    implementation: str,
    threads: int,
) -> ExpertState:
    rate, config, expert = record.learning_rate, job.config, state.expert
    body = adam(expert.theta, gradient, state=state.body, learning_rate=rate, weight_decay=config.weight_decay)
    decoder, decoder_state = expert.decoder, state.decoder
    if config.decoder == "trained":
        # choice: one unperturbed forward at the weights the body's estimate was made at; E is not decayed.
        delta = torch.zeros_like(decoder)
        for windows in batches:
            hidden = decoder_inputs(
                expert.theta.to(device_for(implementation)),
                shape=job.shape,
                decoder=decoder.to(device_for(implementation)),
                windows=windows,
                implementation=implementation,
                threads=threads,
            )
            delta += decoder_gradient(hidden.cpu(), decoder=decoder, targets=windows[:, 1:])
        delta /= len(batches)
        decoder, decoder_state = adam(decoder, delta, state=decoder_state, learning_rate=rate, weight_decay=0.0)
    return replace(
        state,
        expert=Expert(body.weights, decoder),
        body=body.state,
        decoder=decoder_state,
        update=record.update,
    )


def refuse_infinite(job: ExpertJob, loss: float, *, update: int) -> None:
    """Raises RunFailedError where training has diverged; nothing of the update is kept."""
    if not math.isfinite(loss):
        section = "seed-run" if job.expert == SEED_RUN else "experts"
        raise RunFailedError(
            f"the loss at update {update} is {loss}: training has diverged\n"
            f"  fix:   start another run with a lower --{section}.learning-rate or --{section}.epsilon"
        )


def validation_loss(job: ExpertJob, expert: Expert, *, implementation: str, threads: int) -> float:
    """Mean loss on a fixed sample of the job's validation windows, nats per byte (drives the plateau rule)."""
    windows = draw_training_windows(
        job.shards,
        job.validation,
        key=stream_key(job.seed, "validation", job.expert),
        update=0,
        accumulation=0,
        batch=job.config.validation_windows,
        input_bytes=job.config.window_bytes,
        window_bytes=job.cluster_window_bytes,
    )
    scores = routed_scores(
        expert.theta[None].to(device_for(implementation)),
        shape=job.shape,
        decoder=expert.decoder.to(device_for(implementation)),
        windows=torch.from_numpy(windows),
        experts=torch.zeros(len(windows), 1, dtype=torch.int64),
        first_target=0,
        implementation=implementation,
        threads=threads,
    )
    return -float(scores.mean())


def _digest(batches: list[Tensor]) -> int:
    """64 bits that name the batches' bytes, so that replay and audit can tell whether they read the same text."""
    hasher = hashlib.blake2b(digest_size=8)
    for batch in batches:
        hasher.update(batch.numpy().tobytes())
    return int.from_bytes(hasher.digest(), "little")
