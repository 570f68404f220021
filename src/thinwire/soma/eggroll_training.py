"""How does an EGGROLL job start, go on after a kill, and end?  Sign log first, checkpoints behind it (decision 0003).

Order of an update: forwards, move, append the signs (now it is acknowledged), then validation, checkpoint, progress.
A restart reads the newest checkpoint and applies the records behind it, so at most the update in flight is lost.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from thinwire.base.errors import UserError
from thinwire.base.files import append_json_line, read_json, restore_json_lines, write_json
from thinwire.base.progress import Task
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder, exclusive
from thinwire.runs.loop import run_loop
from thinwire.soma.compute import Compute
from thinwire.soma.eggroll_job import (
    EggrollJob,
    EggrollState,
    apply_record,
    byte_forwards_per_update,
    evaluate_update,
    initial_state,
    refuse_infinite,
    validation_loss,
)
from thinwire.soma.eggroll_log import Record, SignLog, SignLogContents, SignRecord, ValidationRecord
from thinwire.soma.eggroll_log import read as read_sign_log

CHECKPOINTS_KEPT = 2


def train(
    job: EggrollJob,
    *,
    folder: JobFolder,
    compute: Compute,
    task: Task,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> EggrollState:
    """Train a job to its last update, from wherever its folder stands.

    Raises:
        UserError: the folder belongs to another job, or a log or checkpoint in it is damaged.
        InterruptedRunError: ``should_stop`` said so; everything acknowledged is kept.
        RunFailedError: training has diverged.
        OSError: the disk is full or read-only; everything acknowledged is kept.
    """
    torch.set_num_threads(1)
    with exclusive(folder.root):
        state, log = resume(job, folder=folder, compute=compute, say=say)
        task.advance(state.update)
        try:
            state = _run(job, state, folder=folder, log=log, compute=compute, task=task, should_stop=should_stop)
        finally:
            log.close()
        if state.update not in checkpoint.list_updates(folder.checkpoints):
            _save(state, folder)  # a kill came between the last record and the last checkpoint
        write_json(folder.done, _done_record(job))
    return state


def is_done(job: EggrollJob, *, folder: JobFolder) -> bool:
    """Whether the folder holds this job's last update, made from the same inputs, and its weights."""
    if job.config.training.updates not in checkpoint.list_updates(folder.checkpoints) or not folder.done.is_file():
        return False
    return bool(read_json(folder.done) == _done_record(job))


def _done_record(job: EggrollJob) -> dict[str, Any]:
    return {"fingerprint": job.fingerprint, "updates": job.config.training.updates}


def resume(
    job: EggrollJob, *, folder: JobFolder, compute: Compute, say: Callable[[str], None]
) -> tuple[EggrollState, SignLog]:
    """The state after the last acknowledged record, and the log ready for the next.

    Raises:
        UserError: the log is another job's, or damaged; a checkpoint is truncated or of another shape.
    """
    checkpoint.sweep(folder.checkpoints)
    contents = read_sign_log(folder.scalars)
    if contents.torn_bytes:
        say(f"{folder.scalars}: dropped a torn last record ({contents.torn_bytes} bytes); it was never acknowledged")
    if contents.header and contents.header["fingerprint"] != job.fingerprint:
        raise UserError(
            "this folder holds a job with other inputs (configuration or data)",
            where=str(folder.root),
            fix="give another --out, or remove this folder to train the job anew",
        )
    if not checkpoint.list_updates(folder.checkpoints):
        _save(initial_state(job), folder)
    state = _state_after(contents, job=job, folder=folder, compute=compute)
    restore_json_lines(folder.log, lines_of(job, contents.records))
    header = {"fingerprint": job.fingerprint, "seed": job.config.seed, "parameters": job.config.shape.num_parameters}
    log = SignLog(folder.scalars, good_bytes=contents.good_bytes, header=header)
    validated = {record.update for record in contents.records if isinstance(record, ValidationRecord)}
    if _validates(job, state.update) and state.update not in validated:
        _validate(job, state, folder=folder, log=log, compute=compute)
    return state, log


def _state_after(contents: SignLogContents, *, job: EggrollJob, folder: JobFolder, compute: Compute) -> EggrollState:
    state = load_state(job, folder=folder, update=checkpoint.list_updates(folder.checkpoints)[-1])
    if state.update > contents.last_update:
        raise UserError(
            f"the newest checkpoint is of update {state.update}, but the sign log ends at {contents.last_update}",
            where=str(folder.scalars),
            fix=f"restore the log from a copy, or remove every checkpoint above {contents.last_update} from "
            f"{folder.checkpoints} (.json and .safetensors): the job goes on from the log's end",
        )
    for record in contents.records:
        if record.update > state.update:
            state = apply_record(job, state, record, compute=compute)
    return state


