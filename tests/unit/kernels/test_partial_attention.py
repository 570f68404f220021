"""Do blocks of keys, merged, give dense attention, and do their backward shares add up to its gradient?"""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.kernels.partial_attention import reference
from thinwire.kernels.partial_attention.api import (
    Gradients,
    Partial,
    choose,
    merge,
    partial_attention,
    partial_attention_backward,
)
from thinwire.kernels.partial_attention.cases import CASES, AttentionCase, AttentionInputs, inputs_for

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
by_implementation = pytest.mark.parametrize("implementation", ["flash", "reference"])


class Dense(NamedTuple):
    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def dense(given: AttentionInputs, *, allowed: Tensor) -> Dense:
    """Softmax over all keys at once in float64, gradients by autograd; allowed [T, S] says who sees whom."""
    q, k, v = (x.double().requires_grad_() for x in given[:3])
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("bgrtw,bgsw->bgrts", q.unflatten(1, (-1, group)), k).flatten(1, 2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~allowed, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    out = torch.einsum("bgrts,bgsw->bgrtw", weights.unflatten(1, (-1, group)), v).flatten(1, 2)
    gradients = torch.autograd.grad(out, (q, k, v), given.grad_out.double())
    return Dense(out.detach(), torch.logsumexp(scores, dim=-1).detach(), *gradients)


def allowed_of(case: AttentionCase) -> Tensor:
    allowed = torch.ones(case.queries, case.keys, dtype=torch.bool)
    return allowed.tril() if case.mask == "causal" else allowed


def assert_near(actual: Tensor, expected: Tensor, *, part: float) -> None:
    """Every entry within ``part`` of the tensor's largest."""
    atol = part * float(expected.abs().max().clamp_min(1.0))
    torch.testing.assert_close(actual.double(), expected, rtol=0.0, atol=atol)


PART = {torch.float64: 1e-13, torch.float32: 3e-6, torch.bfloat16: 2e-2}
"""Of the largest entry: rounding of sums over up to 1,100 keys; bfloat16 rounds the kernel's inner results as well."""
PART_EXTREME = {torch.float64: 1e-11, torch.float32: 3e-4, torch.bfloat16: 4e-2}
"""Scores near 1,000 lose three digits before the softmax."""


@by_case
@by_implementation
@pytest.mark.parametrize("dtype", list(PART), ids=str)
def test_one_block_is_dense_attention(case: AttentionCase, implementation: str, dtype: torch.dtype) -> None:
    given = inputs_for(case, dtype=dtype)
    expected = dense(given, allowed=allowed_of(case))
    part = (PART_EXTREME if case.score_scale > 1 else PART)[dtype]
    partial = partial_attention(*given[:3], mask=case.mask, implementation=implementation)
    assert partial.out.dtype == dtype
    assert partial.lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_near(partial.out, expected.out, part=part)
    assert_near(partial.lse, expected.lse, part=1e-13 if dtype == torch.float64 else 1e-4)
    gradients = partial_attention_backward(
        given.grad_out, *given[:3], out=partial.out, lse=partial.lse, mask=case.mask, implementation=implementation
    )
    for name, gradient in gradients._asdict().items():
        assert gradient.dtype == dtype
        assert_near(gradient, getattr(expected, name), part=part)


class Blocks(NamedTuple):
    partial: Partial
    gradients: Gradients


def over_blocks(given: AttentionInputs, *, cuts: list[int], implementation: str) -> Blocks:
    """A chunk whose own keys come last: the causal local block first, then earlier keys, piece by piece."""
    queries, keys = given.q.shape[2], given.k.shape[2]
    pieces = [(keys - queries, keys, "causal"), *((a, b, "full") for a, b in itertools.pairwise(cuts))]
    merged: Partial | None = None
    for start, stop, mask in pieces:
        block = (given.k[:, :, start:stop], given.v[:, :, start:stop])
        partial = partial_attention(given.q, *block, mask=mask, implementation=implementation)
        merged = partial if merged is None else merge(merged, partial)
    assert merged is not None
    dq, dk, dv = torch.zeros_like(given.q), torch.zeros_like(given.k), torch.zeros_like(given.v)
    for start, stop, mask in pieces:
        block = (given.k[:, :, start:stop], given.v[:, :, start:stop])
        share = partial_attention_backward(
            given.grad_out, given.q, *block, **merged._asdict(), mask=mask, implementation=implementation
        )
        dq += share.dq
        dk[:, :, start:stop] += share.dk
        dv[:, :, start:stop] += share.dv
    return Blocks(merged, Gradients(dq, dk, dv))


SPLIT_CASES = (
    AttentionCase("split", "full", 2, 4, 2, 11, 40, 8),
    AttentionCase("split, extreme", "full", 2, 4, 2, 11, 40, 8, score_scale=300.0),
)


@pytest.mark.parametrize("case", SPLIT_CASES, ids=lambda case: case.name)
@by_implementation
@pytest.mark.parametrize("cuts", [[0, 29], [0, 1, 29], [0, 14, 15, 29], [0, 3, 5, 8, 13, 21, 29]], ids=str)
@pytest.mark.parametrize(("dtype", "part"), [(torch.float64, 1e-11), (torch.float32, 3e-6)], ids=str)
def test_any_split_of_the_keys_gives_the_same(
    case: AttentionCase, implementation: str, cuts: list[int], dtype: torch.dtype, part: float
) -> None:
    given = inputs_for(case, dtype=dtype)
    allowed = torch.ones(11, 40, dtype=torch.bool).tril(29)
    expected = dense(given, allowed=allowed)
    merged, gradients = over_blocks(given, cuts=cuts, implementation=implementation)
    part = part * (100 if case.score_scale > 1 else 1)
    assert_near(merged.out, expected.out, part=part)
    assert_near(merged.lse, expected.lse, part=1e-6)
    for name, gradient in gradients._asdict().items():
        assert_near(gradient, getattr(expected, name), part=part)


@by_implementation
def test_a_block_of_a_long_row_takes_only_its_share(implementation: str) -> None:
    """With the block's own out and lse the same call would give another gradient: the global ones matter."""
    given = inputs_for(SPLIT_CASES[0], dtype=torch.float64)
    block = (given.k[:, :, :11], given.v[:, :, :11])
    local = partial_attention(given.q, *block, mask="full", implementation=implementation)
    arguments = {"mask": "full", "implementation": implementation}
    alone = partial_attention_backward(given.grad_out, given.q, *block, **local._asdict(), **arguments)
    whole = partial_attention(given.q, given.k, given.v, **arguments)
    share = partial_attention_backward(given.grad_out, given.q, *block, **whole._asdict(), **arguments)
    assert float((alone.dv - share.dv).abs().max()) > 0.1


@by_implementation
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_layout_in_memory_changes_nothing(implementation: str, mask: str) -> None:
    """Projections give [B, T, H, w]; expanded heads have stride 0; autograd hands over transposed gradients."""
    given = inputs_for(AttentionCase("layout", mask, 2, 4, 2, 9, 9, 8), dtype=torch.float64)
    plain = partial_attention(*given[:3], mask=mask, implementation=implementation)
    arguments = {**plain._asdict(), "mask": mask, "implementation": implementation}
    expected = partial_attention_backward(given.grad_out, *given[:3], **arguments)
    by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    by_width = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in given]
    for q, k, v, grad_out in (by_token, by_width):
        partial = partial_attention(q, k, v, mask=mask, implementation=implementation)
        torch.testing.assert_close(partial, plain, rtol=1e-14, atol=1e-14)
        gradients = partial_attention_backward(grad_out, q, k, v, **arguments)
        torch.testing.assert_close(gradients, expected, rtol=1e-13, atol=1e-13)
    k, v = (x[:, :1].expand(-1, 4, -1, -1) for x in given[1:3])
    partial = partial_attention(given.q, k, v, mask=mask, implementation=implementation)
    copied = partial_attention(given.q, k.contiguous(), v.contiguous(), mask=mask, implementation=implementation)
    torch.testing.assert_close(partial, copied, rtol=1e-14, atol=1e-14)


