"""Which records were acknowledged?  An append-only binary log that tells a torn end from damage in the middle.

Frame: length u32, CRC-32 of the payload u32, CRC-32 of those eight bytes u32, payload; little endian.  A write cut
short leaves a prefix of a frame at the end: it is dropped, with a message.  Anything else that does not check is
damage: it is refused with its position, because records behind it would be lost silently.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from thinwire.base.errors import UserError

HEADER = struct.Struct("<III")
PREFIX = struct.Struct("<II")


class LogScan(NamedTuple):
    """What a log holds.

    Attributes:
        payloads: every whole record, in order.
        good_bytes: where the last whole record ends.
        torn_bytes: bytes behind it, left by a write that was cut short.
    """

    payloads: list[bytes]
    good_bytes: int
    torn_bytes: int


def _frames(data: bytes, path: Path) -> Iterator[tuple[bytes, int]]:
    position = 0
    while len(data) - position >= HEADER.size:
        length, payload_crc, header_crc = HEADER.unpack_from(data, position)
        end = position + HEADER.size + length
        if zlib.crc32(data[position : position + PREFIX.size]) != header_crc:
            if not any(data[position:]):
                return  # a file system that lengthened the file before writing: nothing was acknowledged
            raise _damaged(path, position)
        if end > len(data):
            return
        payload = data[position + HEADER.size : end]
        if zlib.crc32(payload) != payload_crc:
            if end == len(data):
                return
            raise _damaged(path, position)
        yield payload, end
        position = end


def _damaged(path: Path, position: int) -> UserError:
    return UserError(
        "a record in the middle of the log is damaged",
        where=f"{path}, byte {position}",
        fix="restore the log from a copy; what lies behind this position cannot be trusted",
    )


def frame_bytes(payload: bytes) -> int:
    """What a record takes in the file."""
    return HEADER.size + len(payload)


def scan(path: Path) -> LogScan:
    """Every whole record of a log; an absent file is an empty log.

    Raises:
        UserError: where a record that is not the last one is damaged, with its byte position.
    """
    data = path.read_bytes() if path.exists() else b""
    payloads, good = [], 0
    for payload, end in _frames(data, path):
        payloads.append(payload)
        good = end
    return LogScan(payloads, good, len(data) - good)


@dataclass
class RecordLog:
    """The writing end. ``open_at`` cuts a torn end off first."""

    path: Path
    descriptor: int
    size: int

    @classmethod
    def open_at(cls, path: Path, *, good_bytes: int) -> "RecordLog":
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.ftruncate(descriptor, good_bytes)
        return cls(path, descriptor, good_bytes)

    def append(self, payload: bytes) -> None:
        """One record; when this returns, neither a kill nor a loss of power loses it.

        Raises:
            OSError: from the file system (disk full); what was written of the record is taken back.
        """
        prefix = PREFIX.pack(len(payload), zlib.crc32(payload))
        frame = prefix + struct.pack("<I", zlib.crc32(prefix)) + payload
        written = 0
        try:
            while written < len(frame):
                written += os.pwrite(self.descriptor, frame[written:], self.size + written)
            os.fdatasync(self.descriptor)
        except OSError as error:
            os.ftruncate(self.descriptor, self.size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.size += len(frame)

    def sync(self) -> None:
        """Make every record durable against a loss of power."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)
