"""One rank in a process of its own: ``python -m thinwire.subspaces.worker RUN MEMBER HOST PORT ROLE THREADS``.

ROLE is ``serve`` (this rank serves the store where all meet), ``start``, or ``join`` (the run is under way).
"""

import sys
from pathlib import Path

from thinwire.launch.messages import PipeTask, exit_status_of, give_up, say, send, stop_requested
from thinwire.subspaces.run import Seat, run_rank


class _Parent:
    def at_work(self) -> None:
        send({"type": "at_work"})

    def give_up(self, pid: int) -> None:
        give_up(pid)


def main(arguments: list[str]) -> int:
    """Exit status as the command line's: 0, 1, 2 or 130."""
    should_stop = stop_requested()
    root, member, host, port, role, threads = arguments

    def work() -> None:
        run_rank(
            Path(root),
            seat=Seat(int(member), host, int(port), role, int(threads)),
            task=PipeTask(),
            say=say,
            should_stop=should_stop,
            launcher=_Parent(),
        )

    return exit_status_of(work, place=root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
