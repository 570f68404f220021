"""How does a corpus become a trained, scored Llama?  Ranks in processes of their own, then the stock model's score.

A finished part is kept where the fingerprint of its inputs is the same, so that the same command goes on, or does
nothing.
"""

from pathlib import Path
from typing import Any

from thinwire.base.errors import RunFailedError, UserError
from thinwire.base.files import atomic_write, read_json, write_json
from thinwire.base.progress import Task, Voice
from thinwire.comm.process import Place, open_store, place_from_environment
from thinwire.config.fingerprint import as_record, fingerprint, from_record
from thinwire.data.corpus import TOKENIZER_FOLDER, Corpus
from thinwire.data.tokens import open_tokens
from thinwire.launch.group import run_ranks
from thinwire.launch.local import Command, available_cores
from thinwire.runs.layout import RunFolder, exclusive, patiently_exclusive
from thinwire.runs.start import Start, refuse_foreign_folder, start_or_go_on
from thinwire.subspaces import saving
from thinwire.subspaces.config import SubspacesConfig, check, result_record
from thinwire.subspaces.device import refuse_missing_device
from thinwire.subspaces.llama import Llama
from thinwire.subspaces.scoring import evaluate
from thinwire.subspaces.team import mark_gone, meeting_place

WORKER = "thinwire.subspaces.worker"
LOCALHOST = "127.0.0.1"


def train(
    config: SubspacesConfig,
    *,
    data: Path,
    out: Path,
    preset: str = "custom",
    command: str | None = None,
    voice: Voice | None = None,
) -> dict[str, Any]:
    """Train a run, or go on with the one that is there; returns the record of the stock model's test score.

    Under torchrun (or wherever RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set) this process is one rank, and
    rank 0 scores; else all ranks are started here.

    Args:
        config: settings, e.g. a preset's with ``dataclasses.replace``.
        data: a folder that ``prepare`` made.
        out: the run folder; across machines, each may have its own.
        preset: the name kept beside the settings.
        command: the command line that goes on with this run, kept for people.
        voice: bars and messages; None is silent.

    Raises:
        ConfigError: every setting that is out of range.
        UserError: ``data`` is not a prepared folder or too short, ``out`` holds another run, a file in it is damaged,
            the device is not there, or ranks disagree.
        InterruptedRunError: a person stopped it; a checkpoint of the last update is there.
        RunFailedError: a loss was not finite, or all ranks were lost.
    """
    voice, place = voice or Voice(), place_from_environment()
    check(config, where=f"preset {preset}")
    refuse_missing_device(config.launch)
    corpus = Corpus.open(data)
    check_text(config, corpus=corpus)
    refuse_foreign_folder(out)
    if place is not None:
        place.refuse_other_size(config.launch.ranks)
    if place is not None and config.launch.link_bits_per_s > 0 and place.master not in ("localhost", LOCALHOST, "::1"):
        raise UserError(
            "a link is modelled by the clock that all ranks of one machine share",
            where="launch.link_bits_per_s",
            fix="start all ranks on this machine, or leave the model out and use the link that is there",
        )
    if place is not None:
        with patiently_exclusive(out, seconds=config.launch.meeting_seconds):  # ranks may share the folder
            open_or_create(config, corpus=corpus, out=out, preset=preset, command=command)
        with patiently_exclusive(saving.rank_folder(out, place.rank), seconds=config.launch.timeout_seconds):
            be_rank(config, corpus=corpus, out=out, place=place, voice=voice)
            return score(out, config=config, voice=voice) if place.rank == 0 else {}
    with exclusive(out):
        open_or_create(config, corpus=corpus, out=out, preset=preset, command=command)
        if saving.last_step(out) < config.optimizer.steps:
            start_ranks(config, out=out, voice=voice)
        else:
            saving.load_weights(out, step=saving.last_step(out))  # what is kept must be whole
            voice.say("already trained, kept")
        return score(out, config=config, voice=voice)


def check_text(config: SubspacesConfig, *, corpus: Corpus) -> None:
    """Raises UserError, before any work, where a split is shorter than one sequence."""
    needed = config.sequence.tokens + 1
    for split in ("train", "valid", "test"):
        stream = open_tokens(corpus, split)
        if stream.num_tokens < needed:
            raise UserError(
                f"the {split} split has {stream.num_tokens} tokens, fewer than one sequence of {needed}",
                where=stream.where,
                fix="prepare more text, or "
                + ("" if split == "train" else "raise --valid-fraction and --test-fraction, or ")
                + "use shorter sequences (--sequence.tokens)",
            )


