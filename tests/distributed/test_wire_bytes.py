"""Do the bytes that ranks count equal the closed form, forward and backward?"""

from dataclasses import replace

import pytest
import torch
from attention_cases import CASES, VOCABULARY, Case
from test_gradient_equality import with_wire

from thinwire.subspaces.traffic import step_traffic

TAGS = ("kv-forward", "kv-backward", "theta")


def expected(case: Case, *, ranks: int) -> dict[str, int]:
    found = step_traffic(
        case.config, vocab_size=VOCABULARY, num_ranks=ranks, phase=case.phase, shift=case.shift
    ).by_tag()
    return {tag: found[tag] for tag in TAGS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_counted_bytes_equal_the_formula(case: Case, outcomes) -> None:
    for ranks in (1, 2, 3, 4):
        sent = outcomes.of(case, ranks=ranks).sent
        assert {tag: sent.get(tag, 0) for tag in TAGS} == expected(case, ranks=ranks)
        assert set(sent) <= set(TAGS)


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_half_precision_on_the_wire(case: Case, outcomes) -> None:
    half = with_wire(case, "bfloat16", dtype=torch.float64)
    sent = outcomes.of(half, ranks=4).sent
    assert {tag: sent.get(tag, 0) for tag in TAGS} == expected(half, ranks=4)


def test_mixed_precision_sends_the_same_bytes(outcomes) -> None:
    case = with_wire(CASES[11], "bfloat16", dtype=torch.float32)
    mixed = replace(case, mixed=True)
    assert outcomes.of(mixed, ranks=2).sent == expected(case, ranks=2)


def test_one_sum_by_hand(outcomes) -> None:
    """Four chunks of 7, 7, 7 and 8 tokens, a rank each: three, two, one and no readers; K and V of 12 FP64 numbers."""
    case = Case("by hand", order="contiguous", chunks=4)
    assert [case.layout(4).length(chunk) for chunk in range(4)] == [7, 7, 7, 8]
    layers, number = 2, 8
    bytes_one_way = layers * 2 * 12 * number * (7 * 3 + 7 * 2 + 7 * 1)
    assert outcomes.of(case, ranks=4).sent == {"kv-forward": bytes_one_way, "kv-backward": bytes_one_way}
