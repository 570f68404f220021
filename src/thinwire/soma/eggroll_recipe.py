"""How does a corpus become a trained, scored EGGROLL model?  One job in this process, then its scores (Table 4)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from thinwire.base.errors import UserError
from thinwire.base.files import read_json, write_json
from thinwire.base.progress import Voice
from thinwire.comm.process import place_from_environment
from thinwire.config.fingerprint import as_record, fingerprint, from_record
from thinwire.data.corpus import Corpus
from thinwire.kernels.dispatch import choose
from thinwire.launch.local import available_cores
from thinwire.launch.messages import interrupts_are_requests
from thinwire.runs.layout import RunFolder, exclusive
from thinwire.runs.results import keep_result
from thinwire.runs.start import Start, refuse_foreign_folder, start_or_go_on
from thinwire.soma.byte_counts import keep_bigrams
from thinwire.soma.compute import Compute
from thinwire.soma.eggroll_config import EggrollConfig, check, result_record
from thinwire.soma.eggroll_job import EggrollJob, evaluate_update, initial_state, open_job
from thinwire.soma.eggroll_run import KIND, EggrollRun
from thinwire.soma.eggroll_scoring import cut_of, score_text
from thinwire.soma.eggroll_training import is_done
from thinwire.soma.eggroll_training import train as train_job
from thinwire.soma.scored_text import split_to_score


def train(
    config: EggrollConfig,
    *,
    data: Path,
    out: Path,
    preset: str = "custom",
    command: str | None = None,
    voice: Voice | None = None,
) -> dict[str, Any]:
    """Train a run, or go on with the one that is there; returns the record of its test scores.

    Args:
        config: settings, e.g. a preset's with ``dataclasses.replace``.
        data: a folder that ``prepare`` made.
        out: the run folder.
        preset: the name kept beside the settings.
        command: the command line that goes on with this run, kept for people.
        voice: bars and messages; None is silent.

    Raises:
        ConfigError: every setting that is out of range.
        UserError: ``data`` is not a prepared folder or too small, ``out`` holds another run, a file is damaged, or
            torchrun started several processes.
        InterruptedRunError: a person stopped it; every finished update is kept.
        RunFailedError: training has diverged.
    """
    check(config, where=f"preset {preset}")
    place = place_from_environment()
    if place is not None and place.size > 1:
        raise UserError(
            f"an EGGROLL run is one process, and {place.size} were started",
            where="WORLD_SIZE",
            fix="start it without torchrun",
        )
    voice = voice or Voice()
    corpus = Corpus.open(data)
    job = open_job(config, corpus=corpus)
    split_to_score(corpus, cut_of(config))  # a text too short to score is said before any work
    refuse_foreign_folder(out)
    with exclusive(out):
        run = open_or_create(config, corpus=corpus, out=out, preset=preset, command=command)
        threads = config.launch.threads or available_cores()
        train_model(run, job=job, compute=Compute(config.launch.implementation, threads), voice=voice)
        return score(run, job=job, voice=voice)


def open_or_create(
    config: EggrollConfig, *, corpus: Corpus, out: Path, preset: str, command: str | None = None
) -> EggrollRun:
    """The run folder, new or the same; more updates than before go on from where they ended.

    Raises:
        UserError: the folder holds a run of another method, configuration or data, or is something else.
    """
    folder = RunFolder(out)
    before = folder.read_config() if folder.config.is_file() else {}
    updates_before = EggrollRun.open(out).config.training.updates if before.get("kind") == KIND else 0
    start = Start(
        kind=KIND,
        preset=preset,
        config=as_record(config),
        data_folder=corpus.folder,
        data_fingerprint=corpus.fingerprint,
        num_parameters=config.shape.num_parameters,
        cores=available_cores(),
        command=command,
    )
    start_or_go_on(
        folder,
        start,
        results_of=lambda record: result_record(from_record(EggrollConfig, record)),
        is_extension=lambda line: line.startswith("training.updates:") and config.training.updates > updates_before,
    )
    keep_bigrams(folder, corpus.bigrams)
    return EggrollRun(folder, preset, config)


def train_model(run: EggrollRun, *, job: EggrollJob, compute: Compute, voice: Voice) -> None:
    """Stage 1: every update; kept where they are all made. Raises as ``eggroll_training.train``."""
    if is_done(job, folder=run.job_folder):
        voice.say("model: already trained, kept")
        return
    warm_kernels(job, compute=compute, voice=voice)
    task = voice.progress.task("EGGROLL", job.config.training.updates)
    with interrupts_are_requests() as should_stop:
        train_job(job, folder=run.job_folder, compute=compute, task=task, say=voice.say, should_stop=should_stop)
    task.close()


def warm_kernels(job: EggrollJob, *, compute: Compute, voice: Voice) -> None:
    """Compile what an update calls before its time counts: one update of one pair, thrown away."""
    state = initial_state(job)
    if choose(compute.implementation, like=state.theta) != "numba":
        return
    task = voice.progress.task("kernels", 1)
    task.note("compiled where they are not on disk yet")
    one_pair = replace(job.config, training=replace(job.config.training, population=2))
    evaluate_update(replace(job, config=one_pair), state, compute=compute)
    task.advance()
    task.close()


def score(run: EggrollRun, *, job: EggrollJob, voice: Voice) -> dict[str, Any]:
    """Stage 2: the test loss with interval and baselines; kept where its inputs are equal."""
    config = run.config
    inputs = fingerprint(config.scoring, [config.prefix_bytes, config.seed, config.training.updates], job.fingerprint)
    done, test = run.folder.results / "done.json", run.folder.results / "test.json"
    if done.is_file() and read_json(done).get("fingerprint") == inputs and test.is_file():
        voice.say("scores: already computed, kept")
        return dict(read_json(test))
    record = score_text(run.folder.root, threads=available_cores(), progress=voice.progress)
    keep_result(run.folder.root, record)
    write_json(done, {"fingerprint": inputs})
    return record
