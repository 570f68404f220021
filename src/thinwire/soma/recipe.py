"""How does a corpus become a trained, scored ensemble?  Clusters -> seed run -> experts -> scores (section 4).

Each stage reads files on its left and writes new ones on its right; a finished stage is kept only where the
fingerprint of its inputs is still the same, so any stage resumes and none is silently stale.

choice: clusters come before the seed run, which the paper names first; neither needs the other, and so the seed run can
leave out every window that an expert is validated on.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from thinwire.base.errors import UserError
from thinwire.base.files import read_json, write_json
from thinwire.base.progress import Voice
from thinwire.comm.process import place_from_environment
from thinwire.config.fingerprint import as_record, fingerprint, from_record
from thinwire.data.corpus import Corpus
from thinwire.data.windows import num_windows
from thinwire.kernels.dispatch import device_for
from thinwire.launch.local import available_cores
from thinwire.runs.layout import RunFolder, exclusive
from thinwire.runs.results import keep_result
from thinwire.runs.start import Start, refuse_foreign_folder, start_or_go_on
from thinwire.soma.byte_counts import keep_bigrams, save_array
from thinwire.soma.config import SomaConfig, check, result_record
from thinwire.soma.model import shape_of
from thinwire.soma.partitions import divide
from thinwire.soma.perturbation_parallel import Crew
from thinwire.soma.ranks import be_rank, meeting_point
from thinwire.soma.run import ASSIGNMENT, ROUTER_DONE, SEED_NAME, SomaRun
from thinwire.soma.scoring import corpus_windows, loss_matrix, score_text
from thinwire.soma.training_jobs import train_jobs


def train(
    config: SomaConfig,
    *,
    data: Path,
    out: Path,
    preset: str = "custom",
    command: str | None = None,
    voice: Voice | None = None,
) -> dict[str, Any]:
    """Train a run, or go on with the one that is there; returns the record of its test scores.

    Under torchrun (or wherever RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set) this process is one of the ranks
    that make every update together. Rank 0 keeps the run; the others need the data alone, and return nothing.

    Args:
        config: settings, e.g. a preset's with ``dataclasses.replace``.
        data: a folder that ``prepare`` made.
        out: the run folder, of rank 0.
        preset: the name kept beside the settings.
        command: the command line that goes on with this run, kept for people.
        voice: bars and messages; None is silent.

    Raises:
        ConfigError: every setting that is out of range.
        UserError: the machine lacks what the implementation needs, ``data`` is not a prepared folder, ``out`` holds
            another run, a file in it is damaged, or ranks disagree.
        InterruptedRunError: a person stopped it; every finished update is kept.
        RunFailedError: a worker died, or a rank is lost.
    """
    check(config, where=f"preset {preset}")
    device_for(config.launch.implementation)  # a missing GPU or package is said before anything is written
    voice = voice or Voice()
    corpus = Corpus.open(data)
    check_text(config, corpus=corpus)
    place = place_from_environment()
    if place is not None and place.size > 1:
        place.refuse_other_size(config.launch.ranks)
        if place.rank > 0:
            be_rank(config, corpus=corpus, place=place)
            return {}
    refuse_foreign_folder(out)
    with exclusive(out), meeting_point(place, config=config) as meet_others:
        run = open_or_create(config, corpus=corpus, out=out, preset=preset, command=command)
        torch.set_num_threads(max(1, available_cores()))
        fit_clusters(run, corpus=corpus, voice=voice)
        with meet_others(corpus) as crew:
            train_seed(run, corpus=corpus, voice=voice, crew=crew)
            train_experts(run, corpus=corpus, voice=voice, crew=crew)
        return score(run, voice=voice)


def check_text(config: SomaConfig, *, corpus: Corpus) -> None:
    """Raises UserError, before any work, where the text is too short for the clusters or for one scored window."""
    size, clusters_wanted = config.clusters.window_bytes, config.clusters.num_clusters
    windows = num_windows(corpus.train, window_bytes=size)
    if windows < 2 * clusters_wanted:
        raise UserError(
            f"the training text has {windows} windows of {size} bytes; {clusters_wanted} clusters need at least "
            f"{2 * clusters_wanted}, one to train on and one held out for each",
            where=str(corpus.folder),
            fix="prepare more text, ask for fewer clusters (--clusters.num-clusters) or shorter windows "
            "(--clusters.window-bytes)",
        )
    corpus_windows(config, corpus)


def open_or_create(
    config: SomaConfig, *, corpus: Corpus, out: Path, preset: str, command: str | None = None
) -> SomaRun:
    """The run folder, new or the same; more expert updates than before go on from where they ended.

    Raises:
        UserError: the folder holds a run of another configuration or other data, or is something else.
    """
    folder = RunFolder(out)
    before = SomaRun.open(out).config.experts.updates if folder.config.is_file() else 0
    start = Start(
        kind="soma",
        preset=preset,
        config=as_record(config),
        data_folder=corpus.folder,
        data_fingerprint=corpus.fingerprint,
        num_parameters=shape_of(config.model).num_parameters,
        cores=available_cores(),
        command=command,
    )
    start_or_go_on(
        folder,
        start,
        results_of=lambda record: result_record(from_record(SomaConfig, record)),
        is_extension=lambda line: line.startswith("experts.updates:") and config.experts.updates > before,
    )
    return SomaRun(folder, preset, config)


def train_seed(run: SomaRun, *, corpus: Corpus, voice: Voice, crew: Crew | None = None) -> None:
    """Stage 2: body and tied matrix E together, on a sample of the corpus."""
    train_jobs(run, [[SEED_NAME]], corpus=corpus, voice=voice, crew=crew)


def train_experts(run: SomaRun, *, corpus: Corpus, voice: Voice, crew: Crew | None = None) -> None:
    """Stage 3: every expert from its start, on its own windows.

    Independent experts train in processes that never talk; experts whose losses are summed share one process.
    """
    names = [str(index) for index in range(run.num_experts)]
    groups = [names] if run.config.losses == "summed" else [[name] for name in names]
    train_jobs(run, groups, corpus=corpus, voice=voice, crew=crew)


def fit_clusters(run: SomaRun, *, corpus: Corpus, voice: Voice) -> None:
    """Stage 1: fit the router, give every training window to an expert, measure the sizes."""
    config = run.config.clusters
    inputs = fingerprint(config, run.config.seed, corpus.fingerprint)
    done = run.folder.router / ROUTER_DONE
    if done.is_file() and read_json(done).get("fingerprint") == inputs:
        voice.say("clusters: already fitted, kept")
        return
    total = num_windows(corpus.train, window_bytes=config.window_bytes)

    def read_windows(indices: np.ndarray) -> np.ndarray:
        return corpus.train.gather(indices * config.window_bytes, length=config.window_bytes)

    run.log_event(stage="clusters", windows=total, state="started")
    router, assignment = divide(
        read_windows,
        num_windows=total,
        config=config,
        seed=run.config.seed,
        threads=available_cores(),
        progress=voice.progress,
    )
    router.save(run.folder.router)
    save_array(run.folder.router / ASSIGNMENT, assignment)
    keep_bigrams(run.folder, corpus.bigrams)
    write_json(done, {"fingerprint": inputs})
    run.log_event(stage="clusters", sizes=router.cluster_sizes.tolist(), state="done")


def score(run: SomaRun, *, voice: Voice) -> dict[str, Any]:
    """Stage 4: test loss with interval and baselines, and the expert x cluster matrix; kept where inputs are equal."""
    names = [SEED_NAME, *(str(index) for index in range(run.num_experts))]
    parts = [read_json(run.job_folder(name).done) for name in names]
    inputs = fingerprint(run.config.scoring, run.config.routing, read_json(run.folder.router / ROUTER_DONE), parts)
    done = run.folder.results / "done.json"
    test = run.folder.results / "test.json"
    if done.is_file() and read_json(done).get("fingerprint") == inputs and test.is_file():
        voice.say("scores: already computed, kept")
        return read_json(test)
    record = score_text(run.folder.root, threads=available_cores(), progress=voice.progress)
    keep_result(run.folder.root, record)
    loss_matrix(run.folder.root, threads=available_cores())
    write_json(done, {"fingerprint": inputs})
    run.log_event(stage="scores", loss_nats_per_byte=record["loss_nats_per_byte"], state="done")
    return record
