"""Are the losses in a run's log those that its weights give?  Randomly chosen updates, evaluated again (decision 0003).

Weights are rebuilt from the log up to an update, then its forwards are made once more, on the text that its address
names. Who publishes a run folder can so be checked at a small part of the cost of the training.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Silent
from thinwire.base.seeds import stream_key
from thinwire.soma.compute import Compute
from thinwire.soma.expert_job import ExpertJob, initial_state
from thinwire.soma.expert_update import apply_record, evaluate_update
from thinwire.soma.replay import contents_of
from thinwire.soma.run import SEED_NAME, SomaRun, job_label
from thinwire.soma.scalar_log import ScalarLogContents, UpdateRecord

TOLERANCE = 1e-5
"""Of the loss. FP32 losses of two machines agree to 2e-6; weights rebuilt on another machine part by rounding too."""


class Audited(NamedTuple):
    """One update, evaluated again.

    Attributes:
        job: ``seed`` or an expert's number.
        update: 1-based.
        logged_loss, found_loss: mean of its losses, nats per byte.
        largest_difference: between logged and found loss differences and mean losses, nats per byte.
        has_same_text: the batches are the logged ones.
    """

    job: str
    update: int
    logged_loss: float
    found_loss: float
    largest_difference: float
    has_same_text: bool

    @property
    def is_equal(self) -> bool:
        """Bit for bit, as on one kind of machine with one implementation."""
        return self.has_same_text and self.largest_difference == 0

    @property
    def agrees(self) -> bool:
        """Within rounding."""
        return self.has_same_text and self.largest_difference <= TOLERANCE * abs(self.logged_loss)


def audit(
    root: Path, *, updates: int, seed: int = 0, compute: Compute | None = None, progress: Progress | None = None
) -> list[Audited]:
    """Evaluate ``updates`` of the run's updates again, or all where it has fewer.

    Args:
        root: a SOMA run folder; its data folder must be at hand.
        updates: how many, drawn without replacement from all jobs' acknowledged updates.
        seed: of the draw.
        compute: None takes the run's implementation, on one thread.
        progress: a bar a job.

    Raises:
        UserError: this is no SOMA run, its data or logs are missing, changed or damaged, it has no updates, or its
            experts learned from summed losses, which no expert's log alone gives.
    """
    run = SomaRun.open(root)
    if updates < 1:
        raise UserError(f"{updates} updates cannot be checked", where="--updates", fix="give 1 or more")
    if run.config.losses == "summed":
        raise UserError(
            "experts that learned from summed losses cannot be audited one by one",
            where=str(run.folder.config),
            fix="audit a run of independent losses",
        )
    compute = compute or Compute(run.config.launch.implementation)
    corpus, found = run.open_corpus(), []
    names = [SEED_NAME, *(str(expert) for expert in range(run.num_experts))]
    started = [name for name in names if run.job_folder(name).scalars.is_file()]
    jobs = {name: run.job(name, corpus=corpus) for name in started}
    logs = {name: contents_of(job, run=run, name=name) for name, job in jobs.items()}
    chosen = _drawn({name: log.last_update for name, log in logs.items()}, count=updates, seed=seed)
    if not chosen:
        raise UserError("this run has no updates yet", where=str(root), fix="train it first")
    for name, wanted in chosen.items():
        found += _audit_job(
            jobs[name], logs[name], name=name, wanted=wanted, compute=compute, progress=progress or Silent()
        )
    return found


def _drawn(last_updates: dict[str, int], *, count: int, seed: int) -> dict[str, list[int]]:
    """Which updates of which job, in their order."""
    every = [(name, update) for name, last in last_updates.items() for update in range(1, last + 1)]
    key = stream_key(seed, "audit")
    order = np.random.default_rng([key.low, key.high]).permutation(len(every))[:count]
    chosen: dict[str, list[int]] = {}
    for index in sorted(order):
        name, update = every[index]
        chosen.setdefault(name, []).append(update)
    return chosen


def _audit_job(
    job: ExpertJob, log: ScalarLogContents, *, name: str, wanted: list[int], compute: Compute, progress: Progress
) -> list[Audited]:
    torch.set_num_threads(1)
    state, found = initial_state(job), []
    task = progress.task(f"audit {job_label(name)}", wanted[-1])
    for record in log.records:
        if isinstance(record, UpdateRecord):
            if record.update in wanted:
                again = evaluate_update(job, state, compute=compute).record
                found.append(_compared(name, logged=record, found=again))
                if record.update == wanted[-1]:
                    break
            task.advance()
        state = apply_record(job, state, record, compute=compute)
    task.close()
    return found


def _compared(name: str, *, logged: UpdateRecord, found: UpdateRecord) -> Audited:
    parts = [abs(logged.train_loss - found.train_loss), *np.abs(logged.differences - found.differences).ravel()]
    return Audited(
        name,
        logged.update,
        logged.train_loss,
        found.train_loss,
        float(np.max(parts)),
        logged.batch_digest == found.batch_digest,
    )
