"""How does a job start, go on after a kill, and end?  Scalar log first, checkpoints behind it (decision 0003).

Order of an update: forwards, move, append the scalars (now it is acknowledged), then validation, checkpoint, progress.
A restart reads the newest checkpoint and applies the records behind it, so at most the update in flight is lost.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.base.errors import UserError
from thinwire.base.files import append_json_line, read_json, write_json
from thinwire.base.progress import Task
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder, exclusive
from thinwire.runs.loop import run_loop
from thinwire.soma import job_log
from thinwire.soma.expert_job import (
    ExpertJob,
    ExpertState,
    apply_record,
    evaluate_update,
    initial_state,
    refuse_infinite,
    validation_loss,
)
from thinwire.soma.model import Expert
from thinwire.soma.plateau import PlateauState
from thinwire.soma.scalar_log import ScalarLog, UpdateRecord, ValidationRecord
from thinwire.soma.scalar_log import read as read_scalar_log
from thinwire.soma.updates import AdamState

CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class Compute:
    """How the job's kernels run; no weight depends on it, but for the implementation's rounding."""

    implementation: str = "auto"
    threads: int = 1


def train(
    job: ExpertJob,
    *,
    folder: JobFolder,
    compute: Compute,
    task: Task,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> Expert:
    """Train a job to its last update, from wherever its folder stands.

    Raises:
        UserError: the folder belongs to another job, or a log or checkpoint in it is damaged.
        InterruptedRunError: ``should_stop`` said so; everything acknowledged is kept.
        OSError: the disk is full or read-only; everything acknowledged is kept.
    """
    torch.set_num_threads(1)  # the delta rule's matrix product must not depend on the number of threads
    with exclusive(folder.root):
        state, log = resume(job, folder=folder, compute=compute, say=say)
        task.advance(state.update)
        try:
            state = _run(job, state, folder=folder, log=log, compute=compute, task=task, should_stop=should_stop)
        finally:
            log.sync()
            log.close()
        if state.update not in checkpoint.list_updates(folder.checkpoints):
            _save(job, state, folder)  # a kill came between the last record and the last checkpoint
        write_json(folder.done, {"fingerprint": job.fingerprint, "updates": job.config.updates})
    return state.expert


def is_done(job: ExpertJob, *, folder: JobFolder) -> bool:
    """Whether the folder holds this job's last update, made from the same inputs, and its weights."""
    if not folder.done.is_file() or job.config.updates not in checkpoint.list_updates(folder.checkpoints):
        return False
    record = read_json(folder.done)
    return record == {"fingerprint": job.fingerprint, "updates": job.config.updates}


def resume(
    job: ExpertJob, *, folder: JobFolder, compute: Compute, say: Callable[[str], None]
) -> tuple[ExpertState, ScalarLog]:
    """The state after the last acknowledged record, and the log ready for the next.

    Raises:
        UserError: the log is another job's, or damaged; a checkpoint is truncated or of another shape.
    """
    checkpoint.sweep(folder.checkpoints)
    contents = read_scalar_log(folder.scalars)
    if contents.torn_bytes:
        say(f"{folder.scalars}: dropped a torn last record ({contents.torn_bytes} bytes); it was never acknowledged")
    if contents.header and contents.header["fingerprint"] != job.fingerprint:
        raise UserError(
            "this folder holds a job with other inputs (configuration, data or starting weights)",
            where=str(folder.root),
            fix="give another --out, or remove this folder to train the job anew",
        )
    if not checkpoint.list_updates(folder.checkpoints):
        _save(job, initial_state(job), folder)
    state = load_state(job, folder=folder, update=checkpoint.list_updates(folder.checkpoints)[-1])
    last_logged = max((r.update for r in contents.records if isinstance(r, UpdateRecord)), default=0)
    if state.update > last_logged:
        raise UserError(
            f"the newest checkpoint is of update {state.update}, but the scalar log ends at {last_logged}",
            where=str(folder.scalars),
            fix=f"restore the log from a copy, or remove every checkpoint above {last_logged} from "
            f"{folder.checkpoints} (.json and .safetensors): the job goes on from the log's end",
        )
    first = state.update
    for record in contents.records:
        # A checkpoint is written after the validation of its update, but for the one at 0.
        if record.update > first or first == 0:
            state = apply_record(job, state, record, implementation=compute.implementation, threads=compute.threads)
    job_log.restore(job, folder.log, contents.records)
    log = ScalarLog(folder.scalars, good_bytes=contents.good_bytes, header=log_header(job))
    validated = {r.update for r in contents.records if isinstance(r, ValidationRecord)}
    if _validates(job, state.update) and state.update not in validated:
        state = _validate(job, state, folder=folder, log=log, compute=compute)
    return state, log


