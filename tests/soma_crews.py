"""How do tests train SOMA's jobs on several ranks?  Functions for a pool of ranks, and what they leave behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.comm.group import Group
from thinwire.data.corpus import Corpus
from thinwire.runs.layout import JobFolder
from thinwire.soma.compute import Compute
from thinwire.soma.config import SomaConfig
from thinwire.soma.expert_training import Member, train_together
from thinwire.soma.following import follow
from thinwire.soma.handed_job import compare_settings, dismiss
from thinwire.soma.perturbation_parallel import GRADIENT, LOSSES, Crew
from thinwire.soma.run import SomaRun
from tiny_runs import NoTask


class Sent(NamedTuple):
    """What one rank sent for a job's updates."""

    losses: int
    gradient: int


def never() -> bool:
    return False


def job_on_ranks(group: Group, run: Path, folder: Path, *, config: SomaConfig, data: Path, name: str) -> Sent:
    """Train one job of a run, whose earlier stages are done, into ``folder``."""
    return _train(group, run, folder, config=config, data=data, name=name, should_stop=never)


def job_that_is_stopped(
    group: Group, run: Path, folder: Path, *, config: SomaConfig, data: Path, name: str, by: int, after: int
) -> Sent:
    """As ``job_on_ranks``, but rank ``by`` is asked to stop when it has been asked ``after`` times."""
    asked = []

    def should_stop() -> bool:
        asked.append(1)
        return group.rank == by and len(asked) > after

    return _train(group, run, folder, config=config, data=data, name=name, should_stop=should_stop)


def _train(
    group: Group,
    run: Path,
    folder: Path,
    *,
    config: SomaConfig,
    data: Path,
    name: str,
    should_stop: Callable[[], bool],
) -> Sent:
    corpus, crew, before = Corpus.open(data), Crew(group, should_stop=should_stop), sent_by(group)
    compare_settings(crew, config=config, corpus=corpus)
    if group.rank == 0:
        there = SomaRun.open(run)
        job = SomaRun(there.folder, there.preset, config).job(name, corpus=corpus)
        how: dict[str, Any] = {"compute": Compute(), "task": NoTask(), "say": _unheard, "should_stop": never}
        train_together([Member(job, JobFolder(folder))], **how, crew=crew)
        dismiss(crew)
    else:
        follow(crew, config=config, corpus=corpus, compute=Compute())
    return Sent(*(now - then for now, then in zip(sent_by(group), before, strict=True)))


def _unheard(text: str) -> None: ...


def sent_by(group: Group) -> Sent:
    """Since the group exists."""
    return Sent(group.ledger.total(tag=LOSSES), group.ledger.total(tag=GRADIENT))
