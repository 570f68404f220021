"""What is one update of a job?  Batches -> losses -> scalars -> weights.

``apply_record`` turns a state and an update's scalars into the next state; the step evaluates the scalars and applies
them, replay only applies.  So a resumed, a replayed and an uninterrupted run go through the same arithmetic.
"""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import RunFailedError, UserError
from thinwire.base.seeds import stream_key
from thinwire.data.windows import draw_training_windows
from thinwire.kernels.dispatch import device_for
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.soma.bptt import batch_gradient
from thinwire.soma.compute import Compute
from thinwire.soma.decoder import decoder_gradient
from thinwire.soma.expert_job import SEED_RUN, ExpertJob, ExpertState, addresses_of, batches_of
from thinwire.soma.model import ExactGradient, Expert
from thinwire.soma.perturbation_parallel import Crew, parts_of, sum_of_parts
from thinwire.soma.plateau import observe, rates
from thinwire.soma.scalar_log import Record, UpdateRecord, ValidationRecord
from thinwire.soma.spsa import SIGNS, estimate, gradient_from_differences
from thinwire.soma.updates import adam


class Evaluated(NamedTuple):
    state: ExpertState
    record: UpdateRecord


class PerturbedLosses(NamedTuple):
    """float64 [n, S] of every accumulation batch, and the device-seconds they took."""

    of_batches: list[Tensor]
    device_seconds: float


def perturbed_losses(
    job: ExpertJob, state: ExpertState, *, batches: list[Tensor], compute: Compute, crew: Crew | None = None
) -> PerturbedLosses:
    """The forwards of update ``state.update + 1``; those that other ranks of a crew evaluate come from there."""
    clock, config, device = device_clock(compute), job.config, device_for(compute.implementation)
    started, update = clock(), state.update + 1
    theta, decoder = state.expert.theta.to(device), state.expert.decoder.to(device)
    losses = [
        expert_losses(
            theta,
            shape=job.shape,
            decoder=decoder,
            windows=batches[address.accumulation],
            address=address,
            directions=range(config.directions) if crew is None else crew.own(config.directions),
            epsilon=rates(state.plateau, config=config).epsilon,
            signs=SIGNS[config.difference],
            implementation=compute.implementation,
            threads=compute.threads,
        )
        for address in addresses_of(job, update)
    ]
    seconds = clock() - started
    if crew is None:
        return PerturbedLosses(losses, seconds)
    shared = crew.share(losses, directions=config.directions, update=update, device_seconds=seconds)
    return PerturbedLosses(shared.of_batches, shared.device_seconds)


def device_clock(compute: Compute) -> Callable[[], float]:
    """Seconds of a device: elapsed on a GPU; on a CPU, where a core is a device, all that the process's threads used.

    choice: so that other work on the machine is not counted; recorded seconds of one core and of two are alike.
    """
    return time.process_time if device_for(compute.implementation).type == "cpu" else time.perf_counter


def evaluate_update(job: ExpertJob, state: ExpertState, *, compute: Compute, crew: Crew | None = None) -> Evaluated:
    """Make update ``state.update + 1`` of an expert that learns from its own loss, alone or as one of a crew.

    Raises:
        RunFailedError: training has diverged.
        PeerLostError: a rank of the crew is lost.
    """
    batches = batches_of(job, state.update + 1)
    if job.config.estimator == "bptt":
        return backpropagate(job, state, batches=batches, compute=compute)
    own = perturbed_losses(job, state, batches=batches, compute=compute, crew=crew)
    return complete_update(
        job, state, batches=batches, own=own, learned_from=own.of_batches, compute=compute, crew=crew
    )


