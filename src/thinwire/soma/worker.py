"""Training in a process of its own: ``python -m thinwire.soma.worker RUN JOBS IMPLEMENTATION THREADS [SEAT]``.

``JOBS`` is one name, or several with commas between them that learn from the sum of their losses. ``SEAT`` is
``RANK HOST PORT`` for one of the ranks that train a job together: its number, and the store where they meet.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from thinwire.comm.process import open_store
from thinwire.launch.messages import PipeTask, exit_status_of, say, stop_requested
from thinwire.soma.compute import Compute
from thinwire.soma.expert_training import Member, train_together
from thinwire.soma.following import follow
from thinwire.soma.handed_job import dismiss
from thinwire.soma.perturbation_parallel import Crew, meet
from thinwire.soma.run import SomaRun


def main(arguments: list[str]) -> int:
    """Exit status as the command line's: 0, 1, 2 or 130."""
    should_stop = stop_requested()
    root, names, implementation, threads, *seat = arguments

    def work() -> None:
        run, compute = SomaRun.open(Path(root)), Compute(implementation, int(threads))
        if seat:
            _train_in_crew(run, names, seat=seat, compute=compute, should_stop=should_stop)
        else:
            _train(run, names, compute=compute, should_stop=should_stop)

    return exit_status_of(work, place=root)


def _train(
    run: SomaRun, names: str, *, compute: Compute, should_stop: Callable[[], bool], crew: Crew | None = None
) -> None:
    corpus = run.open_corpus()
    train_together(
        [Member(run.job(name, corpus=corpus), run.job_folder(name)) for name in names.split(",")],
        compute=compute,
        task=PipeTask(),
        say=say,
        should_stop=should_stop,
        crew=crew,
    )


def _train_in_crew(
    run: SomaRun, names: str, *, seat: Sequence[str], compute: Compute, should_stop: Callable[[], bool]
) -> None:
    rank, host, port = seat
    launch = run.config.launch
    store = open_store(host=host, port=int(port), serve=False, timeout_seconds=launch.timeout_seconds)
    with meet(
        store,
        rank=int(rank),
        size=launch.ranks,
        name=f"job-{names}",
        timeout_seconds=launch.timeout_seconds,
        should_stop=should_stop,
    ) as crew:
        if crew.rank > 0:
            follow(crew, config=run.config, corpus=run.open_corpus(), compute=compute)
            return
        _train(run, names, compute=compute, should_stop=should_stop, crew=crew)
        dismiss(crew)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
