"""Ranks that exchange tensors in a laboratory: how long does one exchange of all with all take?

Run as a script it is one rank with several groups on the same cable, ``plain`` and, for ``node`` and ``pair``, with the
model of such a link. Every line of its input names a group and a number of bytes; it answers with the seconds that the
exchange took.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.comm.group import Group
    from thinwire.comm.netlab import Lab

PORT = 5100
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns that addresses in a laboratory have no names
TIMEOUT_SECONDS = 60.0


class LabRanks:
    """One process for each rank of a laboratory."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def exchange_seconds(self, group: str, *, num_bytes: int) -> float:
        """Every rank sends so many bytes to each other rank, all at once; the slowest one's time."""
        for process in self._processes:
            _pipe(process.stdin).write(f"{json.dumps([group, num_bytes])}\n")
            _pipe(process.stdin).flush()
        return max(float(_pipe(process.stdout).readline()) for process in self._processes)


@contextmanager
def lab_ranks(lab: "Lab", *, bits_per_s: float) -> Iterator[LabRanks]:
    """Ranks whose modelled links have this rate."""
    settings = json.dumps([lab.addresses, bits_per_s])
    processes = [
        subprocess.Popen(
            [*lab.prefix(rank), sys.executable, __file__, str(rank), settings],
            env={**os.environ, **lab.environment(rank), **QUIET, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(lab.addresses))
    ]
    try:
        for process in processes:
            assert _pipe(process.stdout).readline() == "ready\n"
        yield LabRanks(processes)
        for process in processes:
            _pipe(process.stdin).close()  # all, before waiting for one: they leave together
        for process in processes:
            assert process.wait(TIMEOUT_SECONDS) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _exchange(group: "Group", num_bytes: int) -> float:
    """Rank r sends to r + 1 first, then to r + 2, ...: no two ranks begin with the same one."""
    import torch

    from thinwire.comm.collectives import barrier
    from thinwire.comm.group import TensorSpec

    spec, payload = TensorSpec((num_bytes,), torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    barrier(group)
    start = time.monotonic()
    steps = range(1, group.size)
    pending = [group.receive([spec], source=(group.rank - step) % group.size, slot=1, tag="exchange") for step in steps]
    pending += [group.send([payload], to=(group.rank + step) % group.size, slot=1, tag="exchange") for step in steps]
    for one in pending:
        one.wait()
    return time.monotonic() - start


def _be_rank(rank: int, addresses: list[str], bits_per_s: float) -> None:
    import torch

    from thinwire.comm.collectives import barrier
    from thinwire.comm.group import connect
    from thinwire.comm.link import Link
    from thinwire.comm.process import open_store

    torch.set_num_threads(1)
    store = open_store(host=addresses[0], port=PORT, serve=rank == 0, timeout_seconds=TIMEOUT_SECONDS)
    links = {"plain": None, "node": Link(bits_per_s), "pair": Link(bits_per_s, per="pair")}
    groups = {
        name: connect(store, rank=rank, size=len(addresses), name=name, timeout_seconds=TIMEOUT_SECONDS, link=link)
        for name, link in links.items()
    }
    print("ready", flush=True)
    for line in sys.stdin:
        name, num_bytes = json.loads(line)
        print(_exchange(groups[name], num_bytes), flush=True)
    barrier(groups["plain"])
    for group in groups.values():
        group.close()
    os._exit(0)  # torch takes long to leave


if __name__ == "__main__":
    _be_rank(int(sys.argv[1]), *json.loads(sys.argv[2]))