def complete_update(
    job: ExpertJob,
    state: ExpertState,
    *,
    batches: list[Tensor],
    own: PerturbedLosses,
    learned_from: list[Tensor],
    compute: Compute,
    crew: Crew | None = None,
) -> Evaluated:
    """The second half of an update: losses -> scalars -> weights.

    Args:
        own: the expert's losses.
        learned_from: the losses whose differences move it: its own, or sums over experts.
        crew: the ranks that make this update; each spends as long on this half.
    """
    clock = device_clock(compute)
    started, ranks = clock(), 1 if crew is None else crew.group.size
    epsilon = rates(state.plateau, config=job.config).epsilon
    addresses = addresses_of(job, state.update + 1)

    def summed(differences: list[np.ndarray]) -> Tensor:
        return _gradient(job, differences, addresses=addresses, epsilon=epsilon, compute=compute, crew=crew)

    estimated = estimate(
        lambda address: learned_from[address.accumulation],
        addresses=addresses,
        shape=job.shape,
        epsilon=epsilon,
        difference=job.config.difference,
        summed_by=summed,
    )
    train_loss = float(np.mean([float(losses.numpy().mean()) for losses in own.of_batches]))
    record = _record(job, state, batches=batches, train_loss=train_loss, differences=estimated.differences)
    moved = _move(job, state, record, Gradients(estimated.gradient, None), batches=batches, compute=compute)
    seconds = own.device_seconds + ranks * (clock() - started)
    return _clocked(moved, record, state.device_seconds + seconds)


def _gradient(
    job: ExpertJob,
    differences: list[np.ndarray],
    *,
    addresses: list[ProbeAddress],
    epsilon: float,
    compute: Compute,
    crew: Crew | None = None,
) -> Tensor:
    """Eq. (8)'s estimate, summed whole or in the job's parts; without a crew, all parts here, to the same bits."""

    def part(directions: range) -> Tensor:
        return gradient_from_differences(
            differences,
            addresses=addresses,
            shape=job.shape,
            epsilon=epsilon,
            difference=job.config.difference,
            directions=directions,
            threads=compute.threads,
            implementation=compute.implementation,
        )

    parts = parts_of(job.config.directions, parts=job.gradient_parts)
    if job.gradient_parts == 1:
        return part(parts[0])
    if crew is None:
        return sum_of_parts([part(directions) for directions in parts])
    return crew.sum_gradients(part(parts[crew.rank]))


def backpropagate(job: ExpertJob, state: ExpertState, *, batches: list[Tensor], compute: Compute) -> Evaluated:
    """The update of the control: the batches' exact gradient instead of an estimate. One core, or one GPU."""
    clock = device_clock(compute)
    started = clock()
    found = _exact(job, state, batches=batches, compute=compute)
    empty = np.zeros((len(batches), 0))
    record = _record(job, state, batches=batches, train_loss=found.loss_nats_per_byte, differences=empty)
    one_core = replace(compute, threads=1)
    moved = _move(job, state, record, _gradients_of(job, found), batches=batches, compute=one_core)
    return _clocked(moved, record, state.device_seconds + clock() - started)


def _record(
    job: ExpertJob, state: ExpertState, *, batches: list[Tensor], train_loss: float, differences: np.ndarray
) -> UpdateRecord:
    learning_rate, epsilon = rates(state.plateau, config=job.config)
    refuse_infinite(job, train_loss, update=state.update + 1)
    return UpdateRecord(state.update + 1, learning_rate, epsilon, train_loss, 0.0, _digest(batches), differences)


def _clocked(state: ExpertState, record: UpdateRecord, device_seconds: float) -> Evaluated:
    return Evaluated(replace(state, device_seconds=device_seconds), record._replace(device_seconds=device_seconds))


def apply_record(job: ExpertJob, state: ExpertState, record: Record, *, compute: Compute) -> ExpertState:
    """The next state from an update's or a validation's scalars, without a perturbed forward pass.

    The plateau rule looks at validations in its own rhythm alone, so that a run made longer later is the run that was
    planned that long. An update by backpropagation is computed again from its batches.

    Raises:
        UserError: the update reads text (E trains, or backpropagation), and it is not what the record was made on.
    """
    if isinstance(record, ValidationRecord):
        if record.update % job.config.validate_every:
            return state
        return replace(state, plateau=observe(state.plateau, record.loss, update=record.update, config=job.config))
    batches = []
    if job.config.decoder == "trained" or job.config.estimator == "bptt":
        batches = batches_of(job, record.update)
        if _digest(batches) != record.batch_digest:
            raise UserError(
                f"the training text is not the one that update {record.update} was made on",
                where=str(job.shards.folder),
                fix="restore the data folder from a copy, or prepare it again from the same sources",
            )
    if job.config.estimator == "bptt":
        gradients = _gradients_of(job, _exact(job, state, batches=batches, compute=compute))
    else:
        addresses = addresses_of(job, record.update)
        differences = list(record.differences)
        estimated = _gradient(job, differences, addresses=addresses, epsilon=record.epsilon, compute=compute)
        gradients = Gradients(estimated, None)
    moved = _move(job, state, record, gradients, batches=batches, compute=compute)
    return replace(moved, device_seconds=record.device_seconds)


