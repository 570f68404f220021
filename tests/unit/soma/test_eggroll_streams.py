"""Do EGGROLL's streams read the training text on and on, round its end, each from its own place?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.data.corpus import Corpus
from thinwire.soma.eggroll_config import EggrollTraining
from thinwire.soma.eggroll_streams import open_streams

TRAINING = EggrollTraining(streams=5, update_bytes=7)


def test_a_stream_is_read_without_gap_and_goes_round_at_the_end(tiny_data: Path) -> None:
    shards = Corpus.open(tiny_data).train
    text, streams = shards.stream(), open_streams(shards, training=TRAINING, seed=1)
    updates = 2 * shards.num_bytes // 7
    read = np.concatenate([streams.windows(update)[:, :-1] for update in range(1, updates + 1)], axis=1)
    for stream, start in enumerate(streams.starts):
        expected = text[(start + np.arange(read.shape[1])) % len(text)]
        np.testing.assert_array_equal(read[stream], expected)
    targets = np.stack([streams.windows(update)[:, -1] for update in range(1, updates)], axis=1)
    np.testing.assert_array_equal(targets, read[:, 7::7])


def test_streams_begin_evenly_spaced_where_the_seed_says(tiny_data: Path) -> None:
    shards = Corpus.open(tiny_data).train
    one, other = (open_streams(shards, training=TRAINING, seed=seed).starts for seed in (1, 2))
    assert not np.array_equal(one, other)
    for starts in (one, other):
        gaps = np.diff(np.sort(starts))
        assert gaps.min() >= shards.num_bytes // 5 - 1
        assert starts.max() < shards.num_bytes


def test_a_text_too_short_for_the_streams_is_refused(tiny_data: Path) -> None:
    shards = Corpus.open(tiny_data).train
    wanted = replace(TRAINING, streams=shards.num_bytes // 7 + 1)
    with pytest.raises(UserError, match="streams of 7 bytes") as refused:
        open_streams(shards, training=wanted, seed=1)
    assert "--training.streams" in refused.value.fix
