"""A document's split depends on its content and the seed alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.data.splits import ADDRESS_RANGE, content_address, fraction_rule, rank_rule

DOCUMENTS = [f"document {n}".encode() for n in range(20_000)]


def test_fractions_are_met_within_sampling_error() -> None:
    rule = fraction_rule(valid_fraction=0.1, test_fraction=0.02)
    splits = [rule.split(content_address(document, seed=1)) for document in DOCUMENTS]
    for name, fraction in (("valid", 0.1), ("test", 0.02)):
        spread = np.sqrt(20_000 * fraction * (1 - fraction))
        assert abs(splits.count(name) - 20_000 * fraction) < 4 * spread


def test_the_seed_changes_the_split_and_copies_share_it() -> None:
    assert content_address(b"same", seed=3) == content_address(b"same", seed=3)
    assert content_address(b"same", seed=3) != content_address(b"same", seed=4)
    assert content_address(b"same", seed=3) != content_address(b"Same", seed=3)


@pytest.mark.parametrize(
    ("documents", "valid", "test", "expected"),
    [
        (1, 0.01, 0.01, (1, 0, 0)),
        (2, 0.01, 0.01, (2, 0, 0)),
        (3, 0.01, 0.01, (1, 1, 1)),
        (40, 0.01, 0.01, (30, 5, 5)),
        (40, 0.0, 0.01, (35, 0, 5)),
        (1000, 0.01, 0.01, (968, 16, 16)),
        (1900, 0.01, 0.05, (1786, 19, 95)),
        (11, 0.5, 0.45, (1, 5, 5)),
        (0, 0.1, 0.1, (0, 0, 0)),
    ],
)
def test_a_small_corpus_is_split_by_rank(
    documents: int, valid: float, test: float, expected: tuple[int, int, int]
) -> None:
    addresses = [content_address(document, seed=1) for document in DOCUMENTS[:documents]]
    rule = rank_rule(addresses, valid_fraction=valid, test_fraction=test)
    splits = [rule.split(address) for address in addresses]
    assert (splits.count("train"), splits.count("valid"), splits.count("test")) == expected


@given(
    st.lists(st.integers(0, ADDRESS_RANGE - 1), max_size=60),
    st.floats(0, 0.5),
    st.floats(0, 0.49),
)
def test_something_is_left_to_train_on_and_order_does_not_count(
    addresses: list[int], valid: float, test: float
) -> None:
    rule = rank_rule(addresses, valid_fraction=valid, test_fraction=test)
    assert rule == rank_rule(addresses[::-1], valid_fraction=valid, test_fraction=test)
    assert not addresses or "train" in {rule.split(address) for address in addresses}
