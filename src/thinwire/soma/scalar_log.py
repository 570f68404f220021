"""What is the least that rebuilds a run?  Per update: rates, batch digest and FP64 loss differences (decision 0003).

8 bytes a direction and 61 more an update.  The probes are rebuilt from their address, so these scalars determine every
weight; a validation is logged too, because the plateau rule decides the next rates from it.
"""

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thinwire.base.errors import UserError
from thinwire.runs.record_log import RecordLog, frame_bytes, scan

FORMAT = "thinwire-scalars-1"
UPDATE = struct.Struct("<cIddddQI")
VALIDATION = struct.Struct("<cId")
HEADER_KIND, UPDATE_KIND, VALIDATION_KIND = b"H", b"U", b"V"


class UpdateRecord(NamedTuple):
    """One update.

    Attributes:
        update: 1-based.
        learning_rate, epsilon: what this update used.
        train_loss: mean of every loss its forwards gave, nats per byte.
        device_seconds: since the job began, over all its processes' lives.
        batch_digest: 64 bits of the hash of the batches' bytes.
        differences: float64 [A, n], loss differences of each accumulation batch and direction.
    """

    update: int
    learning_rate: float
    epsilon: float
    train_loss: float
    device_seconds: float
    batch_digest: int
    differences: np.ndarray


class ValidationRecord(NamedTuple):
    update: int
    loss: float


Record = UpdateRecord | ValidationRecord


class ScalarLogContents(NamedTuple):
    """A whole log.

    Attributes:
        header: what the job was; empty where the log is.
        records: updates and validations, in order.
        good_bytes: where to append.
        torn_bytes: what a cut-short write left behind them.
    """

    header: dict[str, Any]
    records: list[Record]
    good_bytes: int
    torn_bytes: int

    @property
    def last_update(self) -> int:
        """0 where there is none."""
        return max((record.update for record in self.records if isinstance(record, UpdateRecord)), default=0)

    def first(self, count: int) -> "ScalarLogContents":
        """The log as it was after its first ``count`` records."""
        behind = sum(frame_bytes(_pack(record)) for record in self.records[count:])
        return self._replace(records=self.records[:count], good_bytes=self.good_bytes - behind)


def _pack(record: Record) -> bytes:
    if isinstance(record, ValidationRecord):
        return VALIDATION.pack(VALIDATION_KIND, record.update, record.loss)
    values = np.ascontiguousarray(record.differences, "<f8")
    fields = (record.update, record.learning_rate, record.epsilon, record.train_loss, record.device_seconds)
    return UPDATE.pack(UPDATE_KIND, *fields, record.batch_digest, values.shape[0]) + values.tobytes()


def _unpack(payload: bytes) -> Record:
    if payload[:1] == VALIDATION_KIND:
        _, update, loss = VALIDATION.unpack(payload)
        return ValidationRecord(update, loss)
    _, update, learning_rate, epsilon, loss, seconds, digest, num_batches = UPDATE.unpack_from(payload)
    differences = np.frombuffer(payload, "<f8", offset=UPDATE.size).reshape(num_batches, -1)
    return UpdateRecord(update, learning_rate, epsilon, loss, seconds, digest, differences)


def read(path: Path) -> ScalarLogContents:
    """Raises UserError where a record in the middle is damaged or missing, or the file is no scalar log."""
    payloads, good_bytes, torn_bytes = scan(path)
    if not payloads:
        return ScalarLogContents({}, [], good_bytes, torn_bytes)
    header = json.loads(payloads[0][1:]) if payloads[0][:1] == HEADER_KIND else {}
    if header.get("format") != FORMAT:
        raise UserError("this is not a scalar log", where=str(path), fix="restore the run folder from a copy")
    records = [_unpack(payload) for payload in payloads[1:]]
    _check_order(records, path)
    return ScalarLogContents(header, records, good_bytes, torn_bytes)


def _check_order(records: list[Record], path: Path) -> None:
    last = 0
    for record in records:
        if record.update != (last if isinstance(record, ValidationRecord) else last + 1):
            what = f"the log goes from update {last} to {record.update}: records are missing or out of order"
            raise UserError(what, where=str(path), fix="restore the log from a copy")
        last = record.update


class ScalarLog:
    """The writing end."""

    def __init__(self, path: Path, *, good_bytes: int, header: dict[str, Any]) -> None:
        self._log = RecordLog.open_at(path, good_bytes=good_bytes)
        if good_bytes == 0:
            self._log.append(HEADER_KIND + json.dumps({"format": FORMAT, **header}, sort_keys=True).encode())

    def append(self, record: Record) -> None:
        """Acknowledge: a kill after this returns no longer loses the record."""
        self._log.append(_pack(record))

    def sync(self) -> None:
        self._log.sync()

    def close(self) -> None:
        self._log.close()