def lines_of(job: EggrollJob, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """What an undisturbed run would have written to ``log.jsonl``, in its order."""
    device_seconds = 0.0
    for record in records:
        if isinstance(record, ValidationRecord):
            yield _validation_line(job, record, device_seconds=device_seconds)
            continue
        device_seconds = record.device_seconds
        if record.update % job.config.training.log_every == 0:
            yield _update_line(job, record)


def _update_line(job: EggrollJob, record: SignRecord) -> dict[str, Any]:
    """The keys of a SOMA job's line: what a weight moves is its ``learning_rate``, sigma its ``epsilon``."""
    return {
        "kind": "update",
        "update": record.update,
        "train_loss_nats_per_byte": record.train_loss,
        "learning_rate": job.config.rules.float_step,
        "epsilon": job.config.rules.sigma,
        "derivative_rms": record.derivative_rms,
        "moved_fraction": record.moved_fraction,
    } | _cost(job, record.update, record.device_seconds)


def _validation_line(job: EggrollJob, record: ValidationRecord, *, device_seconds: float) -> dict[str, Any]:
    line = {"kind": "validation", "update": record.update, "loss_nats_per_byte": record.loss}
    return line | _cost(job, record.update, device_seconds)


def _cost(job: EggrollJob, update: int, device_seconds: float) -> dict[str, Any]:
    forwards = update * byte_forwards_per_update(job.config.training)
    return {"byte_forwards": forwards, "device_seconds": round(device_seconds, 3)}


def _validates(job: EggrollJob, update: int) -> bool:
    return update % job.config.training.validate_every == 0 or update == job.config.training.updates


def _run(
    job: EggrollJob,
    state: EggrollState,
    *,
    folder: JobFolder,
    log: SignLog,
    compute: Compute,
    task: Task,
    should_stop: Callable[[], bool],
) -> EggrollState:
    training = job.config.training

    def step(state: EggrollState, _: int) -> EggrollState:
        evaluated = evaluate_update(job, state, compute=compute, should_stop=should_stop)
        log.append(evaluated.record)
        if evaluated.record.update % training.log_every == 0:
            append_json_line(folder.log, _update_line(job, evaluated.record))
        return evaluated.state

    def validate(state: EggrollState, *, update: int) -> EggrollState:
        if _validates(job, update):
            task.note(f"{_validate(job, state, folder=folder, log=log, compute=compute):.4f} nats/byte")
        return state

    def save(state: EggrollState, *, update: int) -> EggrollState:
        if update % training.checkpoint_every == 0 or update == training.updates:
            _save(state, folder)
        return state

    def show(state: EggrollState, *, update: int) -> EggrollState:  # noqa: ARG001
        task.advance(1)
        return state

    return run_loop(
        state,
        step,
        first_update=state.update + 1,
        last_update=training.updates,
        hooks=[validate, save, show],
        should_stop=should_stop,
    )


def _validate(job: EggrollJob, state: EggrollState, *, folder: JobFolder, log: SignLog, compute: Compute) -> float:
    loss = validation_loss(job, state.theta, compute=compute)
    refuse_infinite(loss, update=state.update)
    record = ValidationRecord(state.update, loss)
    log.append(record)
    append_json_line(folder.log, _validation_line(job, record, device_seconds=state.device_seconds))
    return loss


def _save(state: EggrollState, folder: JobFolder) -> None:
    tensors, meta = {"theta": state.theta, "streams": state.streams}, {"device_seconds": state.device_seconds}
    checkpoint.save(folder.checkpoints, state.update, tensors=tensors, meta=meta, keep=CHECKPOINTS_KEPT)


def load_state(job: EggrollJob, *, folder: JobFolder, update: int) -> EggrollState:
    """The state of one checkpoint. Raises UserError where it is damaged or of another shape."""
    start = initial_state(job)
    shapes = {"theta": tuple(start.theta.shape), "streams": tuple(start.streams.shape)}
    saved = checkpoint.load(folder.checkpoints, update, shapes=shapes)
    return EggrollState(saved.tensors["theta"], saved.tensors["streams"], saved.update, saved.meta["device_seconds"])
