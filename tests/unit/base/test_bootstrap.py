"""Does the document bootstrap cover the truth as often as it says, and know its edges?"""

import numpy as np
import pytest

from thinwire.base import bootstrap
from thinwire.base.bootstrap import interval


def simulated(generator: np.random.Generator, *, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents of one to four windows; windows of a document share most of their loss. The true mean is 2."""
    sizes = generator.integers(1, 5, num_groups)
    groups = np.repeat(np.arange(num_groups), sizes)
    document_part = generator.normal(0.0, 0.5, num_groups)[groups]
    return 2.0 + document_part + generator.normal(0.0, 0.2, len(groups)), groups.astype(np.int64)


def test_covers_the_true_mean_about_95_times_in_100() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for repeat in range(400):
        losses, groups = simulated(generator, num_groups=80)
        low, high = interval(losses, groups, draws=500, seed=repeat)
        covered += low <= 2.0 <= high
    # binomial(400, 0.95) is in 366..391 with probability 0.998; intervals from only 80 documents are a bit short
    assert 362 <= covered <= 391


def test_ignoring_documents_would_be_too_sure() -> None:
    losses, groups = simulated(np.random.default_rng(1), num_groups=200)
    whole = interval(losses, groups, draws=2000, seed=0)
    single = interval(losses, np.arange(len(losses)), draws=2000, seed=0)
    assert (whole.high - whole.low) > 1.3 * (single.high - single.low)


def test_width_equals_the_ratio_estimators_standard_error() -> None:
    losses, groups = simulated(np.random.default_rng(2), num_groups=500)
    low, high = interval(losses, groups, draws=4000, seed=3)
    sums, sizes = np.bincount(groups, weights=losses), np.bincount(groups)
    residuals = sums - losses.mean() * sizes
    standard_error = np.sqrt(np.sum(residuals**2)) / sizes.sum()
    assert (high - low) == pytest.approx(2 * 1.96 * standard_error, rel=0.08)
    assert low < losses.mean() < high


def test_one_group_is_a_point() -> None:
    losses = np.array([1.0, 2.0, 6.0])
    assert interval(losses, np.array([7, 7, 7]), draws=100, seed=0) == pytest.approx((3.0, 3.0), abs=1e-12)


def test_equal_losses_are_a_point() -> None:
    assert interval(np.full(9, 1.5), np.arange(9), draws=100, seed=0) == pytest.approx((1.5, 1.5), abs=1e-12)


def test_names_and_order_of_groups_do_not_matter_but_the_seed_does() -> None:
    losses, groups = simulated(np.random.default_rng(4), num_groups=30)
    first = interval(losses, groups, draws=300, seed=1)
    assert interval(losses, groups * 1000 - 5, draws=300, seed=1) == first
    order = np.random.default_rng(5).permutation(len(losses))
    assert interval(losses[order], groups[order], draws=300, seed=1) == pytest.approx(first, abs=1e-12)
    assert interval(losses, groups, draws=300, seed=2) != first


def test_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, groups = simulated(np.random.default_rng(6), num_groups=40)
    whole = interval(losses, groups, draws=257, seed=1)
    monkeypatch.setattr(bootstrap, "CHUNK_NUMBERS", 40 * 10)
    assert interval(losses, groups, draws=257, seed=1) == pytest.approx(whole, abs=1e-12)