def test_reference_in_pieces_of_rows_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[4]
    given = inputs_for(case, dtype=torch.float64)
    whole = over_blocks(given, cuts=[0], implementation="reference")
    monkeypatch.setattr(reference, "SCORES_PER_PIECE_BYTES", 5 * 2 * 4 * 17 * 8)  # five rows of the seventeen
    pieces = over_blocks(given, cuts=[0], implementation="reference")
    torch.testing.assert_close(pieces, whole, rtol=1e-13, atol=1e-13)


def test_merging_nothing_changes_no_bit() -> None:
    given = inputs_for(CASES[5], dtype=torch.float32)
    some = partial_attention(*given[:3], mask="full")
    nothing = Partial(torch.zeros_like(some.out), torch.full_like(some.lse, -math.inf))
    for merged in (merge(some, nothing), merge(nothing, some)):
        assert torch.equal(merged.out, some.out)
        assert torch.equal(merged.lse, some.lse)
    both = merge(nothing, nothing)
    assert torch.equal(both.out, nothing.out)
    assert torch.equal(both.lse, nothing.lse)


def test_merge_keeps_lse_precise_with_half_precision_outputs() -> None:
    given = inputs_for(SPLIT_CASES[0], dtype=torch.bfloat16)
    merged = over_blocks(given, cuts=[0, 10, 29], implementation="flash").partial
    assert merged.out.dtype == torch.bfloat16
    assert merged.lse.dtype == torch.float32
    expected = dense(given, allowed=torch.ones(11, 40, dtype=torch.bool).tril(29))
    assert_near(merged.lse, expected.lse, part=1e-4)
    assert_near(merged.out, expected.out, part=2e-2)


@by_implementation
def test_a_causal_query_ignores_later_keys(implementation: str) -> None:
    given = inputs_for(CASES[4], dtype=torch.float64)
    before = partial_attention(*given[:3], mask="causal", implementation=implementation)
    later = given.k.clone()
    later[:, :, 9:] += 100.0
    after = partial_attention(given.q, later, given.v, mask="causal", implementation=implementation)
    assert torch.equal(after.out[:, :, :9], before.out[:, :, :9])
    assert not torch.equal(after.out[:, :, 9:], before.out[:, :, 9:])


def test_named_implementations_never_fall_back() -> None:
    elsewhere = torch.empty(1, 1, 1, 4, device="meta")
    assert choose("auto", like=torch.empty(1)) == "flash"
    assert choose("auto", like=elsewhere) == "reference"
    with pytest.raises(UserError, match="flash kernels compute in floating point on the CPU"):
        choose("flash", like=elsewhere)
    with pytest.raises(UserError, match="no implementation 'flesh'"):
        choose("flesh", like=torch.empty(1))


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k = torch.zeros(1, 3, 4, 8), torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 key heads"):
        partial_attention(q, k, k, mask="full")
    with pytest.raises(ValueError, match="equally many queries and keys, not 4 and 3"):
        partial_attention(q, q[:, :, :3], q[:, :, :3], mask="causal")
    with pytest.raises(ValueError, match="without queries or keys"):
        partial_attention(q, q[:, :, :0], q[:, :, :0], mask="full")
