"""Shard files give back the stream they were given, whatever the shard size."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.base.errors import UserError
from thinwire.base.files import sha256_file
from thinwire.data.shards import ByteShards, ShardWriter


def write(folder: Path, documents: list[bytes], shard_bytes: int = 1 << 20) -> ByteShards:
    with ShardWriter(folder, shard_bytes=shard_bytes) as writer:
        for number, document in enumerate(documents):
            writer.add(document, source=number % 3)
    return ByteShards.open(folder)


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(st.binary(max_size=40), min_size=1, max_size=12),
    shard_bytes=st.integers(1, 64),
    length=st.integers(1, 30),
)
def test_every_window_equals_the_stream(
    tmp_path_factory: pytest.TempPathFactory, documents: list[bytes], shard_bytes: int, length: int
) -> None:
    stream = b"".join(document + b"\x00" for document in documents)
    shards = write(tmp_path_factory.mktemp("shards"), documents, shard_bytes)
    assert shards.num_bytes == len(stream)
    assert shards.stream().tobytes() == stream
    assert [shards.document(i) for i in range(shards.num_documents)] == documents
    starts = np.arange(max(len(stream) - length + 1, 0), dtype=np.int64)[::-1].copy()
    windows = shards.gather(starts, length=length)
    assert windows.shape == (len(starts), length)
    assert [row.tobytes() for row in windows] == [stream[s : s + length] for s in starts]


def test_the_index_says_where_documents_lie(tmp_path: Path) -> None:
    shards = write(tmp_path, [b"ab", b"", b"\x00\xff\xfe"])
    assert shards.starts.tolist() == [0, 3, 4]
    assert shards.lengths.tolist() == [2, 0, 3]
    assert shards.sources.tolist() == [0, 1, 2]
    assert (shards.starts.dtype, shards.lengths.dtype, shards.sources.dtype) == (np.int64, np.int64, np.int32)
    assert not shards.starts.flags.writeable


def test_a_split_may_be_empty(tmp_path: Path) -> None:
    shards = write(tmp_path, [])
    assert (shards.num_bytes, shards.num_documents) == (0, 0)
    assert shards.gather(np.empty(0, np.int64), length=5).shape == (0, 5)


@pytest.mark.parametrize("start", [-1, 8, 10**12])
def test_a_window_outside_the_stream_is_refused(tmp_path: Path, start: int) -> None:
    shards = write(tmp_path, [b"0123456789"])
    with pytest.raises(IndexError, match="leaves the stream"):
        shards.gather(np.array([start], np.int64), length=4)


def test_the_writer_hashes_what_lies_on_disk(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, shard_bytes=4) as writer:
        writer.add(b"abcdefg", source=0)
        totals = writer.close()
    assert (totals.num_documents, totals.num_bytes) == (1, 8)
    assert totals.files == {path.name: sha256_file(path) for path in tmp_path.iterdir()}
    assert {"bytes-00000.bin", "bytes-00001.bin"} <= totals.files.keys()


@pytest.mark.parametrize(
    ("name", "keep"), [("starts.bin", 12), ("lengths.bin", 8), ("bytes-00001.bin", 1), ("sources.bin", 0)]
)
def test_a_file_cut_short_is_found(tmp_path: Path, name: str, keep: int) -> None:
    write(tmp_path, [b"abc", b"defg"], 5)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="damaged") as caught:
        ByteShards.open(tmp_path)
    assert str(tmp_path) in caught.value.where


@pytest.mark.parametrize("name", ["starts.bin", "bytes-00000.bin", "bytes-00001.bin"])
def test_a_missing_file_is_found(tmp_path: Path, name: str) -> None:
    write(tmp_path, [b"abc" * 5], 5)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match="missing"):
        ByteShards.open(tmp_path)
