"""Preparing streams: peak memory does not follow the size of the input."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

MEASURE = """
import resource, sys
from pathlib import Path
from thinwire.data.prepare import prepare
prepare(sys.argv[2:], out=Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def peak_bytes(out: Path, sources: list[Path]) -> int:
    command = [sys.executable, "-c", MEASURE, str(out), *map(str, sources)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write_records(path: Path, seed: int) -> Path:
    """Three thousand documents of 2,000 letters, 6 MB."""
    letters = np.random.default_rng(seed).integers(97, 123, (3000, 2000), np.uint8)
    path.write_text("".join(json.dumps({"text": row.tobytes().decode()}) + "\n" for row in letters))
    return path


def test_eight_times_the_input_takes_hardly_more_memory(tmp_path: Path) -> None:
    files = [write_records(tmp_path / f"{seed}.jsonl", seed) for seed in range(8)]
    small = peak_bytes(tmp_path / "small", files[:1])
    large = peak_bytes(tmp_path / "large", files)
    assert sum(path.stat().st_size for path in files[1:]) > 40_000_000
    assert large - small < 25_000_000


def test_one_long_line_is_not_held_whole(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    with path.open("wb") as handle:
        for _ in range(60):
            handle.write(b"no end of line in sight " * 43_690)
    (tmp_path / "few.txt").write_bytes(b"a few words\n" * 10_000)
    base = peak_bytes(tmp_path / "small", [tmp_path / "few.txt"])
    assert path.stat().st_size > 60_000_000
    assert peak_bytes(tmp_path / "large", [path]) - base < 45_000_000
