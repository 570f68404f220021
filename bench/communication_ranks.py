"""Ranks of ``bench/communication.py``: one process in each namespace of a laboratory, kept over the whole benchmark.

Run as a script it is one rank, or (``store``) what serves the store in the hub, where no shaped cable slows the ranks'
beats. Every line of a rank's input is a call, every line of its output the answer, both JSON. A rank holds one trainer
for each codec; each can train on any team that was opened: on the cables as they are, or with the model of a link.
"""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from thinwire.base.seeds import numpy_generator
from thinwire.comm.collectives import barrier
from thinwire.comm.group import Group, connect
from thinwire.comm.ledger import Ledger
from thinwire.comm.link import Link
from thinwire.comm.netlab import INTERFACE, Lab
from thinwire.comm.process import open_store
from thinwire.config.fingerprint import as_record, from_record
from thinwire.data.tokens import TokenStream
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.team import Team
from thinwire.subspaces.trainer import Compute, Texts, Trainer

PORT = 5200
BRIDGE = "bridge"
TIMEOUT_SECONDS = 300.0
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns that addresses in a laboratory have no names
ETHERNET_BYTES = 14
HEADERS_BYTES = ETHERNET_BYTES + 20 + 32
"""Ethernet, IPv4 and TCP with time stamps, of each packet that an interface counts."""
VOCAB_SIZE = 256


class RankFailedError(Exception):
    """A rank's process ended."""


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
            RankFailedError: one has ended; what it said is on standard error.
        """
        for process in self._processes:
            _tell(process, json.dumps([name, *arguments]))
        answers = [_pipe(process.stdout).readline() for process in self._processes]
        if not all(answers):
            raise RankFailedError(f"rank {answers.index('')} has ended")
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
            raise RankFailedError("the store has ended")
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
                process.wait(TIMEOUT_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(prefix: Sequence[str], environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, __file__, *arguments],
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


# --- in the rank's process --------------------------------------------------------------------------------------------


class RandomBytes(TokenStream):
    """Text costs the same whatever it says."""

    def __init__(self, num_tokens: int) -> None:
        self.vocab_size, self.num_tokens, self.where = VOCAB_SIZE, num_tokens, "random bytes"
        self.document_starts, self.document_lengths = np.zeros(1, np.int64), np.full(1, num_tokens - 1, np.int64)
        self.token_bytes = np.ones(VOCAB_SIZE, np.int64)
        self._bytes = numpy_generator(0, "bench-text").integers(VOCAB_SIZE, size=num_tokens)

    def gather(self, starts: np.ndarray, *, length: int) -> np.ndarray:
        return np.stack([self._bytes[start : start + length] for start in starts])


class Waiting:
    """How long a group's messages were waited for by this thread; the group's own thread counts nothing."""

    def __init__(self, group: Group) -> None:
        self.seconds = 0.0
        self._take, self._thread = group.take, threading.current_thread()
        group.take = self._timed  # type: ignore[method-assign]

    def _timed(self, *arguments: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        began = time.monotonic()
        try:
            return self._take(*arguments, **keywords)
        finally:
            self.seconds += time.monotonic() - began


class Rank:
    """What the calls do, on one rank."""

    def __init__(self, rank: int, size: int, host: str, configs: dict[str, SubspacesConfig]) -> None:
        self._rank, self._size = rank, size
        self._store = open_store(host=host, port=PORT, serve=False, timeout_seconds=TIMEOUT_SECONDS)
        self._ledger = Ledger()
        self._teams: dict[str, Team] = {}
        self._waiting: dict[str, Waiting] = {}
        self.open("cables", None)
        num_tokens = 64 * next(iter(configs.values())).sequence.tokens
        text = RandomBytes(num_tokens)
        self._trainers = {name: self._trainer(config, Texts(text, text)) for name, config in configs.items()}

    def _trainer(self, config: SubspacesConfig, texts: Texts) -> Trainer:
        trainer = Trainer(config, team=self._teams["cables"], texts=texts, compute=Compute(torch.device("cpu")))
        trainer.change_phase("plain" if config.codec.kind == "plain" else "compressed")
        return trainer

    def open(self, team: str, link: dict[str, Any] | None) -> None:
        """One group a team: no weights are averaged while steps are timed, so none needs a group of its own."""
        group = connect(
            self._store,
            rank=self._rank,
            size=self._size,
            name=team,
            timeout_seconds=TIMEOUT_SECONDS,
            link=None if link is None else Link(**link),
            ledger=self._ledger,
        )
        self._teams[team] = Team(group, group, tuple(range(self._size)))
        self._waiting[team] = Waiting(group)

    def train(self, codec: str, team: str, steps: int) -> dict[str, Any]:
        trainer, together, waiting = self._trainers[codec], self._teams[team], self._waiting[team]
        trainer.join_team(together)
        barrier(together.main)
        sent, messages = self._ledger.by_tag(), self._num_messages()
        nic, waited, busy, began = nic_sent(), waiting.seconds, time.process_time(), time.monotonic()
        results = [trainer.train_step() for _ in range(steps)]
        ended, busy, waited = time.monotonic(), time.process_time() - busy, waiting.seconds - waited
        total = self._ledger.by_tag()
        barrier(together.main)
        after = nic_sent()
        return {
            "began": began,
            "ended": ended,
            "waited": waited,
            "busy": busy,
            "is_finite": not any(result.is_broken for result in results),
            "loss": results[-1].loss,
            "ledger": {tag: count - sent.get(tag, 0) for tag, count in total.items() if count > sent.get(tag, 0)},
            "num_messages": self._num_messages() - messages,
            "nic_bytes": after[0] - nic[0],
            "nic_packets": after[1] - nic[1],
        }

    def _num_messages(self) -> int:
        return sum(row.num_messages for row in self._ledger.rows())

    def average(self, codec: str, team: str) -> int:
        trainer = self._trainers[codec]
        trainer.join_team(self._teams[team])
        before = self._ledger.total(tag="sync")
        assert trainer.averaging is not None
        trainer.averaging.settle(trainer.step)
        return self._ledger.total(tag="sync") - before

    def close(self) -> None:
        for team in self._teams.values():
            barrier(team.main)
            team.main.close()


def nic_counters(device: str) -> list[int]:
    """Of this namespace's interface: bytes and packets received first, those sent from number 8 on."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            return [int(field) for field in counters.split()]
    raise FileNotFoundError(device)


def nic_sent() -> list[int]:
    """Bytes and packets that left this rank's namespace so far."""
    return nic_counters(INTERFACE)[8:10]


def _be_rank(rank: str, size: str, host: str, records: str) -> None:
    torch.set_num_threads(1)
    configs = {name: from_record(SubspacesConfig, record) for name, record in json.loads(records).items()}
    one = Rank(int(rank), int(size), host, configs)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(one, name)(*arguments)), flush=True)
    one.close()


def _be_store(address: str) -> None:
    store = open_store(host=address, port=PORT, serve=True, timeout_seconds=TIMEOUT_SECONDS)
    print(store.port, flush=True)
    for _ in sys.stdin:
        print(json.dumps(nic_counters(BRIDGE)[:2]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "store":
        _be_store(sys.argv[2])
    else:
        _be_rank(*sys.argv[1:])
