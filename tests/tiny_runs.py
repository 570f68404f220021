"""What do tests train on?  A text of three subjects and runs so small that a whole one takes seconds."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thinwire.base.progress import Voice
from thinwire.config.fingerprint import as_record, flatten
from thinwire.data.corpus import Corpus
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.experiments.registry import preset
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma import recipe
from thinwire.soma.compute import Compute
from thinwire.soma.config import (
    ClusterConfig,
    ModelConfig,
    RoutingConfig,
    ScoringConfig,
    SomaConfig,
    TrainingConfig,
)
from thinwire.soma.expert_job import ExpertJob
from thinwire.soma.expert_training import train
from thinwire.soma.job_checkpoint import load_state
from thinwire.soma.run import SomaRun
from thinwire.soma.scalar_log import UpdateRecord, read

PRESET = "demo"
SUBJECTS = {
    "sea": "harbour anchor sailor rigging compass lantern seagull current island cargo",
    "kitchen": "butter pepper skillet onion saucepan vinegar pastry garlic simmer kettle",
    "court": "verdict plaintiff statute lawyer appeal witness clause damages tribunal contract",
}
JOB = TrainingConfig(
    updates=6,
    directions=4,
    batch=4,
    window_bytes=16,
    learning_rate=2e-2,
    epsilon=1e-2,
    plateau_updates=2,
    plateau_improvement=0.5,
    validate_every=2,
    validation_windows=8,
    checkpoint_every=3,
    log_every=1,
)
CONFIG = SomaConfig(
    seed_sample=1.0,
    model=ModelConfig(width=8, embed_width=8),
    seed_run=replace(JOB, decoder="trained"),
    experts=replace(JOB, difference="one_sided"),
    clusters=ClusterConfig(num_clusters=2, window_bytes=64, min_documents=1, components=4, validation_fraction=0.1),
    routing=RoutingConfig(active_experts=1, prefix_bytes=32),
    scoring=ScoringConfig(window_bytes=128, max_windows=16, matrix_windows=4, bootstrap_draws=100),
)


def write_texts(folder: Path, *, documents: int = 12, words: int = 60) -> Path:
    """``documents`` files a subject, every word from the subject's own ten."""
    generator = random.Random(7)
    folder.mkdir(parents=True)
    for index in range(documents):
        for name, vocabulary in SUBJECTS.items():
            text = " ".join(generator.choices(vocabulary.split(), k=words))
            (folder / f"{name}-{index:02d}.txt").write_text(f"{text} {index}.\n")
    return folder


def prepared_data(folder: Path, *, documents: int = 12) -> Path:
    """A data folder in ``folder``; made once."""
    if not (folder / "data").exists():
        texts = write_texts(folder / "texts", documents=documents)
        options = PrepareOptions(valid_fraction=0.1, test_fraction=0.2)
        prepare([str(texts)], out=folder / "data", options=options)
    return folder / "data"


def flags(config: SomaConfig) -> list[str]:
    """The command line's overrides that make ``config`` of the preset."""
    there, wanted = flatten(as_record(preset(PRESET))), flatten(as_record(config))
    return [word for key in wanted if there.get(key) != wanted[key] for word in (f"--{key}", str(wanted[key]))]


def start_run(config: SomaConfig, *, data: Path, out: Path) -> SomaRun:
    """A run folder with its clusters fitted and nothing trained."""
    corpus = Corpus.open(data)
    run = recipe.open_or_create(config, corpus=corpus, out=out, preset=PRESET)
    recipe.fit_clusters(run, corpus=corpus, voice=silent_voice())
    return run


def silent_voice() -> Voice:
    return Voice()


class NoTask:
    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def train_job(job: ExpertJob, folder: JobFolder, *, threads: int = 1, messages: list[str] | None = None) -> None:
    """In this process, to the last update."""
    said = messages if messages is not None else []
    compute = Compute("auto", threads)
    train(job, folder=folder, compute=compute, task=NoTask(), say=said.append, should_stop=lambda: False)


def train_in_process(config: SomaConfig, *, data: Path, out: Path) -> SomaRun:
    """A whole run without worker processes, scored."""
    run = start_run(config, data=data, out=out)
    corpus = Corpus.open(data)
    for name in ("seed", *(str(index) for index in range(run.num_experts))):
        train_job(run.job(name, corpus=corpus), run.job_folder(name))
    recipe.score(run, voice=silent_voice())
    return run


def finished_run(folder: Path) -> Path:
    """A trained and scored run in ``folder``, made once; tests that change it take ``copy_of``."""
    out = folder / "run"
    if not (out / "results" / "done.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        train_in_process(CONFIG, data=prepared_data(folder), out=out)
    return out


def copy_of(run: Path, to: Path, *, without: tuple[str, ...] = ()) -> Path:
    """A copy of a run folder, less some of its parts."""
    shutil.copytree(run, to)
    for part in without:
        shutil.rmtree(to / part)
    return to


def assert_same_end(job: ExpertJob, one: JobFolder, other: JobFolder) -> None:
    """Weights, moments, plateau state and log are the same, bit for bit; only the clock may differ.

    A checkpoint that a kill prevented may be missing on the way, never at the end.
    """
    updates = [set(checkpoint.list_updates(folder.checkpoints)) for folder in (one, other)]
    assert all({0, job.config.updates} <= found for found in updates)
    for update in updates[0] & updates[1]:
        a, b = (load_state(job, folder=folder, update=update) for folder in (one, other))
        for first, second in zip((*a.expert, *a.body[:2], *a.decoder[:2]), (*b.expert, *b.body[:2], *b.decoder[:2])):  # noqa: B905
            assert torch.equal(first, second)
        assert (a.body.updates, a.decoder.updates, a.plateau) == (b.body.updates, b.decoder.updates, b.plateau)
    assert one.done.read_bytes() == other.done.read_bytes()
    assert_same_records(one, other)


def assert_same_records(one: JobFolder, other: JobFolder) -> None:
    a, b = read(one.scalars), read(other.scalars)
    assert a.header == b.header
    assert len(a.records) == len(b.records)
    for first, second in zip(a.records, b.records, strict=True):
        if isinstance(first, UpdateRecord):
            np.testing.assert_array_equal(first.differences, second.differences)
            first, second = (r._replace(differences=np.zeros(0), device_seconds=0.0) for r in (first, second))
            assert first[:-1] == second[:-1]
        else:
            assert first == second


def assert_same_runs(one: Path, other: Path, *, data: Path) -> None:
    """Every job's weights, moments and log, and the scores, bit for bit."""
    a, b, corpus = SomaRun.open(one), SomaRun.open(other), Corpus.open(data)
    for name in ("seed", *(str(index) for index in range(b.num_experts))):
        assert_same_end(b.job(name, corpus=corpus), a.job_folder(name), b.job_folder(name))
    assert (one / "results" / "test.json").read_bytes() == (other / "results" / "test.json").read_bytes()


def lines_without_clock(folder: JobFolder) -> list[dict[str, Any]]:
    """What a job's ``log.jsonl`` says, less the seconds."""
    lines = [json.loads(line) for line in folder.log.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "device_seconds"} for line in lines]
