"""Sequences come from the stream at the addressed places, and evaluation says how it cut them."""

from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.base.seeds import stream_key
from thinwire.data.corpus import Corpus
from thinwire.data.encode import ByteTokenizer
from thinwire.data.shards import ByteShards, ShardWriter
from thinwire.data.tokens import ByteStream, TokenStream, draw_sequences, evaluation_sequences, open_tokens

KEY = stream_key(3, "sequences")


def stream_of(folder: Path, lengths: list[int]) -> TokenStream:
    generator = np.random.default_rng(5)
    with ShardWriter(folder, shard_bytes=97) as writer:
        for length in lengths:
            writer.add(generator.integers(1, 256, length, np.uint8).tobytes(), source=0)
    return ByteStream(ByteShards.open(folder))


def test_a_byte_split_is_its_bytes(tiny_data: Path) -> None:
    corpus = Corpus.open(tiny_data)
    stream = open_tokens(corpus, "test")
    assert (stream.vocab_size, stream.num_tokens) == (256, corpus.test.num_bytes)
    whole = stream.gather(np.array([0]), length=stream.num_tokens)[0]
    assert whole.dtype == np.int64
    assert ByteTokenizer().decode(whole) == corpus.test.stream().tobytes()
    first = whole[stream.document_starts[1] :][: stream.document_lengths[1]]
    assert np.array_equal(ByteTokenizer().encode(corpus.test.document(1)), first)
    assert stream.num_text_bytes(whole) == corpus.test.num_bytes


def test_bytes_survive_whatever_they_are() -> None:
    everything = bytes(range(256)) + "é🙂".encode()
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(everything)) == everything
    assert tokenizer.encode("é").tolist() == [0xC3, 0xA9]
    for wrong in (-1, 256):
        with pytest.raises(IndexError):
            tokenizer.decode(np.array([wrong]))


def test_a_draw_depends_on_its_address_alone(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, [300, 200, 500])
    whole = stream.gather(np.array([0]), length=stream.num_tokens)[0].tobytes()
    drawn = draw_sequences(stream, key=KEY, step=4, count=6, tokens=32)
    assert drawn.shape == (6, 33)
    assert all(row.tobytes() in whole for row in drawn)
    assert np.array_equal(drawn[:2], draw_sequences(stream, key=KEY, step=4, count=2, tokens=32))
    assert not np.array_equal(drawn, draw_sequences(stream, key=KEY, step=5, count=6, tokens=32))
    assert not np.array_equal(drawn, draw_sequences(stream, key=stream_key(4, "sequences"), step=4, count=6, tokens=32))


def test_draws_reach_both_ends_and_no_further(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, [9])
    drawn = draw_sequences(stream, key=KEY, step=0, count=64, tokens=7)
    whole = stream.gather(np.array([0]), length=10)[0]
    assert {tuple(row) for row in drawn} == {tuple(whole[start : start + 8]) for start in range(3)}
    assert draw_sequences(stream, key=KEY, step=0, count=1, tokens=9).shape == (1, 10)
    with pytest.raises(UserError, match="10 tokens, fewer than one sequence of 11"):
        draw_sequences(stream, key=KEY, step=0, count=1, tokens=10)


def test_long_documents_give_one_sequence_each(tmp_path: Path) -> None:
    lengths = [100 + 3 * n if n % 3 else 20 for n in range(40)]
    stream = stream_of(tmp_path, lengths)
    found = evaluation_sequences(stream, tokens=64, max_sequences=20, key=KEY)
    assert found.cut == "inside documents"
    assert found.sequences.shape == (20, 65)
    assert (np.diff(found.documents) > 0).all()
    for row, document in zip(found.sequences, found.documents, strict=True):
        start = int(stream.document_starts[document])
        text = stream.gather(np.array([start]), length=int(stream.document_lengths[document]))[0]
        assert row.tobytes() in text.tobytes()
    everyone = evaluation_sequences(stream, tokens=64, max_sequences=99, key=KEY)
    assert everyone.documents.tolist() == [n for n in range(40) if n % 3]
    again = evaluation_sequences(stream, tokens=64, max_sequences=20, key=KEY)
    assert np.array_equal(again.sequences, found.sequences)


def test_short_documents_are_read_in_a_row(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, [50] * 10 + [200] * 5)
    found = evaluation_sequences(stream, tokens=64, max_sequences=99, key=KEY)
    assert found.cut == "consecutive"
    assert len(found.sequences) == (stream.num_tokens - 1) // 64 == 23
    whole = stream.gather(np.array([0]), length=stream.num_tokens)[0]
    assert np.array_equal(found.sequences[:, :-1].ravel(), whole[: 23 * 64])
    assert np.array_equal(found.sequences[:, 1:].ravel(), whole[1 : 23 * 64 + 1])
    assert found.documents[:3].tolist() == [0, 1, 2]
    assert found.documents[-1] == 14
    few = evaluation_sequences(stream, tokens=64, max_sequences=8, key=KEY)
    assert len(few.sequences) == 8
    assert {tuple(row) for row in few.sequences} < {tuple(row) for row in found.sequences}


def test_a_split_that_is_too_short_is_refused(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, [30, 30])
    assert evaluation_sequences(stream, tokens=61, max_sequences=3, key=KEY).sequences.shape == (1, 62)
    with pytest.raises(UserError, match="62 tokens") as caught:
        evaluation_sequences(stream, tokens=62, max_sequences=3, key=KEY)
    assert caught.value.where == str(tmp_path)
