"""Work in bytes is shown in MB, and every bar ends at its total."""

import json
from pathlib import Path

import pytest

from thinwire.data.byte_progress import ByteTask
from thinwire.data.prepare import prepare


class Recorder:
    """Keeps what the bars were told."""

    def __init__(self) -> None:
        self.totals: dict[str, int | None] = {}
        self.done: dict[str, int] = {}

    def task(self, name: str, total: int | None) -> "RecordedTask":
        self.totals[name], self.done[name] = total, 0
        return RecordedTask(self, name)


class RecordedTask:
    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.name = recorder, name

    def advance(self, count: int = 1) -> None:
        self.recorder.done[self.name] += count

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("num_bytes", [0, 1, 999_999, 1_000_000, 1_000_001, 30_843_740])
def test_a_bar_ends_at_its_total(num_bytes: int) -> None:
    recorder = Recorder()
    task = ByteTask(recorder, "reading", num_bytes=num_bytes)
    for start in range(0, num_bytes, 400_001):
        task.advance(min(400_001, num_bytes - start))
        assert recorder.done["reading (MB)"] == min(start + 400_001, num_bytes) // 1_000_000
    task.close()
    assert recorder.done["reading (MB)"] == recorder.totals["reading (MB)"] == (num_bytes + 999_999) // 1_000_000


def test_prepare_counts_in_megabytes(tmp_path: Path) -> None:
    texts = [f"document {n} " * 10_000 for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recorder = Recorder()
    manifest = prepare([str(tmp_path / "a.jsonl")], out=tmp_path / "data", progress=recorder).manifest
    train_bytes = manifest["splits"]["train"]["num_bytes"]
    assert recorder.totals["screening for overlap (MB)"] == -(-train_bytes // 1_000_000)
    assert recorder.done["screening for overlap (MB)"] == recorder.totals["screening for overlap (MB)"]
    assert recorder.done["reading (MB)"] == -(-sum(map(len, texts)) // 1_000_000)