def open_or_create(
    config: SubspacesConfig, *, corpus: Corpus, out: Path, preset: str, command: str | None = None
) -> None:
    """Write the run folder's description, or check that the run there is the same."""
    stream = open_tokens(corpus, "train")
    start = Start(
        kind="subspaces",
        preset=preset,
        config=as_record(config),
        data_folder=corpus.folder,
        data_fingerprint=corpus.fingerprint,
        num_parameters=sum(p.numel() for p in Llama(config.model, vocab_size=stream.vocab_size).parameters()),
        cores=available_cores(),
        command=command,
    )
    start_or_go_on(
        RunFolder(out),
        start,
        results_of=lambda record: result_record(from_record(SubspacesConfig, record)),
        is_extension=lambda _: False,
    )
    tokenizer = corpus.folder / TOKENIZER_FOLDER
    for path in sorted(tokenizer.iterdir()) if tokenizer.is_dir() else ():
        atomic_write(out / TOKENIZER_FOLDER / path.name, path.read_bytes())


def start_ranks(config: SubspacesConfig, *, out: Path, voice: Voice) -> None:
    """All ranks on this machine; the store where they meet lives in this process."""
    launch, steps = config.launch, config.optimizer.steps
    store = open_store(host=LOCALHOST, port=0, serve=True, timeout_seconds=launch.timeout_seconds)
    meeting = meeting_place(store)
    threads = launch.threads or max(1, available_cores() // launch.ranks)
    ranks = f"{launch.ranks} rank{'' if launch.ranks == 1 else 's'}"
    voice.say(f"starting {ranks}, {threads} thread{'' if threads == 1 else 's'} each")
    bar: list[Task] = []
    at_work = set(range(launch.ranks))

    def command(member: int, role: str) -> Command:
        arguments = (str(out), str(member), LOCALHOST, str(store.port), role, str(threads))
        return Command(f"rank {member}", WORKER, arguments, label=f"rank {member}")

    def on_message(name: str, message: dict[str, Any]) -> None:
        if message["type"] == "say":
            voice.say(message["text"])
        elif message["type"] == "lost":
            voice.say(f"{message['text']}; the others go on")
        elif message["type"] == "at_work":
            at_work.add(_member(name))
        elif message["type"] in ("advance", "note"):
            if not bar:
                bar.append(voice.progress.task(f"training on {ranks}", steps - saving.last_step(out)))
            if message["type"] == "note":
                bar[0].note(message["text"])
            else:
                bar[0].advance(message["count"])

    def on_lost(name: str) -> Command | None:
        member = _member(name)
        at_work.discard(member)
        mark_gone(meeting, member=member)
        if not at_work:
            fix = "give the same command again; it goes on from the last checkpoint"
            raise RunFailedError(f"all ranks are lost; the last one was {name}\n  fix:   {fix}")
        return command(member, "join") if launch.restart_lost and launch.ranks > 1 else None

    run_ranks([command(member, "start") for member in range(launch.ranks)], on_message=on_message, on_lost=on_lost)
    for one in bar:
        one.close()
    if saving.last_step(out) < steps:
        raise RunFailedError(f"the ranks ended at update {saving.last_step(out)} of {steps}")


def _member(name: str) -> int:
    return int(name.removeprefix("rank "))


def be_rank(config: SubspacesConfig, *, corpus: Corpus, out: Path, place: Place, voice: Voice) -> None:
    """This process is one rank, started by torchrun or by hand."""
    from thinwire.launch.messages import interrupts_are_requests
    from thinwire.subspaces.run import Seat, train_rank

    role = "serve" if place.rank == 0 and not place.store_runs else "start"
    threads = config.launch.threads or max(1, available_cores() // place.here)
    with interrupts_are_requests() as should_stop:
        train_rank(
            config,
            corpus=corpus,
            root=out,
            seat=Seat(place.rank, place.master, place.port, role, threads, place.attempt),
            task=voice.progress.task(f"rank {place.rank}", config.optimizer.steps),
            say=voice.say,
            should_stop=should_stop,
        )


def score(out: Path, *, config: SubspacesConfig, voice: Voice) -> dict[str, Any]:
    """Test loss of the stock model with interval; kept where its inputs are equal."""
    folder = RunFolder(out)
    inputs = fingerprint(config.test_sequences, config.seed, saving.last_step(out), folder.read_data_record())
    done, test = folder.results / "done.json", folder.results / "test.json"
    if done.is_file() and read_json(done).get("fingerprint") == inputs and test.is_file():
        voice.say("scores: already computed, kept")
        return read_json(test)
    record = evaluate(out, threads=available_cores(), progress=voice.progress)
    write_json(test, record)
    write_json(done, {"fingerprint": inputs})
    return record
