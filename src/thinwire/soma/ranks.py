"""Which ranks train a run together, when torchrun started them?  Rank 0 leads; the others wait for it, then help.

Rank 0 divides the text first, which may take long, so the others look into the store until it says that it is ready.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch.distributed

from thinwire.base.errors import InterruptedRunError, RunFailedError
from thinwire.comm.process import Place, open_store
from thinwire.data.corpus import Corpus
from thinwire.launch.local import available_cores
from thinwire.launch.messages import interrupts_are_requests
from thinwire.soma.compute import Compute
from thinwire.soma.config import SomaConfig
from thinwire.soma.following import follow
from thinwire.soma.handed_job import compare_settings, dismiss
from thinwire.soma.perturbation_parallel import STOPPED, Crew, meet

READY, CREW = "ready", "crew"
POLL_SECONDS = 0.2
MeetOthers = Callable[[Corpus], AbstractContextManager[Crew | None]]


@contextmanager
def meeting_point(place: Place | None, *, config: SomaConfig) -> Iterator[MeetOthers]:
    """Rank 0's: what to call when it is ready to train; a process that torchrun did not start meets nobody.

    Raises:
        UserError: the port is taken, or ranks were started with other settings or text.
        RunFailedError: not all ranks came, or one was lost.
    """
    if place is None or place.size == 1:
        yield lambda _: nullcontext()
        return
    store = _store(place, config=config)

    @contextmanager
    def meet_others(corpus: Corpus) -> Iterator[Crew | None]:
        store.set(READY, "")
        with (
            interrupts_are_requests() as should_stop,
            _crew(store, place, config=config, should_stop=should_stop) as crew,
        ):
            compare_settings(crew, config=config, corpus=corpus)
            yield crew
            dismiss(crew)

    yield meet_others


def be_rank(config: SomaConfig, *, corpus: Corpus, place: Place) -> None:
    """Every rank but 0, from start to end.

    Raises:
        UserError: rank 0 cannot be reached, or was started with other settings or text.
        InterruptedRunError: somebody asked one of the ranks to stop.
        RunFailedError: rank 0 or another rank was lost.
    """
    store = _store(place, config=config)
    compute = compute_of(config, place=place)
    with interrupts_are_requests() as should_stop:
        _wait_until_ready(store, should_stop=should_stop)
        with _crew(store, place, config=config, should_stop=should_stop) as crew:
            compare_settings(crew, config=config, corpus=corpus)
            follow(crew, config=config, corpus=corpus, compute=compute)


def compute_of(config: SomaConfig, *, place: Place | None) -> Compute:
    """A rank's share of its machine, whose cores it divides with the other ranks that are there."""
    here = 1 if place is None else place.here
    return Compute(config.launch.implementation, config.launch.threads or max(1, available_cores() // here))


def _store(place: Place, *, config: SomaConfig) -> torch.distributed.Store:
    serve = place.rank == 0 and not place.store_runs
    seconds = config.launch.timeout_seconds
    store = open_store(host=place.master, port=place.port, serve=serve, timeout_seconds=seconds)
    return torch.distributed.PrefixStore(f"attempt-{place.attempt}", store)


def _crew(
    store: torch.distributed.Store, place: Place, *, config: SomaConfig, should_stop: Callable[[], bool]
) -> AbstractContextManager[Crew]:
    seconds = config.launch.timeout_seconds
    return meet(store, rank=place.rank, size=place.size, name=CREW, timeout_seconds=seconds, should_stop=should_stop)


def _wait_until_ready(store: torch.distributed.Store, *, should_stop: Callable[[], bool]) -> None:
    try:
        while not store.check([READY]):
            if should_stop():
                torch.distributed.PrefixStore(CREW, store).set(STOPPED, "")
                raise InterruptedRunError("stopped before rank 0 was ready")
            time.sleep(POLL_SECONDS)
    except torch.distributed.DistError as error:
        fix = "see what rank 0 says; then give the same command again"
        raise RunFailedError(f"rank 0 is gone before the training began\n  fix:   {fix}") from error
