"""Is the loss, and every gradient, on several ranks that of one process?

One process is a dense reference by ordinary autograd (``dense_reference.py``), not the code under test on one rank.
The ranks' gradients are summed, as the trainer does it.
"""

import functools
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from attention_cases import CASES, Case, Outcome, largest_difference, make_replica, run_dense, run_rank, subspace

from gloo_ranks import RankPool, RanksFailedError
from thinwire.comm.group import Group, alone
from thinwire.subspaces import attention
from thinwire.subspaces.config import CodecConfig, WireType
from thinwire.subspaces.exchange import Exchange

RANKS = (1, 2, 3, 4)
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@functools.cache
def dense(case: Case) -> Outcome:
    return run_dense(case)


def with_wire(case: Case, wire: WireType, *, dtype: torch.dtype) -> Case:
    return replace(case, dtype=dtype, codec=replace(case.codec, wire=wire))


@by_name
def test_gradients_on_ranks_equal_one_process(case: Case, outcomes) -> None:
    for ranks in RANKS:
        found = outcomes.of(case, ranks=ranks)
        assert largest_difference(found, dense(case), of="each") < 1e-10
        torch.testing.assert_close(found.logits, dense(case).logits, rtol=0, atol=1e-10)


@by_name
def test_gradients_in_single_precision(case: Case, outcomes) -> None:
    single = with_wire(case, "float32", dtype=torch.float32)
    for ranks in RANKS:
        assert largest_difference(outcomes.of(single, ranks=ranks), dense(single), of="all") < 1e-5


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_a_wire_of_half_precision_changes_gradients_by_its_rounding(case: Case, outcomes) -> None:
    """Forward all ranks round alike; backward a gradient that travels is rounded, to 8 bits."""
    half = with_wire(case, "bfloat16", dtype=torch.float64)
    for ranks in RANKS:
        found = outcomes.of(half, ranks=ranks)
        torch.testing.assert_close(found.logits, dense(half).logits, rtol=0, atol=1e-5)
        assert largest_difference(found, dense(half), of="all") < 1e-2


def test_thetas_are_felt() -> None:
    """Or equality of the heads' gradients would say little."""
    for case in CASES:
        if case.codec.theta_source in ("chunk", "previous_chunk") and case.codec.kind == "subspace":
            compressed = [layer for layer in range(2) if layer not in case.codec.uncompressed_layers]
            found = dense(case).gradients
            heads = {name: g for name, g in found.items() if any(f"heads.layers.{n}." in name for n in compressed)}
            assert heads
            assert all(float(gradient.abs().max()) > 1e-6 for gradient in heads.values())


def test_runs_are_repeated_to_the_bit(pool: RankPool) -> None:
    for case in (CASES[0], *(case for case in CASES if case.streams > 1)):
        case = with_wire(case, "bfloat16", dtype=torch.float32)
        one, other = (pool.run(run_rank, case, ranks=3) for _ in range(2))
        for first, second in zip(one, other, strict=True):
            assert first.loss == second.loss
            assert all(torch.equal(first.gradients[name], second.gradients[name]) for name in first.gradients)


def test_nothing_of_a_pass_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Exchange]] = []

    class Watched(Exchange):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(weakref.ref(self))

    monkeypatch.setattr(attention, "Exchange", Watched)
    case = Case("two streams", subspace(), streams=2)
    gc.disable()
    try:
        run_rank(alone(), case)
        assert len(made) == 4
        assert all(reference() is None for reference in made)
    finally:
        gc.enable()


def late_failure(group: Group, case: Case) -> None:
    run_rank(group, case)
    raise ValueError("on purpose")


def test_a_failed_rank_leaves_the_pool_usable(pool: RankPool) -> None:
    with pytest.raises(RanksFailedError, match="on purpose"):
        pool.run(late_failure, CASES[0], ranks=2)
    assert len(pool.run(run_rank, CASES[0], ranks=2)) == 2


def test_mixed_precision_stays_close(outcomes) -> None:
    """bfloat16 products over two ranks: the loss and the direction of the gradient are those of single precision."""
    for case in (CASES[0], CASES[11], replace(CASES[11], codec=subspace(theta_source="chunk", generators=2))):
        exact = dense(case)
        mixed = replace(with_wire(case, "bfloat16", dtype=torch.float32), mixed=True)
        found = outcomes.of(mixed, ranks=2)
        assert abs(found.loss - exact.loss) < 0.01 * exact.loss
        one, other = (
            torch.cat([o.gradients[name].double().flatten() for name in exact.gradients]) for o in (found, exact)
        )
        assert torch.cosine_similarity(one, other, dim=0) > 0.99
        assert largest_difference(found, outcomes.of(mixed, ranks=1), of="all") < 0.02
        assert all(gradient.dtype == torch.float32 for gradient in found.gradients.values())


def test_weights_of_cases_are_equal_in_every_process() -> None:
    one, other = (make_replica(Case("again", CodecConfig(kind="subspace"))).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
