"""One training job in a process of its own: ``python -m thinwire.soma.worker RUN JOB IMPLEMENTATION THREADS``."""

import sys
from pathlib import Path

from thinwire.launch.messages import PipeTask, exit_with, say, stop_requested
from thinwire.soma.expert_training import Compute, train
from thinwire.soma.run import SomaRun


def main(arguments: list[str]) -> int:
    """Exit status as the command line's: 0, 1, 2 or 130."""
    should_stop = stop_requested()
    root, name, implementation, threads = arguments
    try:
        run = SomaRun.open(Path(root))
        train(
            run.job(name, corpus=run.open_corpus()),
            folder=run.job_folder(name),
            compute=Compute(implementation, int(threads)),
            task=PipeTask(),
            say=say,
            should_stop=should_stop,
        )
    except BrokenPipeError:
        return 1
    except OSError as error:
        if error.filename is None:  # a write that failed half-way does not say where
            error.filename = root
        return exit_with(error)
    except Exception as error:
        return exit_with(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
