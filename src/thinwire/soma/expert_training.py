"""How does a job start, go on after a kill, and end?  Scalar log first, checkpoints behind it (decision 0003).

Order of an update: forwards, move, append the scalars (now it is acknowledged), then validation, checkpoint, progress.
A restart reads the newest checkpoint and applies the records behind it, so at most the update in flight is lost.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from thinwire.base.errors import UserError
from thinwire.base.files import append_json_line, read_json, write_json
from thinwire.base.progress import Task
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder, exclusive
from thinwire.runs.loop import run_loop
from thinwire.soma import job_log
from thinwire.soma.compute import Compute
from thinwire.soma.expert_job import ExpertJob, ExpertState, batches_of, initial_state, validates
from thinwire.soma.expert_update import (
    Evaluated,
    apply_record,
    complete_update,
    evaluate_update,
    perturbed_losses,
    refuse_infinite,
    validation_loss,
)
from thinwire.soma.handed_job import hand_out
from thinwire.soma.job_checkpoint import load_state, save_state
from thinwire.soma.model import Expert
from thinwire.soma.perturbation_parallel import Crew
from thinwire.soma.scalar_log import ScalarLog, ScalarLogContents, UpdateRecord, ValidationRecord
from thinwire.soma.scalar_log import read as read_scalar_log


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
    return train_together([Member(job, folder)], compute=compute, task=task, say=say, should_stop=should_stop)[0]


class Member(NamedTuple):
    """A job, and where it lies."""

    job: ExpertJob
    folder: JobFolder


def train_together(
    members: Sequence[Member],
    *,
    compute: Compute,
    task: Task,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
    crew: Crew | None = None,
) -> list[Expert]:
    """Train jobs in step, so that each learns from the sum of their losses (Fig. 4); a single one from its own.

    Their training settings are the same. Each keeps a log and checkpoints of its own, as if it were alone; the plateau
    rule follows their mean validation loss, which all of them log.

    Args:
        crew: the ranks that make a single job's updates with this one, which is rank 0; then ``should_stop`` is theirs.

    Raises:
        RunFailedError: training has diverged, or the ranks' weights differ.
        PeerLostError: a rank of the crew is lost; everything acknowledged is kept.
        Else as ``train``.
    """
    torch.set_num_threads(1)  # the delta rule's matrix product must not depend on the number of threads
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(exclusive(member.folder.root))
        states, logs = resume(members, compute=compute, say=say)
        task.advance(states[0].update)
        try:
            if crew is not None:
                hand_out(crew, members[0].job, states[0])
            stops = should_stop if crew is None else lambda: crew.stops
            states = _run(members, states, logs=logs, compute=compute, task=task, should_stop=stops, crew=crew)
        finally:
            for log in logs:
                log.sync()
                log.close()
        for (job, folder), state in zip(members, states, strict=True):
            if state.update not in checkpoint.list_updates(folder.checkpoints):
                save_state(job, state, folder)  # a kill came between the last record and the last checkpoint
            write_json(folder.done, {"fingerprint": job.fingerprint, "updates": job.config.updates})
    return [state.expert for state in states]


def is_done(job: ExpertJob, *, folder: JobFolder) -> bool:
    """Whether the folder holds this job's last update, made from the same inputs, and its weights."""
    if not folder.done.is_file() or job.config.updates not in checkpoint.list_updates(folder.checkpoints):
        return False
    record = read_json(folder.done)
    return record == {"fingerprint": job.fingerprint, "updates": job.config.updates}


def resume(
    members: Sequence[Member], *, compute: Compute, say: Callable[[str], None]
) -> tuple[list[ExpertState], list[ScalarLog]]:
    """The states after the last record that all acknowledged, and the logs ready for the next.

    Raises:
        UserError: a log is another job's, or damaged; a checkpoint is truncated or of another shape.
    """
    contents = [_contents(member, say=say) for member in members]
    acknowledged = min(len(one.records) for one in contents)
    contents = [one.first(acknowledged) for one in contents]
    states = [_state_after(member, one, compute=compute) for member, one in zip(members, contents, strict=True)]
    logs = []
    for (job, folder), one in zip(members, contents, strict=True):
        job_log.restore(job, folder.log, one.records)
        logs.append(ScalarLog(folder.scalars, good_bytes=one.good_bytes, header=log_header(job)))
    job, update = members[0].job, states[0].update
    validated = {r.update for r in contents[0].records if isinstance(r, ValidationRecord)}
    if validates(job, update) and update not in validated:
        states = _validate(members, states, logs=logs, compute=compute)
    return states, logs


