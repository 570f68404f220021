"""What were the weights after update u?  Rebuilt from the scalar log, without perturbed forwards (decision 0003).

Where the decoder trains too, its step is computed again from the addressed batch by the update's one unperturbed
forward.  Bit for bit holds for one implementation on one kind of machine.
"""

from pathlib import Path
from typing import NamedTuple

import torch

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress
from thinwire.runs import checkpoint
from thinwire.soma.compute import Compute
from thinwire.soma.expert_job import ExpertJob, initial_state
from thinwire.soma.expert_update import apply_record
from thinwire.soma.model import Expert
from thinwire.soma.run import SomaRun, job_label
from thinwire.soma.scalar_log import ScalarLogContents, UpdateRecord, read


class Replayed(NamedTuple):
    """Attributes: job name, update, rebuilt weights, and whether a checkpoint of that update agrees bit for bit."""

    job: str
    update: int
    expert: Expert
    agrees: bool | None


def contents_of(job: ExpertJob, *, run: SomaRun, name: str) -> ScalarLogContents:
    """A job's log. Raises UserError where it is damaged, or another job's."""
    path = run.job_folder(name).scalars
    contents = read(path)
    if contents.header.get("fingerprint", job.fingerprint) != job.fingerprint:
        raise UserError(
            "the log was made from other inputs (configuration, data or starting weights)",
            where=str(path),
            fix="restore the run folder from a copy",
        )
    return contents


def rebuild(job: ExpertJob, *, run: SomaRun, name: str, update: int, compute: Compute, progress: Progress) -> Replayed:
    """Weights after ``update`` updates, from the weights at update 0 and the log.

    Raises:
        UserError: the log ends before ``update``, is damaged, or is another job's.
    """
    folder = run.job_folder(name)
    contents = contents_of(job, run=run, name=name)
    last = contents.last_update
    if not 0 <= update <= last:
        raise UserError(
            f"the log of {job_label(name)} ends at update {last}; update {update} is not in it",
            where=str(folder.scalars),
            fix=f"choose 0 to {last}, or train on",
        )
    torch.set_num_threads(1)
    state = initial_state(job)
    task = progress.task(f"replay {job_label(name)}", update)
    for record in contents.records:
        if record.update > update:
            break
        state = apply_record(job, state, record, compute=compute)
        if isinstance(record, UpdateRecord):
            task.advance()
    task.close()
    agrees = None
    if update in checkpoint.list_updates(folder.checkpoints):
        saved = run.final_expert(name, update=update)
        agrees = all(torch.equal(a, b) for a, b in zip(saved, state.expert, strict=True))
    return Replayed(name, update, state.expert, agrees)


def replay(
    root: Path, *, update: int, out: Path, jobs: list[str], compute: Compute, progress: Progress
) -> list[Replayed]:
    """Rebuild jobs and write ``OUT/JOB/checkpoints/UPDATE.safetensors`` (theta, decoder) and its JSON.

    Raises:
        UserError: as ``rebuild``, or ``out`` would put them among the run's own checkpoints.
    """
    run = SomaRun.open(root)
    if out.resolve().is_relative_to(root.resolve()):
        fix = "give a folder outside the run"
        raise UserError("the rebuilt weights would lie among the run's own", where=str(out), fix=fix)
    corpus = run.open_corpus()
    results = []
    for name in jobs:
        job = run.job(name, corpus=corpus)
        replayed = rebuild(job, run=run, name=name, update=update, compute=compute, progress=progress)
        tensors = {"theta": replayed.expert.theta, "decoder": replayed.expert.decoder}
        meta = {"job": name, "run": str(root), "fingerprint": job.fingerprint, "agrees": replayed.agrees}
        checkpoint.save(out / name / "checkpoints", update, tensors=tensors, meta=meta)
        results.append(replayed)
    return results
