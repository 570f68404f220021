"""Which rank is this process, and where do the ranks meet?  The only reader of environment variables (torchrun's)."""

import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed

from thinwire.base.errors import UserError

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class Place:
    """One process among all.

    Args:
        rank: 0 .. size - 1.
        size: number of processes.
        master: host of the store.
        port: the store's port.
        store_runs: the launcher already serves the store, so that no rank has to.
        attempt: how often the launcher started all ranks again, in the same store.
        here: how many of the processes share this machine.
    """

    rank: int
    size: int
    master: str
    port: int
    store_runs: bool = False
    attempt: int = 0
    here: int = 1

    def refuse_other_size(self, ranks: int) -> None:
        """Raises UserError where another number of ranks was started than the configuration's."""
        if self.size != ranks:
            raise UserError(
                f"{self.size} ranks were started, the configuration has {ranks}",
                where="WORLD_SIZE",
                fix=f"give --launch.ranks {self.size}, or start {ranks} ranks",
            )


def place_from_environment() -> Place | None:
    """What torchrun (or whoever sets the same variables) says; None where nothing is set.

    Raises:
        UserError: only some of the variables are set, or one is not what it must be.
    """
    found = {name: os.environ[name] for name in TORCHRUN if os.environ.get(name)}
    if not found:
        return None
    if missing := [name for name in TORCHRUN if name not in found]:
        raise _unusable(f"{', '.join(found)} is set, but {', '.join(missing)} is not")
    rank, size, port = (_number(found, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < size:
        raise _unusable(f"RANK={rank} is not below WORLD_SIZE={size}")
    if not 0 < port < 65536:
        raise _unusable(f"MASTER_PORT={port} is no port")
    runs = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    attempt, here = (_count(name) for name in ("TORCHELASTIC_RESTART_COUNT", "LOCAL_WORLD_SIZE"))
    return Place(rank, size, found["MASTER_ADDR"], port, store_runs=runs, attempt=attempt, here=max(1, here))


def _count(name: str) -> int:
    """0 where it is not set."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


def _number(found: dict[str, str], name: str) -> int:
    try:
        return int(found[name])
    except ValueError:
        raise _unusable(f"{name}={found[name]} is no whole number") from None


def _unusable(what: str) -> UserError:
    fix = "start the ranks with torchrun, or unset all of " + ", ".join(TORCHRUN)
    return UserError(what, where="environment variables", fix=fix)


def open_store(*, host: str, port: int, serve: bool, timeout_seconds: float) -> torch.distributed.TCPStore:
    """The key-value store where the ranks meet.

    Args:
        host: where it is served; for a server, the address others are told.
        port: 0 with ``serve`` takes a free one, which ``.port`` of the result tells.
        serve: run the server in this process; it ends with it.
        timeout_seconds: how long a client waits for the server, and the store's answers.

    Raises:
        UserError: nobody serves the store there in time, or the port is taken.
    """
    if not serve:
        _wait_for_server(host, port=port, timeout_seconds=timeout_seconds)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        return torch.distributed.TCPStore(host, port, None, serve, timeout, wait_for_workers=False)
    except torch.distributed.DistError as error:
        what = f"the store where the ranks meet cannot be {'served' if serve else 'reached'}"
        reason = str(error).splitlines()[0]
        raise UserError(f"{what} ({reason})", where=f"{host}:{port}", fix="choose a free port") from error


def _wait_for_server(host: str, *, port: int, timeout_seconds: float) -> None:
    """torch tries as well, but says so with stack traces."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            with socket.create_connection((host, port), timeout=timeout_seconds):
                return
        except OSError as error:
            if time.monotonic() >= deadline:
                what = f"nobody serves the store where the ranks meet, after {timeout_seconds:g} s ({error})"
                fix = "check that rank 0 runs, and that this address can be reached from here"
                raise UserError(what, where=f"{host}:{port}", fix=fix) from error
            time.sleep(RETRY_SECONDS)
