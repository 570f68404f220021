"""What is the least that rebuilds an EGGROLL run?  One sign a pair and update, two bits each (decision 0003).

The noise is drawn again by address, so the signs determine every weight.  An update of 2^20 members takes 128 KiB (16
GB over the paper's 122,000 updates), one of 4,096 members 0.5 KiB.
"""

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int8

from thinwire.base.errors import UserError
from thinwire.runs.record_log import RecordLog, scan

FORMAT = "thinwire-signs-1"
UPDATE = struct.Struct("<cIddddQI")
VALIDATION = struct.Struct("<cId")
HEADER_KIND, UPDATE_KIND, VALIDATION_KIND = b"H", b"U", b"V"
PAIRS_PER_BYTE = 4
SHIFTS = np.arange(0, 8, 8 // PAIRS_PER_BYTE, dtype=np.uint8)
"""Of the four pairs in a byte, the first in its lowest two bits; a sign is stored plus one."""


class SignRecord(NamedTuple):
    """One update.

    Attributes:
        update: 1-based.
        train_loss: mean loss of all members, nats per byte.
        derivative_rms: root mean square over pairs of (L+ - L-) / (2 sigma), a slope along the perturbation.
        moved_fraction: the part of the weights that moved.
        device_seconds: core-seconds since the job began, over all its processes' lives.
        text_digest: 64 bits of the hash of the streams' bytes.
        num_pairs: of the population.
        packed_signs: ``pack_signs`` of them; so they stay small where a whole log is in memory.
    """

    update: int
    train_loss: float
    derivative_rms: float
    moved_fraction: float
    device_seconds: float
    text_digest: int
    num_pairs: int
    packed_signs: bytes

    @property
    def signs(self) -> Int8[np.ndarray, " n"]:
        """Which member of each pair was fitter: 1, -1, or 0 for neither."""
        return unpack_signs(self.packed_signs, num_pairs=self.num_pairs)


class ValidationRecord(NamedTuple):
    update: int
    loss: float


Record = SignRecord | ValidationRecord


class SignLogContents(NamedTuple):
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
        return max((record.update for record in self.records if isinstance(record, SignRecord)), default=0)


def pack_signs(signs: Int8[np.ndarray, " n"]) -> bytes:
    """Four pairs a byte."""
    padded = np.zeros(-(-len(signs) // PAIRS_PER_BYTE) * PAIRS_PER_BYTE, np.uint8)
    padded[: len(signs)] = signs + 1
    return np.bitwise_or.reduce(padded.reshape(-1, PAIRS_PER_BYTE) << SHIFTS, axis=1).tobytes()


def unpack_signs(packed: bytes, *, num_pairs: int) -> Int8[np.ndarray, " n"]:
    """The inverse of ``pack_signs``."""
    codes = (np.frombuffer(packed, np.uint8)[:, None] >> SHIFTS) & 3
    return codes.reshape(-1)[:num_pairs].astype(np.int8) - np.int8(1)


def _pack(record: Record) -> bytes:
    if isinstance(record, ValidationRecord):
        return VALIDATION.pack(VALIDATION_KIND, record.update, record.loss)
    return UPDATE.pack(UPDATE_KIND, *record[:-1]) + record.packed_signs


def _unpack(payload: bytes) -> Record:
    if payload[:1] == VALIDATION_KIND:
        _, update, loss = VALIDATION.unpack(payload)
        return ValidationRecord(update, loss)
    _, update, loss, slope, moved, seconds, digest, num_pairs = UPDATE.unpack_from(payload)
    return SignRecord(update, loss, slope, moved, seconds, digest, num_pairs, payload[UPDATE.size :])


def read(path: Path) -> SignLogContents:
    """Raises UserError where a record in the middle is damaged or missing, or the file is no sign log."""
    payloads, good_bytes, torn_bytes = scan(path)
    if not payloads:
        return SignLogContents({}, [], good_bytes, torn_bytes)
    fix = "restore the run folder from a copy"
    header = json.loads(payloads[0][1:]) if payloads[0][:1] == HEADER_KIND else {}
    if header.get("format") != FORMAT:
        raise UserError("this is not a sign log", where=str(path), fix=fix)
    records, last = [_unpack(payload) for payload in payloads[1:]], 0
    for record in records:
        if record.update != (last if isinstance(record, ValidationRecord) else last + 1):
            what = f"the log goes from update {last} to {record.update}: records are missing or out of order"
            raise UserError(what, where=str(path), fix=fix)
        last = record.update
    return SignLogContents(header, records, good_bytes, torn_bytes)


class SignLog:
    """The writing end."""

    def __init__(self, path: Path, *, good_bytes: int, header: dict[str, Any]) -> None:
        self._log = RecordLog.open_at(path, good_bytes=good_bytes)
        if good_bytes == 0:
            self._log.append(HEADER_KIND + json.dumps({"format": FORMAT, **header}, sort_keys=True).encode())

    def append(self, record: Record) -> None:
        """Acknowledge: a kill after this returns no longer loses the record."""
        self._log.append(_pack(record))

    def close(self) -> None:
        self._log.sync()
        self._log.close()
