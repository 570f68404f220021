"""Ranks of ``bench/communication.py``: one process in each namespace of a laboratory, kept over the whole benchmark.

The store where they meet is served in the hub, where no shaped cable slows the ranks' beats. What a rank does is in
``communication_rank.py``.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from thinwire.base.errors import RunFailedError
from thinwire.comm.link import Link
from thinwire.comm.netlab import Lab
from thinwire.config.fingerprint import as_record
from thinwire.subspaces.config import SubspacesConfig

PROGRAM = Path(__file__).with_name("communication_rank.py")
END_SECONDS = 60.0
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns that addresses in a laboratory have no names
ETHERNET_BYTES = 14
HEADERS_BYTES = ETHERNET_BYTES + 20 + 32
"""Ethernet, IPv4 and TCP with time stamps, of each packet that an interface counts."""


@dataclass(frozen=True)
class Block:
    """Some steps that all ranks made together.

    Attributes:
        seconds: of one step: from the first rank's beginning to the last rank's end, over the steps.
        waited_seconds: of one step, in waits for messages; the longest of the ranks.
        busy_seconds: of one step, on cores, all ranks' together.
        is_finite: losses and gradients of all steps on all ranks.
        loss: of the last step, in nats per token.
        ledger: bytes of one step by tag, all ranks together.
        num_messages: of one step, all ranks together.
        nic_frame_bytes: of one step, as all ranks' interfaces counted what they sent.
        nic_bytes: the same without the headers of each packet, and without what went to the store.
    """

    seconds: float
    waited_seconds: float
    busy_seconds: float
    is_finite: bool
    loss: float
    ledger: dict[str, float]
    num_messages: float
    nic_frame_bytes: float
    nic_bytes: float


class BenchRanks:
    """The processes, called one and all."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[str]], *, store: subprocess.Popen[str], tokens_per_step: int
    ) -> None:
        self._processes, self._store, self._tokens_per_step = processes, store, tokens_per_step

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Every rank's answer.

        Raises:
            RunFailedError: one has ended; what it said is on standard error.
        """
        for process in self._processes:
            _tell(process, json.dumps([name, *arguments]))
        answers = [_pipe(process.stdout).readline() for process in self._processes]
        if not all(answers):
            raise RunFailedError(f"rank {answers.index('')} has ended")
        return [json.loads(answer) for answer in answers]

    def open(self, team: str, link: Link | None) -> None:
        """Let the ranks meet once more."""
        self.call("open", team, None if link is None else dataclasses.asdict(link))

    def train(self, codec: str, team: str, *, steps: int) -> Block:
        """Make some steps on all ranks."""
        before = self._received_by_store()
        found = self.call("train", codec, team, steps)
        to_store = self._received_by_store() - before
        payload = sum(one["nic_bytes"] - one["nic_packets"] * HEADERS_BYTES for one in found)
        tags = {tag for one in found for tag in one["ledger"]}
        return Block(
            seconds=(max(one["ended"] for one in found) - min(one["began"] for one in found)) / steps,
            waited_seconds=max(one["waited"] for one in found) / steps,
            busy_seconds=sum(one["busy"] for one in found) / steps,
            is_finite=all(one["is_finite"] for one in found),
            loss=sum(one["loss"] for one in found) / self._tokens_per_step,
            ledger={tag: sum(one["ledger"].get(tag, 0) for one in found) / steps for tag in sorted(tags)},
            num_messages=sum(one["num_messages"] for one in found) / steps,
            nic_frame_bytes=sum(one["nic_bytes"] for one in found) / steps,
            nic_bytes=(payload - to_store) / steps,
        )

    def _received_by_store(self) -> int:
        """TCP payload that reached the hub, through the bridge's own device, which counts no Ethernet headers."""
        _tell(self._store, "")
        num_bytes, num_packets = json.loads(_pipe(self._store.stdout).readline())
        return num_bytes - num_packets * (HEADERS_BYTES - ETHERNET_BYTES)

    def sync_bytes(self, codec: str, team: str) -> int:
        """Average the weights once; what all ranks sent for it."""
        return sum(self.call("average", codec, team))


@contextmanager
def bench_ranks(lab: Lab, configs: dict[str, SubspacesConfig]) -> Iterator[BenchRanks]:
    """Processes in the laboratory, with a trainer for every configuration; they have met as team ``cables``."""
    records = json.dumps({name: as_record(config) for name, config in configs.items()})
    size = next(iter(configs.values())).sequence
    store = _start(lab.hub_prefix(), {}, "store", lab.hub_address)
    processes = [store]
    try:
        if not _pipe(store.stdout).readline():
            raise RunFailedError("the store has ended")
        arguments = [
            (str(rank), str(len(lab.addresses)), lab.hub_address, records) for rank in range(len(lab.addresses))
        ]
        ranks = [_start(lab.prefix(rank), lab.environment(rank), *own) for rank, own in enumerate(arguments)]
        processes += ranks
        yield BenchRanks(ranks, store=store, tokens_per_step=size.sequences_per_step * size.tokens)
        for ending in (ranks, [store]):  # the ranks close together, then nobody needs the store
            for process in ending:
                _pipe(process.stdin).close()
            for process in ending:
                process.wait(END_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(prefix: Sequence[str], environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, **environment, **QUIET, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _tell(process: subprocess.Popen[str], line: str) -> None:
    _pipe(process.stdin).write(f"{line}\n")
    _pipe(process.stdin).flush()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