def log_header(job: ExpertJob) -> dict[str, Any]:
    return {
        "fingerprint": job.fingerprint,
        "expert": job.expert,
        "seed": job.seed,
        "parameters": job.shape.num_parameters,
        "directions": job.config.directions,
        "accumulation": job.config.accumulation,
        "difference": job.config.difference,
    }


def _validates(job: ExpertJob, update: int) -> bool:
    return update % job.config.validate_every == 0 or update == job.config.updates


def _run(
    job: ExpertJob,
    state: ExpertState,
    *,
    folder: JobFolder,
    log: ScalarLog,
    compute: Compute,
    task: Task,
    should_stop: Callable[[], bool],
) -> ExpertState:
    def step(state: ExpertState, _: int) -> ExpertState:
        evaluated = evaluate_update(job, state, implementation=compute.implementation, threads=compute.threads)
        log.append(evaluated.record)
        if evaluated.record.update % job.config.log_every == 0:
            append_json_line(folder.log, job_log.update_line(job, evaluated.record))
        return evaluated.state

    def validate(state: ExpertState, *, update: int) -> ExpertState:
        return _validate(job, state, folder=folder, log=log, compute=compute) if _validates(job, update) else state

    def save(state: ExpertState, *, update: int) -> ExpertState:
        if update % job.config.checkpoint_every == 0 or update == job.config.updates:
            log.sync()
            _save(job, state, folder)
        return state

    def show(state: ExpertState, *, update: int) -> ExpertState:
        if _validates(job, update):
            task.note(f"{state.plateau.best_loss:.4f} nats/byte")
        task.advance(1)
        return state

    return run_loop(
        state,
        step,
        first_update=state.update + 1,
        last_update=job.config.updates,
        hooks=[validate, save, show],
        should_stop=should_stop,
    )


def _validate(
    job: ExpertJob, state: ExpertState, *, folder: JobFolder, log: ScalarLog, compute: Compute
) -> ExpertState:
    loss = validation_loss(job, state.expert, implementation=compute.implementation, threads=compute.threads)
    refuse_infinite(job, loss, update=state.update)
    record = ValidationRecord(state.update, loss)
    log.append(record)
    append_json_line(folder.log, job_log.validation_line(job, record, device_seconds=state.device_seconds))
    return apply_record(job, state, record, implementation=compute.implementation, threads=compute.threads)


def _tensors(state: ExpertState) -> dict[str, torch.Tensor]:
    return {
        "theta": state.expert.theta,
        "decoder": state.expert.decoder,
        "body.first": state.body.first,
        "body.second": state.body.second,
        "decoder.first": state.decoder.first,
        "decoder.second": state.decoder.second,
    }


def _save(job: ExpertJob, state: ExpertState, folder: JobFolder) -> None:
    best = state.plateau.best_loss
    meta = {
        "expert": job.expert,
        "shape": {"width": job.shape.width, "depth": job.shape.depth, "embed_width": job.shape.embed_width},
        "plateau": state.plateau._asdict() | {"best_loss": best if math.isfinite(best) else None},
        "body_updates": state.body.updates,
        "decoder_updates": state.decoder.updates,
        "device_seconds": state.device_seconds,
    }
    checkpoint.save(folder.checkpoints, state.update, tensors=_tensors(state), meta=meta, keep=CHECKPOINTS_KEPT)


def load_state(job: ExpertJob, *, folder: JobFolder, update: int) -> ExpertState:
    """The state of one checkpoint. Raises UserError where it is damaged or of another shape."""
    shapes = {name: tuple(tensor.shape) for name, tensor in _tensors(initial_state(job)).items()}
    saved = checkpoint.load(folder.checkpoints, update, shapes=shapes)
    tensors, meta = saved.tensors, saved.meta
    halvings, best, best_update = (meta["plateau"][key] for key in PlateauState._fields)
    plateau = PlateauState(halvings, math.inf if best is None else best, best_update)
    return ExpertState(
        expert=Expert(tensors["theta"], tensors["decoder"]),
        body=AdamState(tensors["body.first"], tensors["body.second"], meta["body_updates"]),
        decoder=AdamState(tensors["decoder.first"], tensors["decoder.second"], meta["decoder_updates"]),
        plateau=plateau,
        update=saved.update,
        device_seconds=meta["device_seconds"],
    )
