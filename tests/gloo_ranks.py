"""How does a test run a function on several ranks?  Processes, spawned once, that meet in gloo groups on demand.

``pool.run(function, *arguments, ranks=3)`` calls ``function(group, *arguments)`` on three of them and returns what each
returned. The function is a top-level one of any test module; arguments and results are pickled. A failure comes back
as RanksFailedError with every rank's traceback, and the pool stays usable.
"""

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 60.0
EXIT_SECONDS = 20


class RanksFailedError(Exception):
    """At least one rank raised; the first error that is no mere consequence comes first."""


class RankPool:
    """Processes with torch on one thread each; a context manager. They start when they are first needed, and again
    when they have died.

    Args:
        size: how many at most; a run takes the first ``ranks`` of them.
        timeout_seconds: of the groups.
    """

    def __init__(self, size: int = 4, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        from thinwire.comm.process import open_store

        self.size = size
        self._timeout_seconds = timeout_seconds
        self._generation = 0
        self._names: dict[int, str] = {}
        self._store = open_store(host="127.0.0.1", port=0, serve=True, timeout_seconds=timeout_seconds)
        self._folder = tempfile.TemporaryDirectory()
        self._address = str(Path(self._folder.name) / "pool")
        self._listener = Listener(self._address, "AF_UNIX")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Of the store where the ranks meet."""
        return self._store.port

    def run(self, function: Callable[..., Any], /, *arguments: Any, ranks: int, **keywords: Any) -> list[Any]:
        """What ``function(group, *arguments, **keywords)`` returned on each rank.

        Raises:
            RanksFailedError: it raised on at least one, or a process died.
        """
        self.start(function, *arguments, ranks=ranks, **keywords)
        return self.finish(range(ranks))

    def start(self, function: Callable[..., Any], /, *arguments: Any, ranks: int, **keywords: Any) -> None:
        """Begin a run; ``finish`` has to follow."""
        assert 1 <= ranks <= self.size
        self._spawn(ranks)
        if ranks not in self._names:
            self._generation += 1
            self._names[ranks] = f"{self._generation}-of-{ranks}"
        meeting = (self._store.port, self._names[ranks], ranks, self._timeout_seconds)
        call = pickle.dumps((meeting, function.__module__, function.__qualname__, arguments, keywords))
        for rank in range(ranks):
            self._connections[rank].send_bytes(pickle.dumps(rank))
            self._connections[rank].send_bytes(call)

    def finish(self, ranks: Iterable[int]) -> list[Any]:
        """The results of these ranks."""
        answers = [(rank, *self._answer(rank)) for rank in ranks]
        failures = [(rank, text) for rank, fine, text in answers if not fine]
        if failures:
            self._names.clear()
            failures.sort(key=lambda failure: "PeerLostError" in failure[1])
            raise RanksFailedError("\n".join(f"rank {rank}:\n{text}" for rank, text in failures))
        return [answer for _, _, answer in answers]

    def close(self) -> dict[int, int]:
        """Exit statuses; a process that does not end by itself is killed."""
        for connection in self._connections.values():
            connection.close()
        for process in self.processes.values():
            try:
                process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._listener.close()
        self._folder.cleanup()
        return {index: process.returncode for index, process in self.processes.items()}

    def _answer(self, rank: int) -> tuple[bool, Any]:
        try:
            return pickle.loads(self._connections[rank].recv_bytes())
        except (EOFError, ConnectionError):
            return False, f"its process died with status {self.processes[rank].wait()}"

    def _spawn(self, ranks: int) -> None:
        """Start what is missing; the first call for many ranks starts as many at once."""
        missing = [index for index in range(ranks) if index not in self.processes or self._is_dead(index)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        for index in missing:
            argv = [sys.executable, __file__, self._address, str(index)]
            self.processes[index] = subprocess.Popen(argv, env=environment)
        for _ in missing:
            connection = self._listener.accept()
            self._connections[pickle.loads(connection.recv_bytes())] = connection
        if missing:
            self._names.clear()

    def _is_dead(self, index: int) -> bool:
        return self.processes[index].poll() is not None


class _Groups:
    """The groups of one process: one for each number of ranks."""

    def __init__(self) -> None:
        self._store: Any = None
        self._groups: dict[int, tuple[str, Any]] = {}

    def get(self, rank: int, meeting: tuple[int, str, int, float]) -> Any:
        from thinwire.comm.group import connect
        from thinwire.comm.process import open_store

        port, name, size, timeout_seconds = meeting
        if self._store is None:
            self._store = open_store(host="127.0.0.1", port=port, serve=False, timeout_seconds=timeout_seconds)
        if self._groups.get(size, ("", None))[0] != name:
            self.drop(size)
            group = connect(self._store, rank=rank, size=size, name=name, timeout_seconds=timeout_seconds)
            self._groups[size] = (name, group)
        return self._groups[size][1]

    def drop(self, size: int) -> None:
        if size in self._groups:
            self._groups.pop(size)[1].close()

    def drop_all(self) -> None:
        for size in tuple(self._groups):
            self.drop(size)


def _serve(connection: Connection, *, index: int) -> None:
    import torch

    import thinwire.comm.collectives  # noqa: F401  all that takes long, before anybody waits for this rank

    torch.set_num_threads(1)
    connection.send_bytes(pickle.dumps(index))
    groups = _Groups()
    while True:
        try:
            rank = pickle.loads(connection.recv_bytes())
        except EOFError:
            break
        try:
            meeting, module, name, arguments, keywords = pickle.loads(connection.recv_bytes())
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            answer = pickle.dumps((True, function(groups.get(rank, meeting), *arguments, **keywords)))
        except Exception:
            answer = pickle.dumps((False, traceback.format_exc()))
            groups.drop_all()  # so that the other ranks do not wait
        connection.send_bytes(answer)
    groups.drop_all()


if __name__ == "__main__":
    with Client(sys.argv[1], "AF_UNIX") as pipe:
        _serve(pipe, index=int(sys.argv[2]))
