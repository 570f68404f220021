"""Training in a process of its own: ``python -m thinwire.soma.worker RUN JOBS IMPLEMENTATION THREADS``.

``JOBS`` is one name, or several with commas between them that learn from the sum of their losses.
"""

import sys
from pathlib import Path

from thinwire.launch.messages import PipeTask, exit_status_of, say, stop_requested
from thinwire.soma.expert_training import Compute, Member, train_together
from thinwire.soma.run import SomaRun


def main(arguments: list[str]) -> int:
    """Exit status as the command line's: 0, 1, 2 or 130."""
    should_stop = stop_requested()
    root, names, implementation, threads = arguments

    def work() -> None:
        run = SomaRun.open(Path(root))
        corpus = run.open_corpus()
        train_together(
            [Member(run.job(name, corpus=corpus), run.job_folder(name)) for name in names.split(",")],
            compute=Compute(implementation, int(threads)),
            task=PipeTask(),
            say=say,
            should_stop=should_stop,
        )

    return exit_status_of(work, place=root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
