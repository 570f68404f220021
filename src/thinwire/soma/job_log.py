"""Which lines of a job's ``log.jsonl`` follow from its scalar log?  All of them; a restart writes the missing ones.

The scalar log is what was acknowledged; these lines are the same facts for people and for the report.  A kill or a
full disk between the two leaves a line out or cut short.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from thinwire.base.files import restore_json_lines
from thinwire.soma.expert_job import ExpertJob, byte_forwards_per_update
from thinwire.soma.scalar_log import Record, UpdateRecord, ValidationRecord
from thinwire.soma.spsa import derivatives


def update_line(job: ExpertJob, record: UpdateRecord) -> dict[str, Any]:
    """Losses in nats per byte; ``derivative_rms`` over the first accumulation batch's directions, where it has any."""
    line = {
        "kind": "update",
        "update": record.update,
        "train_loss_nats_per_byte": record.train_loss,
        "learning_rate": record.learning_rate,
        "epsilon": record.epsilon,
    }
    if record.differences.size:
        slopes = derivatives(record.differences[0], epsilon=record.epsilon, difference=job.config.difference)
        line["derivative_rms"] = float((slopes**2).mean() ** 0.5)
    return line | _cost(job, record.update, record.device_seconds)


def validation_line(job: ExpertJob, record: ValidationRecord, *, device_seconds: float) -> dict[str, Any]:
    """``device_seconds`` are those of the update it belongs to; of summed losses, every expert logs their mean."""
    line = {"kind": "validation", "update": record.update, "loss_nats_per_byte": record.loss}
    return line | _cost(job, record.update, device_seconds)


def _cost(job: ExpertJob, update: int, device_seconds: float) -> dict[str, Any]:
    forwards = update * byte_forwards_per_update(job.config)
    return {"byte_forwards": forwards, "device_seconds": round(device_seconds, 3)}


def lines_of(job: ExpertJob, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """What an undisturbed run would have written, in its order."""
    device_seconds = 0.0
    for record in records:
        if isinstance(record, ValidationRecord):
            yield validation_line(job, record, device_seconds=device_seconds)
            continue
        device_seconds = record.device_seconds
        if record.update % job.config.log_every == 0:
            yield update_line(job, record)


def restore(job: ExpertJob, path: Path, records: Iterable[Record]) -> None:
    """Make ``path`` say what ``records`` say."""
    restore_json_lines(path, lines_of(job, records))
