"""What does a Zstandard file hold, and is it whole?  The library's stream reader takes a cut file for a short one."""

import io
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

# Few compressed bytes at a time: a block of 128 KiB can be as small as four bytes, so 1 KiB gives 32 MiB at the most.
STEP_BYTES = 1024
MAX_WINDOW_BYTES = 2**31


class ZstdStream(io.RawIOBase):
    """The decompressed bytes of a file of one or more frames; wrap it in a ``BufferedReader``.

    A file cut between two frames is a valid one, so that such a cut cannot be seen.

    Raises:
        EOFError: while reading, where the file ends inside a frame.
        zstandard.ZstdError: while reading, where it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            block = self._compressed or self._file.read(STEP_BYTES)
            if not block:
                if self._frame is not None:
                    raise EOFError("the file ends inside a frame")
                return 0
            frame = self._frame or self._decompressor.decompressobj()
            self._ready = memoryview(frame.decompress(block))
            self._compressed = frame.unused_data if frame.eof else b""
            self._frame = None if frame.eof else frame
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