class Gradients(NamedTuple):
    """What moves the weights: theta's part, and E's where backpropagation found it (None: by Eq. 7)."""

    theta: Tensor
    decoder: Tensor | None


def _exact(job: ExpertJob, state: ExpertState, *, batches: list[Tensor], compute: Compute) -> ExactGradient:
    device = device_for(compute.implementation)
    expert = Expert(state.expert.theta.to(device), state.expert.decoder.to(device))
    return batch_gradient(expert, shape=job.shape, batches=batches)


def _gradients_of(job: ExpertJob, found: ExactGradient) -> Gradients:
    return Gradients(found.theta.cpu(), found.decoder.cpu() if job.config.tied_gradient == "full" else None)


def _move(
    job: ExpertJob,
    state: ExpertState,
    record: UpdateRecord,
    gradients: Gradients,
    *,
    batches: list[Tensor],
    compute: Compute,
) -> ExpertState:
    rate, config, expert = record.learning_rate, job.config, state.expert
    body = adam(expert.theta, gradients.theta, state=state.body, learning_rate=rate, weight_decay=config.weight_decay)
    decoder, decoder_state = expert.decoder, state.decoder
    if config.decoder == "trained":
        delta = gradients.decoder
        if delta is None:
            delta = _delta_rule(job, expert, batches=batches, compute=compute)
        # choice: E is not decayed.
        decoder, decoder_state = adam(decoder, delta, state=decoder_state, learning_rate=rate, weight_decay=0.0)
    return replace(
        state,
        expert=Expert(body.weights, decoder),
        body=body.state,
        decoder=decoder_state,
        update=record.update,
    )


def _delta_rule(job: ExpertJob, expert: Expert, *, batches: list[Tensor], compute: Compute) -> Tensor:
    """Eq. (7), the mean over the batches.

    choice: one unperturbed forward at the weights the body's estimate was made at.
    """
    delta, device = torch.zeros_like(expert.decoder), device_for(compute.implementation)
    for windows in batches:
        hidden = decoder_inputs(
            expert.theta.to(device),
            shape=job.shape,
            decoder=expert.decoder.to(device),
            windows=windows,
            implementation=compute.implementation,
            threads=compute.threads,
        )
        delta += decoder_gradient(hidden.cpu(), decoder=expert.decoder, targets=windows[:, 1:])
    return delta / len(batches)


def refuse_infinite(job: ExpertJob, loss: float, *, update: int) -> None:
    """Raises RunFailedError where training has diverged; nothing of the update is kept."""
    if not math.isfinite(loss):
        section = "seed-run" if job.expert == SEED_RUN else "experts"
        raise RunFailedError(
            f"the loss at update {update} is {loss}: training has diverged\n"
            f"  fix:   start another run with a lower --{section}.learning-rate or --{section}.epsilon"
        )


def validation_loss(job: ExpertJob, expert: Expert, *, compute: Compute) -> float:
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
    device = device_for(compute.implementation)
    scores = routed_scores(
        expert.theta[None].to(device),
        shape=job.shape,
        decoder=expert.decoder.to(device),
        windows=torch.from_numpy(windows),
        experts=torch.zeros(len(windows), 1, dtype=torch.int64),
        first_target=0,
        implementation=compute.implementation,
        threads=compute.threads,
    )
    return -float(scores.mean())


def _digest(batches: list[Tensor]) -> int:
    """64 bits that name the batches' bytes, so that a replay can tell whether it reads the same text."""
    hasher = hashlib.blake2b(digest_size=8)
    for batch in batches:
        hasher.update(batch.numpy().tobytes())
    return int.from_bytes(hasher.digest(), "little")
