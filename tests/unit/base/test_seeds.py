"""Is Philox the published generator, and are addressed draws uniform, bounded and separate?"""

import numpy as np
import pytest

from thinwire.base.seeds import StreamKey, draw_below, draw_words, numpy_generator, philox, stream_key

ONES = 0xFFFFFFFF

GOLDEN_KEY = StreamKey(low=0x8FF917B8, high=0xB8F5D207)

# Known answers of Random123's kat_vectors for philox4x32-10: counter, key, result.
KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    words = philox(StreamKey(*key), np.array([counter], np.uint32))
    assert words.dtype == np.uint32
    assert tuple(int(word) for word in words[0]) == expected


def test_philox_treats_every_row_alone() -> None:
    key = stream_key(1, "probe", 0)
    counters = np.random.default_rng(0).integers(0, 2**32, (2, 3, 4), dtype=np.uint32)
    together = philox(key, counters)
    assert together.shape == (2, 3, 4)
    for i in range(2):
        for j in range(3):
            np.testing.assert_array_equal(together[i, j], philox(key, counters[i, j][None])[0])


def test_stream_key_is_the_published_hash_of_its_address() -> None:
    """A changed key would silently change every run; so the value is a literal (BLAKE2b of "thinwire/1/probe/0")."""
    assert stream_key(1, "probe", 0) == GOLDEN_KEY
    assert stream_key(1, "probe") == stream_key(1, "probe", 0)


def test_keys_differ_by_seed_purpose_and_expert() -> None:
    keys = {
        stream_key(seed, purpose, expert)
        for seed in (-1, 0, 1, 11)
        for purpose in ("probe", "batch", "validation")
        for expert in (-1, 0, 1, 11)
    }
    assert len(keys) == 48
    assert all(0 <= word < 2**32 for key in keys for word in key)


def test_draw_words_counts_blocks_and_keeps_the_address() -> None:
    key = stream_key(3, "batch", 2)
    words = draw_words(key, 10, c1=5, c2=6, c3=7)
    counters = np.array([[block, 5, 6, 7] for block in range(3)], np.uint32)
    np.testing.assert_array_equal(words, philox(key, counters).reshape(-1)[:10])
    assert not np.array_equal(words, draw_words(key, 10, c1=6, c2=5, c3=7))


def test_draw_words_is_a_prefix_of_a_longer_draw() -> None:
    key = stream_key(3, "batch")
    np.testing.assert_array_equal(draw_words(key, 7), draw_words(key, 100)[:7])


def test_draw_below_stays_within_each_bound() -> None:
    bounds = np.array([1, 2, 3, 255, 10**6, 2**33, 2**50] * 500, np.int64)
    drawn = draw_below(stream_key(0, "batch"), bounds, c1=1)
    assert drawn.dtype == np.int64
    assert np.all(drawn >= 0)
    assert np.all(drawn < bounds)
    assert np.all(drawn[bounds == 1] == 0)
    assert drawn[bounds == 2**50].max() > 0.98 * 2**50


@pytest.mark.parametrize("bound", [2, 7, 100, 1000])
def test_draw_below_is_uniform(bound: int) -> None:
    num_draws = 200_000
    drawn = draw_below(stream_key(5, "uniform"), np.full(num_draws, bound), c1=9, c2=8)
    counts = np.bincount(drawn, minlength=bound)
    expected = num_draws / bound
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # mean bound - 1, standard deviation sqrt(2 (bound - 1)); five of them on either side
    assert abs(chi_square - (bound - 1)) < 5 * np.sqrt(2 * (bound - 1)) + 5


def test_draw_below_uses_fine_bits() -> None:
    """53 random bits: draws below 2^50 fill the low bits evenly too."""
    drawn = draw_below(stream_key(6, "fine"), np.full(100_000, 2**50))
    for bit in (0, 1, 10, 20, 21, 22, 31, 32, 49):
        share = float(((drawn >> bit) & 1).mean())
        assert abs(share - 0.5) < 0.008  # five standard errors of a fair coin


def test_draw_below_draws_are_not_correlated_in_order() -> None:
    drawn = draw_below(stream_key(6, "order"), np.full(100_000, 2**40)).astype(float)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.016


def test_numpy_generator_repeats_by_address_alone() -> None:
    first = numpy_generator(4, "initial weights").standard_normal(5)
    np.testing.assert_array_equal(first, numpy_generator(4, "initial weights").standard_normal(5))
    assert not np.array_equal(first, numpy_generator(5, "initial weights").standard_normal(5))
    assert not np.array_equal(first, numpy_generator(4, "bootstrap").standard_normal(5))
    assert not np.array_equal(first, numpy_generator(4, "initial weights", 1).standard_normal(5))
