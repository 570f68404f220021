"""How are a run's jobs trained?  In processes of this machine, or in turn here, where torchrun started the ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from thinwire.base.errors import ThinwireError
from thinwire.base.progress import Task, Voice
from thinwire.comm.process import open_store, place_from_environment
from thinwire.data.corpus import Corpus
from thinwire.launch.local import Command, available_cores, run_commands
from thinwire.soma.expert_training import Member, is_done, train_together
from thinwire.soma.perturbation_parallel import Crew
from thinwire.soma.ranks import compute_of
from thinwire.soma.run import SomaRun, job_label
from thinwire.soma.warm_kernels import warm_kernels

WORKER = "thinwire.soma.worker"
LOCALHOST = "127.0.0.1"


def train_jobs(
    run: SomaRun, groups: list[list[str]], *, corpus: Corpus, voice: Voice, crew: Crew | None = None
) -> None:
    """Train what is left of these jobs.

    Args:
        groups: names of jobs; those of one group learn from the sum of their losses, in one process.
        crew: ranks that make every update with this process.

    Raises:
        InterruptedRunError: a person stopped it; every finished update is kept.
        RunFailedError: a worker died, training has diverged, or ranks' weights differ.
        PeerLostError: a rank of the crew is lost.
    """
    waiting = _waiting(run, groups, corpus=corpus, voice=voice)
    if not waiting:
        return
    _warm(run, groups[0][0], corpus=corpus, voice=voice)
    if crew is None:
        _train_in_processes(run, waiting, voice=voice)
    else:
        _train_in_turn(run, waiting, corpus=corpus, voice=voice, crew=crew)


def _train_in_processes(run: SomaRun, waiting: dict[str, list[str]], *, voice: Voice) -> None:
    """Jobs side by side, each in as many processes as ranks make its updates."""
    launch, cores = run.config.launch, available_cores()
    at_once = min(launch.processes or max(1, cores // launch.ranks), len(waiting))
    threads = launch.threads or max(1, cores // (at_once * launch.ranks))
    bars: dict[str, Task] = {}
    left = {key: run.training_of(group[0]).updates for key, group in waiting.items()}

    def on_message(name: str, message: dict[str, Any]) -> None:
        key = name.split("/")[0]
        if message["type"] == "say":
            voice.say(message["text"])
            return
        if key not in bars:
            bars[key] = voice.progress.task(_label(waiting[key]), left[key])
        if message["type"] == "note":
            bars[key].note(message["text"])
            return
        bars[key].advance(message["count"])
        left[key] -= message["count"]
        if left[key] == 0:
            bars.pop(key).close()

    store = None  # ranks meet in it for as long as they run
    if launch.ranks > 1:
        store = open_store(host=LOCALHOST, port=0, serve=True, timeout_seconds=launch.timeout_seconds)
    commands = _commands(run, waiting, threads=threads, port=None if store is None else store.port)
    with _logged(run, waiting, processes=at_once, threads=threads):
        run_commands(commands, at_once=at_once * launch.ranks, on_message=on_message)
    for bar in bars.values():
        bar.close()


def _commands(run: SomaRun, waiting: dict[str, list[str]], *, threads: int, port: int | None) -> list[Command]:
    """The processes of all jobs; those of one job stand together, so that its ranks start before another job's.

    Args:
        port: of the store where a job's ranks meet; None has one process a job.
    """
    launch, commands = run.config.launch, []
    seats: list[tuple[str, ...]] = [()]
    if port is not None:
        seats = [(str(rank), LOCALHOST, str(port)) for rank in range(launch.ranks)]
    for key, group in waiting.items():
        for seat in seats:
            name, label = (f"{key}/{seat[0]}", f"{_label(group)}, rank {seat[0]}") if seat else (key, _label(group))
            arguments = (str(run.folder.root), key, launch.implementation, str(threads), *seat)
            commands.append(Command(name, WORKER, arguments, label=label))
    return commands


def _train_in_turn(run: SomaRun, waiting: dict[str, list[str]], *, corpus: Corpus, voice: Voice, crew: Crew) -> None:
    """One job after the other in this process, as rank 0 of the crew."""
    compute = compute_of(run.config, place=place_from_environment())
    with _logged(run, waiting, processes=1, threads=compute.threads):
        for group in waiting.values():
            members = [Member(run.job(name, corpus=corpus), run.job_folder(name)) for name in group]
            task = voice.progress.task(_label(group), members[0].job.config.updates)
            train_together(
                members, compute=compute, task=task, say=voice.say, should_stop=lambda: crew.stops, crew=crew
            )
            task.close()


def _label(group: list[str]) -> str:
    """What people call jobs that one process trains."""
    return job_label(group[0]) if len(group) == 1 else f"{len(group)} experts"


def _waiting(run: SomaRun, groups: list[list[str]], *, corpus: Corpus, voice: Voice) -> dict[str, list[str]]:
    """The groups that have a job with updates left, by their names with commas between them."""

    def waits(name: str) -> bool:
        return not is_done(run.job(name, corpus=corpus), folder=run.job_folder(name))

    waiting = {",".join(group): group for group in groups if any(waits(name) for name in group)}
    if not waiting:
        names = [name for group in groups for name in group]
        voice.say(f"{job_label(names[0]) if len(names) == 1 else f'{len(names)} experts'}: already trained, kept")
    return waiting


def _warm(run: SomaRun, name: str, *, corpus: Corpus, voice: Voice) -> None:
    """Compile what the job will call, where it is not on disk yet."""
    job = run.job(name, corpus=corpus)
    implementation = run.config.launch.implementation
    warm_kernels(job.start, config=job.config, shape=job.shape, implementation=implementation, voice=voice)


@contextmanager
def _logged(run: SomaRun, waiting: dict[str, list[str]], *, processes: int, threads: int) -> Iterator[None]:
    """Lines of the run's log around the training of these jobs."""
    started = [name for group in waiting.values() for name in group]
    ranks = {} if run.config.launch.ranks == 1 else {"ranks": run.config.launch.ranks}
    run.log_event(stage="train", jobs=started, processes=processes, threads=threads, **ranks, state="started")
    try:
        yield
    except ThinwireError as error:
        run.log_event(stage="train", jobs=started, state="failed", reason=str(error))
        raise
    run.log_event(stage="train", jobs=started, state="done")
