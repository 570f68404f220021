"""Are probes the same bits everywhere, distributed as stated, and different at every address?  (appendix E)"""

import itertools

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.base.seeds import StreamKey, philox, stream_key
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe, weighted_probe_sum
from thinwire.kernels.sign_probe.cases import CASES, ProbeCase
from thinwire.kernels.sign_probe.cpu_impl import _words_of_blocks, perturb
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.vector_ir import LANES

KEY = stream_key(1, "probe", 0)


def gain_mask(shape: ExpertShape) -> np.ndarray:
    mask = np.zeros(shape.num_parameters, bool)
    for slot in shape.slots:
        mask[slot.start : slot.stop] = "norm" in slot.name
    return mask


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_implementations_agree_bit_for_bit(case: ProbeCase) -> None:
    address = ProbeAddress(KEY, case.update, case.accumulation)
    kwargs = {"shape": case.shape, "direction": case.direction}
    reference = sign_probe(address, **kwargs, implementation="reference")
    fused = sign_probe(address, **kwargs, implementation="numba")
    assert reference.dtype == fused.dtype == np.int8
    assert reference.shape == (case.shape.num_parameters,)
    np.testing.assert_array_equal(reference, fused)


def test_the_layout_of_bits_is_the_documented_one() -> None:
    """Written out by hand: coordinate c reads bits 2k and 2k + 1 of word (c % 64) // 16 of block c // 64."""
    shape = ExpertShape(width=3, depth=1, embed_width=2)
    z = sign_probe(ProbeAddress(KEY, 7, 2), shape=shape, direction=5)
    gains = gain_mask(shape)
    for c in range(shape.num_parameters):
        words = philox(KEY, np.array([[c // 64, 5, 7, 2]], np.uint32))[0]
        pair = int(words[c % 64 // 16]) >> (2 * (c % 16)) & 3
        active = 1 if gains[c] else pair & 1
        assert z[c] == active * (-1 if pair & 2 else 1), c


def test_compiled_philox_gives_the_known_answers() -> None:
    """In the first of 16 lanes; the others hold the following blocks."""
    counters, words = np.zeros((4, LANES), np.uint32), np.zeros((4, LANES), np.uint32)
    _words_of_blocks(0, 0, 0, 0, 0, 0, counters, words)
    assert [hex(word) for word in words[:, 0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = 0xFFFFFFFF
    _words_of_blocks(ones, ones, ones, ones, ones, ones, counters, words)
    assert [hex(word) for word in words[:, 0]] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]
    last = philox(StreamKey(ones, ones), np.array([[LANES - 2, ones, ones, ones]], np.uint32))
    np.testing.assert_array_equal(words[:, -1], last[0])


def test_distribution_of_ordinary_weights_and_gains() -> None:
    shape = ExpertShape(width=32)
    gains = gain_mask(shape)
    zs = np.stack([sign_probe(ProbeAddress(KEY, 3), shape=shape, direction=j) for j in range(64)])
    ordinary, of_gains = zs[:, ~gains], zs[:, gains]
    assert set(np.unique(ordinary)) == {-1, 0, 1}
    counts = np.array([(ordinary == value).sum() for value in (0, 1, -1)])
    expected = ordinary.size * np.array([0.5, 0.25, 0.25])
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8  # chi-square, 2 degrees of freedom, p = 0.001
    assert set(np.unique(of_gains)) == {-1, 1}  # never zero
    assert abs(int(of_gains.sum())) < 3.3 * np.sqrt(of_gains.size)


def test_distribution_holds_at_every_bit_position() -> None:
    """A wrong shift would make some of the 64 coordinates of a block constant or dependent."""
    shape = ExpertShape(width=32)
    gains = gain_mask(shape)
    num_blocks = shape.num_parameters // 64
    zs = np.stack([sign_probe(ProbeAddress(KEY, 4), shape=shape, direction=j) for j in range(32)])
    zs = zs[:, : num_blocks * 64].reshape(-1, 64)
    ordinary = np.broadcast_to(~gains[: num_blocks * 64].reshape(-1, 64), (32, num_blocks, 64)).reshape(-1, 64)
    for position in range(64):
        values = zs[ordinary[:, position], position]
        assert abs(float((values != 0).mean()) - 0.5) < 4 * 0.5 / np.sqrt(len(values))
        assert abs(float(values.mean())) < 4 * np.sqrt(0.5 / len(values))


def test_coordinates_and_neighbouring_addresses_are_uncorrelated() -> None:
    """Inner products of 32,928-coordinate probes: standard deviation sqrt(sum q^2), bound of five."""
    shape = ExpertShape(width=32)
    addresses = [
        (stream_key(seed, "probe", expert), direction, update, accumulation)
        for seed, expert, direction, update, accumulation in (
            (1, 0, 0, 1, 0),
            (1, 0, 1, 1, 0),
            (1, 0, 0, 2, 0),
            (1, 0, 0, 1, 1),
            (1, 1, 0, 1, 0),
            (1, -1, 0, 1, 0),
            (2, 0, 0, 1, 0),
            (1, 0, 1, 0, 0),
            (1, 0, 0, 0, 1),
        )
    ]
    zs = [
        sign_probe(ProbeAddress(key, update, accumulation), shape=shape, direction=direction).astype(int)
        for key, direction, update, accumulation in addresses
    ]
    bound = 5 * np.sqrt(32_768 / 4 + 160)
    for first, second in itertools.combinations(zs, 2):
        assert abs(int(first @ second)) < bound
    for shift in (1, 2, 16, 64, 128):
        assert abs(int(zs[0][shift:] @ zs[0][:-shift])) < bound


def test_no_two_tensors_share_a_stream() -> None:
    """Equally shaped tensors of one probe: inner products as small as chance makes them."""
    shape = ExpertShape(width=32, depth=4)
    z = sign_probe(ProbeAddress(KEY, 1), shape=shape, direction=0).astype(int)
    matrices = [z[slot.start : slot.stop] for slot in shape.slots if slot.size == 4096]
    assert len(matrices) == 16
    for first, second in itertools.combinations(matrices, 2):
        assert abs(int(first @ second)) < 5 * np.sqrt(4096 / 4)


def test_every_part_of_an_address_changes_the_probe() -> None:
    shape = ExpertShape(width=4, depth=1, embed_width=4)
    probes = {
        sign_probe(
            ProbeAddress(stream_key(seed, "probe", expert), update, accumulation), shape=shape, direction=direction
        ).tobytes()
        for seed in (0, 1)
        for expert in (-1, 0, 1)
        for update in (0, 1, 2)
        for accumulation in (0, 1, 2)
        for direction in (0, 1, 2)
    }
    assert len(probes) == 2 * 3 * 3 * 3 * 3


def test_perturb_adds_the_probe_rounded_once() -> None:
    shape = ExpertShape(width=7, depth=1, embed_width=5)
    theta = np.random.default_rng(0).standard_normal(shape.num_parameters).astype(np.float32)
    z = sign_probe(ProbeAddress(KEY, 2, 1), shape=shape, direction=3, implementation="reference")
    for step in (np.float32(1e-3), np.float32(-1e-3), np.float32(-2.5e-3)):
        out = np.full_like(theta, np.nan)
        perturb(theta, gain_words(shape), KEY.low, KEY.high, 3, 2, 1, step, out)
        exact = theta.astype(float) + float(step) * z
        np.testing.assert_array_equal(out, exact.astype(np.float32))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weighted_sum_is_the_same_bits_for_every_implementation_and_thread_count(case: ProbeCase) -> None:
    num_directions = min(9, 2**32 - case.direction)
    weights = np.random.default_rng(0).standard_normal(num_directions)
    kwargs = {
        "address": ProbeAddress(KEY, case.update, case.accumulation),
        "shape": case.shape,
        "first_direction": case.direction,
    }
    expected = weighted_probe_sum(weights, **kwargs, implementation="reference")
    assert expected.dtype == np.float64
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(weighted_probe_sum(weights, **kwargs, threads=threads), expected)


def test_weighted_sum_equals_its_definition() -> None:
    shape = ExpertShape(width=5, depth=2, embed_width=3)
    weights = np.random.default_rng(1).standard_normal(20)
    address = ProbeAddress(KEY, 11, 3)
    expected = sum(
        weight * sign_probe(address, shape=shape, direction=4 + j, implementation="reference").astype(float)
        for j, weight in enumerate(weights)
    )
    actual = weighted_probe_sum(weights, address=address, shape=shape, first_direction=4)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-14)


def test_ranges_of_directions_add_up() -> None:
    """Parts are rounded apart, so their sum agrees to the rounding of twenty terms of size one, not bit for bit."""
    shape = ExpertShape(width=8, embed_width=8)
    weights = np.random.default_rng(2).standard_normal(20)
    address = ProbeAddress(KEY, 1)
    whole = weighted_probe_sum(weights, address=address, shape=shape)
    parts = [
        weighted_probe_sum(weights[a:b], address=address, shape=shape, first_direction=a)
        for a, b in ((0, 7), (7, 8), (8, 20))
    ]
    np.testing.assert_allclose(sum(parts), whole, rtol=0, atol=20 * 20 * 2.0**-53)
    assert not np.allclose(parts[0] + parts[2], whole, rtol=0, atol=1e-3)


def test_whole_number_weights_add_up_exactly() -> None:
    """Sums of small integers round nowhere: here ranges must agree bit for bit."""
    shape = ExpertShape(width=8, embed_width=8)
    weights = np.arange(1.0, 14.0)
    address = ProbeAddress(KEY, 1)
    whole = weighted_probe_sum(weights, address=address, shape=shape, threads=2)
    parts = weighted_probe_sum(weights[:5], address=address, shape=shape) + weighted_probe_sum(
        weights[5:], address=address, shape=shape, first_direction=5
    )
    np.testing.assert_array_equal(whole, parts)


def test_a_key_of_high_words_is_used_whole() -> None:
    shape = ExpertShape(width=4, depth=1, embed_width=4)
    probes = {
        sign_probe(ProbeAddress(StreamKey(low, high), 0), shape=shape, direction=0).tobytes()
        for low, high in ((0, 0), (2**31, 0), (0, 2**31), (2**32 - 1, 2**32 - 1))
    }
    assert len(probes) == 4


def test_an_unknown_implementation_is_refused() -> None:
    shape, address = ExpertShape(width=4, embed_width=4), ProbeAddress(KEY, 1)
    with pytest.raises(UserError, match="no implementation 'nubma'"):
        sign_probe(address, shape=shape, direction=0, implementation="nubma")
    with pytest.raises(UserError, match="no implementation 'nubma'"):
        weighted_probe_sum(np.ones(1), address=address, shape=shape, implementation="nubma")


def test_triton_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="need a CUDA GPU"):
        weighted_probe_sum(
            np.ones(1), address=ProbeAddress(KEY, 1), shape=ExpertShape(width=4, embed_width=4), implementation="triton"
        )
