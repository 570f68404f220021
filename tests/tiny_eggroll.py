"""What do tests of EGGROLL train?  Sixteen members on four streams of the text of three subjects."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thinwire.data.corpus import Corpus
from thinwire.kernels.eggroll.shape import EggrollRules
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma.compute import Compute
from thinwire.soma.config import ScoringConfig
from thinwire.soma.eggroll_config import EggrollConfig, EggrollModel, EggrollTraining
from thinwire.soma.eggroll_job import EggrollJob, EggrollState, open_job
from thinwire.soma.eggroll_log import SignRecord, read
from thinwire.soma.eggroll_training import load_state, train
from tiny_runs import NoTask

CONFIG = EggrollConfig(
    model=EggrollModel(width=6, depth=2),
    training=EggrollTraining(
        updates=6,
        population=16,
        streams=4,
        update_bytes=8,
        validate_every=2,
        validation_windows=3,
        checkpoint_every=3,
        log_every=1,
    ),
    rules=EggrollRules(alpha=0.3, float_step=0.05),
    prefix_bytes=32,
    scoring=ScoringConfig(window_bytes=128, max_windows=16, bootstrap_draws=100),
)
"""Scored on the windows of ``tiny_runs.CONFIG``."""


def job_of(data: Path, config: EggrollConfig = CONFIG) -> EggrollJob:
    return open_job(config, corpus=Corpus.open(data))


def train_job(
    job: EggrollJob, folder: JobFolder, *, threads: int = 1, messages: list[str] | None = None
) -> EggrollState:
    """In this process, to the last update."""
    said = messages if messages is not None else []
    return train(
        job,
        folder=folder,
        compute=Compute("auto", threads),
        task=NoTask(),
        say=said.append,
        should_stop=lambda: False,
    )


def assert_same_end(job: EggrollJob, one: JobFolder, other: JobFolder) -> None:
    """Weights, streams' states and log are the same, bit for bit; only the clock may differ."""
    updates = [set(checkpoint.list_updates(folder.checkpoints)) for folder in (one, other)]
    assert all({0, job.config.training.updates} <= found for found in updates)
    for update in updates[0] & updates[1]:
        a, b = (load_state(job, folder=folder, update=update) for folder in (one, other))
        assert torch.equal(a.theta, b.theta)
        assert torch.equal(a.streams, b.streams)
    assert one.done.read_bytes() == other.done.read_bytes()
    first, second = read(one.scalars), read(other.scalars)
    assert first.header == second.header
    assert without_clock(first.records) == without_clock(second.records)


def without_clock(records: list[Any]) -> list[Any]:
    return [r._replace(device_seconds=0.0) if isinstance(r, SignRecord) else r for r in records]


def lines_without_clock(folder: JobFolder) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in folder.log.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "device_seconds"} for line in lines]


def signs_of(folder: JobFolder) -> np.ndarray:
    """int8 [updates, pairs]."""
    return np.stack([record.signs for record in read(folder.scalars).records if isinstance(record, SignRecord)])
