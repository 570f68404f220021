"""Do streams that take turns train like passes one after the other, with the same bits every time?"""

from dataclasses import replace

import pytest
import training_cases
from test_training_on_ranks import farthest
from training_cases import CODEC, Trained, train

from gloo_ranks import RankPool
from thinwire.subspaces.config import CodecConfig, SubspacesConfig


def settings(*, codec: CodecConfig, streams: int, accumulation: int) -> SubspacesConfig:
    base = training_cases.config(codec=codec)
    sequence = replace(base.sequence, batch=1, streams=streams, accumulation=accumulation)
    return replace(base, sequence=sequence, optimizer=replace(base.optimizer, steps=12))


@pytest.mark.parametrize("codec", [CODEC, CodecConfig(kind="plain", wire="float64")], ids=["previous chunk", "plain"])
def test_streams_train_like_passes_one_after_the_other(codec: CodecConfig, pool: RankPool) -> None:
    one: list[Trained] = pool.run(train, settings(codec=codec, streams=1, accumulation=6), ranks=3)
    for streams in (2, 3):
        case = settings(codec=codec, streams=streams, accumulation=6 // streams)
        found, again = (pool.run(train, case, ranks=3) for _ in range(2))
        assert farthest(found[0].weights[12], one[0].weights[12]) < 1e-11
        assert farthest(found[0].weights[12], again[0].weights[12]) == 0.0
        assert found[0].losses == again[0].losses
