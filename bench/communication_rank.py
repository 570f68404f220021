"""One rank of ``bench/communication.py``, in a namespace of its own; or (``store``) what serves the store in the hub.

Every line of a rank's input is a call, every line of its output the answer, both JSON. A rank holds one trainer for
each codec; each can train on any team that was opened: on the cables as they are, or with the model of a link.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thinwire.base.seeds import numpy_generator
from thinwire.comm.collectives import barrier
from thinwire.comm.group import Group, connect
from thinwire.comm.ledger import Ledger
from thinwire.comm.link import Link
from thinwire.comm.netlab import INTERFACE
from thinwire.comm.process import open_store
from thinwire.config.fingerprint import from_record
from thinwire.data.tokens import TokenStream
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.team import Team
from thinwire.subspaces.trainer import Compute, Texts, Trainer

PORT = 5200
BRIDGE = "bridge"
TIMEOUT_SECONDS = 300.0
VOCAB_SIZE = 256


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
    """How long a group's messages were waited for."""

    def __init__(self, group: Group) -> None:
        self.seconds = 0.0
        self._take = group.take
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
        barrier(together.main)
        total, after = self._ledger.by_tag(), nic_sent()
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
