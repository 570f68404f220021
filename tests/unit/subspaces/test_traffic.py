"""The formula equals what the ranks' ledgers counted, pair by pair, and the paper's sizes come out."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thinwire.comm.group import Group, connect
from thinwire.comm.process import open_store
from thinwire.data.corpus import Corpus
from thinwire.data.tokens import open_tokens
from thinwire.subspaces.config import (
    CodecConfig,
    LaunchConfig,
    LlamaConfig,
    PhasesConfig,
    SequenceConfig,
    SubspacesConfig,
    SyncConfig,
)
from thinwire.subspaces.llama import Llama
from thinwire.subspaces.replica import Replica
from thinwire.subspaces.schedule import Phase
from thinwire.subspaces.team import Team
from thinwire.subspaces.traffic import Traffic, num_parameters, step_traffic
from thinwire.subspaces.trainer import Compute, Texts, Trainer

RANKS = 3
TINY = SubspacesConfig(
    model=LlamaConfig(layers=2, width=24, heads=4, kv_heads=2, head_width=8, hidden=20),
    sequence=SequenceConfig(tokens=50, chunks=7, batch=2),
    codec=CodecConfig(key_rate=0.7, value_rate=0.5, group=4, wire="bfloat16"),
    phases=PhasesConfig(warmup_steps=0, warmup_tokens=16),
    sync=SyncConfig(every=1, wire="float32"),
    launch=LaunchConfig(ranks=RANKS),
)


def with_codec(**changes: Any) -> SubspacesConfig:
    return replace(TINY, codec=replace(TINY.codec, **changes))


def with_sequence(**changes: Any) -> SubspacesConfig:
    return replace(TINY, sequence=replace(TINY.sequence, **changes))


CASES = {
    "previous chunk": (TINY, "compressed"),
    "own chunk, three generators": (with_codec(theta_source="chunk", generators=3), "compressed"),
    "fixed basis": (with_codec(theta_source="none"), "compressed"),
    "random theta": (with_codec(theta_source="random"), "compressed"),
    "first layer plain": (with_codec(uncompressed_layers=(0,), generators=2), "compressed"),
    "top k": (with_codec(kind="top_k", keep_fraction=0.13), "compressed"),
    "four bits": (with_codec(kind="quantised"), "compressed"),
    "plain": (with_codec(kind="plain"), "plain"),
    "contiguous": (with_sequence(order="contiguous"), "compressed"),
    "streams and accumulation": (with_sequence(streams=2, accumulation=2, batch=1), "compressed"),
    "warm-up": (TINY, "warm-up"),
    "sums in bfloat16": (replace(TINY, sync=SyncConfig(every=1, wire="bfloat16")), "compressed"),
}


def on_ranks(body: Callable[[Group, Group], Any]) -> list[Any]:
    """In threads of this process, which need no time to start."""
    store = open_store(host="127.0.0.1", port=0, serve=True, timeout_seconds=20.0)
    results: list[Any] = [None] * RANKS

    def work(rank: int) -> None:
        mine = store if rank == 0 else open_store(host="127.0.0.1", port=store.port, serve=False, timeout_seconds=20.0)
        groups = [connect(mine, rank=rank, size=RANKS, name=name, timeout_seconds=20.0) for name in ("main", "sync")]
        try:
            results[rank] = body(groups[0], groups[1])
        finally:
            for group in groups:
                group.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result is not None for result in results)
    return results


def counted(config: SubspacesConfig, phase: Phase, data: Path) -> dict[str, np.ndarray]:
    """What the ledgers say of update 1: tag -> [from, to]."""
    corpus = Corpus.open(data)
    texts = Texts(open_tokens(corpus, "train"), open_tokens(corpus, "valid"))

    def step(main: Group, sync: Group) -> Any:
        team = Team(main, sync, tuple(range(RANKS)))
        trainer = Trainer(config, team=team, texts=texts, compute=Compute(torch.device("cpu")))
        if phase != "warm-up":
            trainer.change_phase(phase)
        trainer.train_step()
        return [(row.tag, row.peer, row.num_bytes) for row in main.ledger.rows() if row.step == 1]

    found = {tag: np.zeros((RANKS, RANKS), np.int64) for tag in ("kv-forward", "kv-backward", "theta", "sync")}
    for rank, rows in enumerate(on_ranks(step)):
        for tag, peer, num_bytes in rows:
            found[tag][rank, peer] += num_bytes
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_of_a_step_equals_the_formula(name: str, tiny_data: Path) -> None:
    config, phase = CASES[name]
    found = counted(config, phase, tiny_data)
    traffic = step_traffic(config, vocab_size=256, phase=phase)
    assert np.array_equal(found["kv-forward"], traffic.kv_forward)
    assert np.array_equal(found["kv-backward"], traffic.kv_backward)
    assert np.array_equal(found["theta"], traffic.theta_forward + traffic.theta_backward)
    assert np.array_equal(found["sync"], traffic.sync)
    assert traffic.by_tag() == {tag: int(matrix.sum()) for tag, matrix in found.items()}
    assert (traffic.kv_forward.sum() > 0) == (phase != "warm-up")


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_they_are(tied: bool) -> None:
    config = replace(TINY, model=replace(TINY.model, tied=tied))
    model = Llama(config.model, vocab_size=31)
    assert num_parameters(config, vocab_size=31) == sum(p.numel() for p in model.parameters())
    replica = Replica(config, vocab_size=31)
    replica.add_heads()
    assert num_parameters(config, vocab_size=31, phase="compressed") == sum(p.numel() for p in replica.parameters())


def test_the_paper_gathers_every_chunk_everywhere() -> None:
    layers, ranks, tokens, width = 3, 4, 4000, 64
    model = LlamaConfig(layers=layers, width=width, heads=4, kv_heads=4, head_width=16)
    config = SubspacesConfig(
        model=model, sequence=SequenceConfig(tokens=tokens, chunks=8), launch=LaunchConfig(ranks=ranks)
    )
    full = step_traffic(config, vocab_size=256, phase="plain", exchange="all_gather")
    assert full.kv_forward.sum(axis=0).tolist() == [layers * 2 * width * 2 * tokens * (ranks - 1) // ranks] * ranks
    needed = step_traffic(config, vocab_size=256, phase="plain")
    # zig-zag: early chunks go everywhere, late ones to half of the ranks on average
    assert needed.kv_forward.sum() == 0.75 * full.kv_forward.sum()
    assert np.array_equal(needed.kv_backward, needed.kv_forward.T)
    assert (needed.kv_forward <= full.kv_forward).all()
    row = replace(config, sequence=replace(config.sequence, order="contiguous"))
    contiguous = step_traffic(row, vocab_size=256, phase="plain").kv_forward
    assert contiguous.sum() == 0.5 * full.kv_forward.sum()
    assert contiguous[-1].sum() == 0


def test_moving_the_ranks_moves_the_bytes() -> None:
    still, moved = (step_traffic(TINY, vocab_size=256, shift=shift) for shift in (0, 1))
    assert np.array_equal(np.roll(still.kv_forward, (1, 1), axis=(0, 1)), moved.kv_forward)


def test_one_rank_sends_nothing() -> None:
    traffic: Traffic = step_traffic(TINY, vocab_size=256, num_ranks=1)
    assert set(traffic.by_tag().values()) == {0}
    with pytest.raises(ValueError, match="cannot make"):
        step_traffic(TINY, vocab_size=256, num_ranks=8)


def test_averages_cost_less_a_step() -> None:
    seldom = replace(TINY, sync=SyncConfig(every=20, wire="float32"))
    count = num_parameters(TINY, vocab_size=256, phase="compressed")
    assert step_traffic(seldom, vocab_size=256).sync_bytes_per_step == pytest.approx(2 * 2 * count * 4 / 20)
