"""Are the baselines the entropies they claim to be, on the models' own targets?"""

import lzma
import math

import numpy as np
import pytest

from thinwire.soma.baselines import bigram_loss, unigram_loss, xz_loss


def bigram_counts(content: np.ndarray) -> np.ndarray:
    counts = np.zeros((256, 256), np.uint64)
    np.add.at(counts, (content[:-1], content[1:]), 1)
    return counts


def test_without_counts_every_byte_costs_log_256() -> None:
    windows = np.arange(40, dtype=np.uint8).reshape(2, 20)
    nothing = np.zeros((256, 256), np.uint64)
    assert unigram_loss(nothing, windows, prefix_bytes=5) == pytest.approx(math.log(256), abs=1e-12)
    assert bigram_loss(nothing, windows, prefix_bytes=5) == pytest.approx(math.log(256), abs=1e-12)


def test_targets_are_byte_indices_257_to_1024() -> None:
    counts = np.zeros((256, 256), np.uint64)
    counts[:, 1] = 1000
    windows = np.zeros((1, 1025), np.uint8)
    windows[0, 257:] = 1
    common = -math.log((256_000 + 1) / (256_000 + 256))
    rare = -math.log(1 / (256_000 + 256))
    assert unigram_loss(counts, windows, prefix_bytes=256) == pytest.approx(common, abs=1e-12)
    windows[0, 257] = 0
    assert unigram_loss(counts, windows, prefix_bytes=256) == pytest.approx((767 * common + rare) / 768, abs=1e-12)
    windows[0, 1024] = 0
    assert unigram_loss(counts, windows, prefix_bytes=256) == pytest.approx((766 * common + 2 * rare) / 768, abs=1e-12)
    windows[0, 256] = 1  # the last byte of context is not a target
    assert unigram_loss(counts, windows, prefix_bytes=256) == pytest.approx((766 * common + 2 * rare) / 768, abs=1e-12)


def test_bigram_reads_the_row_of_the_previous_byte() -> None:
    counts = np.zeros((256, 256), np.uint64)
    counts[65, 66] = 744
    windows = np.array([[0, 0, 65, 66, 66]], np.uint8)
    expected = -(math.log(745 / 1000) + math.log(1 / 256)) / 2
    assert bigram_loss(counts, windows, prefix_bytes=2) == pytest.approx(expected, abs=1e-12)


def test_losses_approach_the_entropies_of_a_markov_chain() -> None:
    generator = np.random.default_rng(0)
    flips = generator.random(200_000) < 0.1
    chain = (np.cumsum(flips) % 2).astype(np.uint8)
    windows = chain[:102_500].reshape(100, 1025)
    counts = bigram_counts(chain)
    conditional = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    assert unigram_loss(counts, windows, prefix_bytes=256) == pytest.approx(math.log(2), abs=0.01)
    assert bigram_loss(counts, windows, prefix_bytes=256) == pytest.approx(conditional, abs=0.01)


def test_xz_of_noise_and_of_repeats() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (50, 1025), dtype=np.uint8)
    apart = np.arange(50, dtype=np.int64)
    assert math.log(256) < xz_loss(noise, documents=apart) < 1.01 * math.log(256)
    assert xz_loss(np.zeros((50, 1025), np.uint8), documents=apart) < 0.03
    expected = len(lzma.compress(noise.tobytes(), preset=9 | lzma.PRESET_EXTREME)) * math.log(256) / noise.size
    assert xz_loss(noise, documents=apart) == pytest.approx(expected, rel=1e-12)


def test_xz_counts_overlapping_bytes_once() -> None:
    text = np.random.default_rng(1).integers(0, 64, 10 * 768 + 257, dtype=np.uint8)
    overlapping = np.lib.stride_tricks.sliding_window_view(text, 1025)[::768]
    documents = np.zeros(len(overlapping), np.int64)
    expected = len(lzma.compress(text.tobytes(), preset=9 | lzma.PRESET_EXTREME)) * math.log(256) / text.size
    assert xz_loss(overlapping, documents=documents, stride=768) == pytest.approx(expected, rel=1e-12)
    assert xz_loss(overlapping, documents=documents) < 0.9 * expected  # the repeats would have been free
    two = np.concatenate([overlapping, overlapping[:3]])
    owners = np.concatenate([documents, documents[:3] + 1])
    length = text.size + 2 * 768 + 1025
    content = text.tobytes() + text[: 2 * 768 + 1025].tobytes()
    assert len(content) == length
    expected = len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)) * math.log(256) / length
    assert xz_loss(two, documents=owners, stride=768) == pytest.approx(expected, rel=1e-12)
