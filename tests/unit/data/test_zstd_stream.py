"""Is a Zstandard file read whole, whatever its frames, and a cut one refused at every place that can be seen?"""

import io
from pathlib import Path

import numpy as np
import pytest
import zstandard

from thinwire.data.zstd_stream import ZstdStream

SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"


def read(path: Path, payload: bytes) -> bytes:
    path.write_bytes(payload)
    with io.BufferedReader(ZstdStream(path), 4096) as handle:
        return handle.read()


def test_frames_follow_one_another(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 50_000, np.uint8).tobytes()
    parts = [b"first\n", b"", noise, bytes(3_000_000), b"last\n"]
    frames = [zstandard.compress(part) for part in parts]
    assert read(tmp_path / "a.zst", SKIPPABLE.join(frames)) == b"".join(parts)


def test_a_cut_anywhere_inside_a_frame_is_seen(tmp_path: Path) -> None:
    first, second = zstandard.compress(b"one line\n"), zstandard.compress(b"another\n" * 3)
    whole = first + second
    for cut in range(1, len(whole)):
        if cut == len(first):
            assert read(tmp_path / "a.zst", whole[:cut]) == b"one line\n"
        else:
            with pytest.raises(EOFError, match="inside a frame"):
                read(tmp_path / "a.zst", whole[:cut])


def test_a_cut_after_a_whole_block_is_seen(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    flushed = compressor.compress(b"a whole line\n") + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    assert read(tmp_path / "a.zst", flushed + compressor.flush()) == b"a whole line\n"
    with pytest.raises(EOFError):
        read(tmp_path / "a.zst", flushed)


def test_what_is_no_frame_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(zstandard.ZstdError):
        read(tmp_path / "a.zst", zstandard.compress(b"text") + b"and something else")
