"""Windows are pure functions of their address and stay inside what they are drawn from."""

from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.base.seeds import stream_key
from thinwire.data.shards import ByteShards, ShardWriter
from thinwire.data.windows import document_windows, draw_training_windows, num_windows

KEY = stream_key(1, "batch", 2)


@pytest.fixture
def shards(tmp_path: Path) -> ByteShards:
    """Documents of 10, 20, ..., 600 bytes, random values without 0, in shard files of 1,000 bytes."""
    generator = np.random.default_rng(0)
    with ShardWriter(tmp_path, shard_bytes=1000) as writer:
        for number in range(1, 61):
            writer.add(generator.integers(1, 256, 10 * number, np.uint8).tobytes(), source=number % 4)
    return ByteShards.open(tmp_path)


def draw(shards: ByteShards, members: np.ndarray, **changes: int) -> np.ndarray:
    address = {"update": 5, "accumulation": 1, "batch": 16, "input_bytes": 24, "window_bytes": 32} | changes
    return draw_training_windows(shards, members, key=KEY, **address)  # type: ignore[arg-type]


def test_the_last_window_keeps_one_byte_behind_it(tmp_path: Path) -> None:
    for total, expected in ((32, 0), (33, 1), (64, 1), (65, 2)):
        folder = tmp_path / str(total)
        with ShardWriter(folder) as writer:
            writer.add(b"x" * (total - 1), source=0)
        shards = ByteShards.open(folder)
        assert (shards.num_bytes, num_windows(shards, window_bytes=32)) == (total, expected)


def test_a_batch_is_a_function_of_its_address(shards: ByteShards) -> None:
    members = np.arange(num_windows(shards, window_bytes=32))
    first = draw(shards, members)
    assert first.shape == (16, 25)
    assert np.array_equal(first, draw(shards, members))
    for change in ({"update": 6}, {"accumulation": 0}):
        assert not np.array_equal(first, draw(shards, members, **change))
    other = draw_training_windows(
        shards,
        members,
        key=stream_key(1, "batch", 3),
        update=5,
        accumulation=1,
        batch=16,
        input_bytes=24,
        window_bytes=32,
    )
    assert not np.array_equal(first, other)


def test_windows_come_from_the_members_at_every_offset(shards: ByteShards) -> None:
    stream = shards.stream()
    members = np.array([3, 11])
    allowed = {(w, o): stream[w * 32 + o : w * 32 + o + 25].tobytes() for w in members for o in range(9)}
    rows = np.concatenate([draw(shards, members, update=update) for update in range(60)])
    seen = {row.tobytes() for row in rows}
    assert seen == set(allowed.values())


def test_members_are_drawn_evenly(shards: ByteShards) -> None:
    members = np.arange(10)
    rows = draw(shards, members, batch=20_000, input_bytes=32)
    firsts = {shards.stream()[w * 32 : w * 32 + 33].tobytes(): w for w in members}
    counts = np.bincount([firsts[row.tobytes()] for row in rows], minlength=10)
    assert abs(counts - 2000).max() < 5 * np.sqrt(2000)


@pytest.mark.parametrize("changes", [{"input_bytes": 33}, {"input_bytes": 0}])
def test_a_window_cannot_hold_more_than_it_has(shards: ByteShards, changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        draw(shards, np.arange(4), **changes)
    with pytest.raises(ValueError, match="from 0 windows"):
        draw(shards, np.empty(0, np.int64))


def test_each_long_document_gives_one_window_inside_it(shards: ByteShards) -> None:
    found = document_windows(shards, window_bytes=100, max_windows=1000, key=KEY)
    assert found.documents.tolist() == list(range(10, 60))
    assert found.windows.shape == (50, 101)
    assert found.sources.tolist() == [(index + 1) % 4 for index in range(10, 60)]
    for row, document in zip(found.windows, found.documents, strict=True):
        assert row.tobytes() in shards.document(int(document))


def test_more_documents_than_wanted_are_chosen_by_address(shards: ByteShards) -> None:
    first = document_windows(shards, window_bytes=100, max_windows=20, key=KEY)
    again = document_windows(shards, window_bytes=100, max_windows=20, key=KEY)
    other = document_windows(shards, window_bytes=100, max_windows=20, key=stream_key(2, "batch", 2))
    assert len(set(first.documents.tolist())) == 20
    assert first.documents.tolist() == sorted(first.documents.tolist())
    assert np.array_equal(first.windows, again.windows)
    assert first.documents.tolist() != other.documents.tolist()
    assert first.documents.tolist() != list(range(10, 30))


def test_documents_shorter_than_a_window_are_a_clear_error(shards: ByteShards) -> None:
    with pytest.raises(UserError, match=r"601 bytes \(60 documents, the longest has 600 bytes\)"):
        document_windows(shards, window_bytes=600, max_windows=10, key=KEY)