def _contents(member: Member, *, say: Callable[[str], None]) -> ScalarLogContents:
    """A job's log; its folder has a checkpoint from then on."""
    job, folder = member
    checkpoint.sweep(folder.checkpoints)
    contents = read_scalar_log(folder.scalars)
    if contents.torn_bytes:
        say(f"{folder.scalars}: dropped a torn last record ({contents.torn_bytes} bytes); it was never acknowledged")
    if contents.header and (parts := contents.header.get("gradient_parts", 1)) != job.gradient_parts:
        raise UserError(
            f"this job's gradient was added in {parts} parts, not {job.gradient_parts}; sums would round differently",
            where=str(folder.root),
            fix="give --exchange scalars, with which any number of ranks may go on, or another --out"
            if parts == 1
            else f"give --launch.ranks {parts} --exchange gradients, or another --out",
        )
    if contents.header and contents.header["fingerprint"] != job.fingerprint:
        raise UserError(
            "this folder holds a job with other inputs (configuration, data or starting weights)",
            where=str(folder.root),
            fix="give another --out, or remove this folder to train the job anew",
        )
    if not checkpoint.list_updates(folder.checkpoints):
        save_state(job, initial_state(job), folder)
    return contents


def _state_after(member: Member, contents: ScalarLogContents, *, compute: Compute) -> ExpertState:
    job, folder = member
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
            state = apply_record(job, state, record, compute=compute)
    return state


def log_header(job: ExpertJob) -> dict[str, Any]:
    added = {} if job.summed_losses == 1 else {"summed_losses": job.summed_losses}
    if job.gradient_parts != 1:
        added["gradient_parts"] = job.gradient_parts
    return added | {
        "fingerprint": job.fingerprint,
        "expert": job.expert,
        "seed": job.seed,
        "parameters": job.shape.num_parameters,
        "directions": job.config.directions,
        "accumulation": job.config.accumulation,
        "difference": job.config.difference,
    }


def _run(
    members: Sequence[Member],
    states: list[ExpertState],
    *,
    logs: list[ScalarLog],
    compute: Compute,
    task: Task,
    should_stop: Callable[[], bool],
    crew: Crew | None,
) -> list[ExpertState]:
    config = members[0].job.config

    def step(states: list[ExpertState], _: int) -> list[ExpertState]:
        moved = []
        updates = _evaluate(members, states, compute=compute, crew=crew)
        for member, log, evaluated in zip(members, logs, updates, strict=True):
            log.append(evaluated.record)
            if evaluated.record.update % config.log_every == 0:
                append_json_line(member.folder.log, job_log.update_line(member.job, evaluated.record))
            moved.append(evaluated.state)
        return moved

    def validate(state: list[ExpertState], *, update: int) -> list[ExpertState]:
        if not validates(members[0].job, update):
            return state
        return _validate(members, state, logs=logs, compute=compute, crew=crew)

    def save(state: list[ExpertState], *, update: int) -> list[ExpertState]:
        if update % config.checkpoint_every == 0 or update == config.updates:
            for log in logs:
                log.sync()
            for member, one in zip(members, state, strict=True):
                save_state(member.job, one, member.folder)
        return state

    def show(state: list[ExpertState], *, update: int) -> list[ExpertState]:
        if validates(members[0].job, update):
            task.note(f"{state[0].plateau.best_loss:.4f} nats/byte")
        task.advance(1)
        return state

    return run_loop(
        states,
        step,
        first_update=states[0].update + 1,
        last_update=config.updates,
        hooks=[validate, save, show],
        should_stop=should_stop,
    )


def _evaluate(
    members: Sequence[Member], states: list[ExpertState], *, compute: Compute, crew: Crew | None
) -> list[Evaluated]:
    """One update of each: from its own loss, or, of several, from the sum of all their losses."""
    pairs = [(member.job, state) for member, state in zip(members, states, strict=True)]
    if len(members) == 1:
        return [evaluate_update(*pairs[0], compute=compute, crew=crew)]
    batches = [batches_of(job, state.update + 1) for job, state in pairs]
    own = [perturbed_losses(*pair, batches=drawn, compute=compute) for pair, drawn in zip(pairs, batches, strict=True)]
    summed = [sum_of(losses) for losses in zip(*(one.of_batches for one in own), strict=True)]
    return [
        complete_update(*pair, batches=drawn, own=losses, learned_from=summed, compute=compute)
        for pair, drawn, losses in zip(pairs, batches, own, strict=True)
    ]


def sum_of(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """float64, in the order of the experts."""
    total = losses[0]
    for one in losses[1:]:
        total = total + one
    return total


def _validate(
    members: Sequence[Member],
    states: list[ExpertState],
    *,
    logs: list[ScalarLog],
    compute: Compute,
    crew: Crew | None = None,
) -> list[ExpertState]:
    pairs = list(zip(members, states, strict=True))
    losses = [validation_loss(member.job, state.expert, compute=compute) for member, state in pairs]
    loss = sum(losses) / len(losses)
    refuse_infinite(members[0].job, loss, update=states[0].update)
    if crew is not None:
        wire_bytes = crew.agree(states[0], loss=loss).wire_bytes
        place = {"after": crew.first_update, "update": states[0].update, "ranks": crew.group.size}
        append_json_line(members[0].folder.exchange, place | {"wire_bytes": wire_bytes})
    observed = []
    for (member, state), log in zip(pairs, logs, strict=True):
        record = ValidationRecord(state.update, loss)
        log.append(record)
        line = job_log.validation_line(member.job, record, device_seconds=state.device_seconds)
        append_json_line(member.folder.log, line)
        observed.append(apply_record(member.job, state, record, compute=compute))
    return observed
