"""Do inference kernels give each window its own expert's log-probabilities, and steps equal whole windows?  (Eq. 1)"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.kernels.expert_losses import reference as expert_reference
from thinwire.kernels.expert_losses.cases import CASES, LossCase, inputs_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores import cpu_impl
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores
from thinwire.kernels.routed_scores.resident import ResidentExperts
from thinwire.kernels.routed_scores.writing import Continuation, continue_texts, draw_byte, read_text

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
NUM_EXPERTS = 3


class Inputs(NamedTuple):
    """float64 experts [N, M] and decoders [N, 256, d_E], all different; uint8 windows; int64 experts [n, 2]."""

    thetas: Tensor
    decoders: Tensor
    windows: Tensor
    experts: Tensor


def inputs(case: LossCase) -> Inputs:
    theta, decoder, windows = inputs_for(case)
    generator = np.random.default_rng(7)
    scales = 1 + 0.2 * generator.standard_normal((NUM_EXPERTS, 1))
    thetas = (theta * scales).astype(np.float32).astype(float)
    decoders = np.stack([decoder, 1.25 * decoder, decoder[::-1]]).astype(np.float32).astype(float)
    experts = np.stack([generator.permutation(NUM_EXPERTS)[:2] for _ in windows])
    return Inputs(*(torch.from_numpy(array) for array in (thetas, decoders, windows, experts)))


def tolerance(case: LossCase) -> dict[str, float]:
    """Log-probabilities near -6: a float32 logit's rounding; extreme ones reach -100s and pass saturated gates."""
    return {"rtol": 2e-6, "atol": 2e-3 if case.weights == "extreme" else 5e-6}


@by_name
@pytest.mark.parametrize("decoder_kind", ["shared", "per expert"])
def test_scores_match_float64(case: LossCase, decoder_kind: str) -> None:
    given = inputs(case)
    decoder = given.decoders[0] if decoder_kind == "shared" else given.decoders
    arguments = {"shape": case.shape, "windows": given.windows, "experts": given.experts, "first_target": 0}
    exact = routed_scores(given.thetas, decoder=decoder, **arguments)
    fused = routed_scores(given.thetas.float(), decoder=decoder.float(), **arguments, implementation="numba")
    assert fused.dtype == torch.float64
    assert fused.shape == (case.batch, 2, case.input_bytes)
    torch.testing.assert_close(fused, exact, **tolerance(case))
    for row in {0, case.batch // 2, case.batch - 1}:  # the definition, one window and expert at a time
        for slot, expert in enumerate(given.experts[row].tolist()):
            one = decoder if decoder_kind == "shared" else decoder[expert]
            log_p = expert_reference.log_probabilities(
                given.thetas[expert][None], shape=case.shape, decoder=one, windows=given.windows[row : row + 1]
            )
            torch.testing.assert_close(exact[row, slot], log_p[0, 0], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("implementation", ["numba", "reference"])
@pytest.mark.parametrize("first_target", [1, 5, 11])
@pytest.mark.parametrize("times", [1, 7])
def test_first_target_drops_exactly_the_earlier_ones(implementation: str, first_target: int, times: int) -> None:
    """Few windows of an expert, and more than fill the lanes."""
    given = inputs(CASES[1])
    arguments = {
        "shape": CASES[1].shape,
        "decoder": given.decoders.float(),
        "windows": given.windows.repeat(times, 1),
        "experts": given.experts.repeat(times, 1),
        "implementation": implementation,
    }
    whole = routed_scores(given.thetas.float(), first_target=0, **arguments)
    part = routed_scores(given.thetas.float(), first_target=first_target, **arguments)
    assert part.shape == (5 * times, 2, 12 - first_target)
    assert torch.equal(part, whole[:, :, first_target:])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 65, 131])
def test_odd_numbers_of_windows_and_threads_change_no_bit(count: int) -> None:
    """16 windows fill the lanes: counts on either side of that."""
    case = CASES[3]
    given = inputs(case)
    generator = np.random.default_rng(count)
    windows = torch.from_numpy(generator.integers(0, 256, (count, 5), dtype=np.uint8))
    experts = torch.from_numpy(generator.integers(0, 2, (count, 1)))  # expert 2 is idle
    arguments = {"shape": case.shape, "decoder": given.decoders.float(), "first_target": 1, "implementation": "numba"}
    thetas = given.thetas.float()
    one = routed_scores(thetas, windows=windows, experts=experts, **arguments)
    assert one.shape == (count, 1, 3)
    for threads in (2, 3):
        assert torch.equal(routed_scores(thetas, windows=windows, experts=experts, **arguments, threads=threads), one)
    for row in {0, count // 2, count - 1}:
        alone = routed_scores(thetas, windows=windows[row : row + 1], experts=experts[row : row + 1], **arguments)
        assert torch.equal(alone[0], one[row])


def test_an_expert_chosen_twice_fills_both_slots() -> None:
    given = inputs(CASES[1])
    experts = torch.tensor([[0, 0], [1, 2], [2, 1], [2, 2], [0, 1]])
    arguments = {"shape": CASES[1].shape, "decoder": given.decoders.float(), "windows": given.windows}
    for implementation in ("numba", "reference"):
        scores = routed_scores(
            given.thetas.float(), experts=experts, first_target=0, implementation=implementation, **arguments
        )
        assert torch.equal(scores[0, 0], scores[0, 1])
        assert torch.equal(scores[3, 0], scores[3, 1])
        assert not torch.equal(scores[1, 0], scores[1, 1])


def test_probabilities_of_all_next_bytes_sum_to_one() -> None:
    case = CASES[1]
    given = inputs(case)
    windows = given.windows[:1].repeat(256, 1)
    windows[:, -1] = torch.arange(256, dtype=torch.uint8)
    scores = routed_scores(
        given.thetas.float(),
        shape=case.shape,
        decoder=given.decoders[0].float(),
        windows=windows,
        experts=torch.zeros(256, 1, dtype=torch.int64),
        first_target=case.input_bytes - 1,
        implementation="numba",
    )
    assert float(scores.exp().sum()) == pytest.approx(1.0, abs=2e-6)


@by_name
def test_decoder_inputs_match_float64(case: LossCase) -> None:
    given = inputs(case)
    arguments = {"shape": case.shape, "windows": given.windows}
    exact = decoder_inputs(given.thetas[0], decoder=given.decoders[0], **arguments)
    fused = decoder_inputs(
        given.thetas[0].float(), decoder=given.decoders[0].float(), implementation="numba", **arguments
    )
    assert fused.dtype == torch.float32
    assert fused.shape == (case.batch, case.input_bytes, case.shape.embed_width)
    atol = 1e-3 if case.weights == "extreme" else 5e-6
    torch.testing.assert_close(fused.double(), exact, rtol=2e-6, atol=atol)
    threaded = decoder_inputs(
        given.thetas[0].float(), decoder=given.decoders[0].float(), implementation="numba", threads=3, **arguments
    )
    assert torch.equal(threaded, fused)


@pytest.mark.parametrize("count", range(1, 21))
def test_windows_in_the_lanes_and_beside_them_get_the_same_bits(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 to 20 requests of one expert, read as lanes, as streams, and in the mix that is chosen."""
    given = inputs(CASES[2])
    windows = torch.from_numpy(np.random.default_rng(count).integers(0, 256, (count, 8), dtype=np.uint8))
    experts = torch.full((count, 1), 1)
    arguments = {"shape": CASES[2].shape, "decoder": given.decoders.float(), "windows": windows, "experts": experts}

    def scores() -> Tensor:
        return routed_scores(given.thetas.float(), first_target=2, implementation="numba", **arguments)

    chosen = scores()
    for lanes_from in (1, 17):  # always the lanes, never the lanes
        monkeypatch.setattr(cpu_impl, "LANES_FROM", lanes_from)
        assert torch.equal(scores(), chosen)


WIDTHS = (1, 3, 7, 16, 31, 32, 33, 48)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("embed_width", [1, 20, 32])
def test_every_width_gets_the_same_bits_both_ways(
    width: int, embed_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = LossCase(f"width {width}, {embed_width}", ExpertShape(width=width, embed_width=embed_width), 7, 6, 1)
    given = inputs(case)
    arguments = {"shape": case.shape, "windows": given.windows, "experts": given.experts, "first_target": 0}
    decoder = given.decoders[0]
    streams = routed_scores(given.thetas.float(), decoder=decoder.float(), implementation="numba", **arguments)
    monkeypatch.setattr(cpu_impl, "LANES_FROM", 1)
    lanes = routed_scores(given.thetas.float(), decoder=decoder.float(), implementation="numba", **arguments)
    assert torch.equal(streams, lanes)
    torch.testing.assert_close(streams, routed_scores(given.thetas, decoder=decoder, **arguments), **tolerance(case))


def test_all_requests_may_go_to_one_expert_and_none_may_come() -> None:
    case = CASES[1]
    given = inputs(case)
    arguments = {"shape": case.shape, "decoder": given.decoders, "first_target": 0}
    experts = torch.full((5, 2), 2)
    exact = routed_scores(given.thetas, windows=given.windows, experts=experts, **arguments)
    arguments["decoder"] = given.decoders.float()
    fused = routed_scores(given.thetas.float(), windows=given.windows, experts=experts, **arguments)
    torch.testing.assert_close(fused, exact, **tolerance(case))
    none = routed_scores(given.thetas.float(), windows=given.windows[:0], experts=experts[:0], **arguments)
    assert none.shape == (0, 2, case.input_bytes)


def test_few_requests_for_each_of_many_experts() -> None:
    """As with 256 experts: one to four requests an expert; every order and company gives the same bits."""
    case = LossCase("many experts", ExpertShape(width=16), 40, 20, 1)
    theta, decoder, windows = inputs_for(case)
    generator = np.random.default_rng(3)
    thetas = torch.from_numpy((theta * (1 + 0.2 * generator.standard_normal((64, 1)))).astype(np.float32))
    experts = torch.from_numpy(np.stack([generator.permutation(64)[:4] for _ in windows]))
    shown = torch.from_numpy(windows)
    arguments = {"shape": case.shape, "first_target": 0}
    exact = routed_scores(
        thetas.double(), decoder=torch.from_numpy(decoder), windows=shown, experts=experts, **arguments
    )
    arguments["decoder"] = torch.from_numpy(decoder).float()
    fused = routed_scores(thetas, windows=shown, experts=experts, threads=2, **arguments)
    torch.testing.assert_close(fused, exact, **tolerance(case))
    order = torch.from_numpy(generator.permutation(40)[:23])
    some = routed_scores(thetas, windows=shown[order], experts=experts[order], **arguments)
    assert torch.equal(some, fused[order])


def resident(case: LossCase, *, per_expert: bool = False) -> ResidentExperts:
    given = inputs(case)
    decoder = given.decoders if per_expert else given.decoders[0]
    return ResidentExperts(given.thetas.float().numpy(), shape=case.shape, decoder=decoder.float().numpy())


def test_resident_experts_are_packed_once_and_when_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[1]
    given, model = inputs(case), resident(case, per_expert=True)
    assert model.num_bytes == model.decoders.nbytes
    arguments = {"shape": case.shape, "decoder": given.decoders.float(), "windows": given.windows, "first_target": 0}
    experts = torch.tensor([[0, 2]] * 5)
    first = routed_scores(given.thetas.float(), experts=experts, resident=model, threads=2, **arguments)
    assert torch.equal(first, routed_scores(given.thetas.float(), experts=experts, **arguments))
    assert not model.packed[1].any()
    two = model.packed[[0, 2]].nbytes + model.tables[[0, 2]].nbytes
    assert model.num_bytes == model.decoders.nbytes + two

    def never(*_: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr("thinwire.kernels.routed_scores.resident.pack_weights", never)
    assert torch.equal(routed_scores(given.thetas.float(), experts=experts, resident=model, **arguments), first)


@pytest.mark.parametrize("case", [case for case in CASES if case.input_bytes > 8], ids=lambda case: case.name)
def test_reading_a_text_equals_scoring_the_window(case: LossCase) -> None:
    given, model = inputs(case), resident(case)
    window = given.windows[0]
    whole = routed_scores(
        given.thetas[:1].float(),
        shape=case.shape,
        decoder=given.decoders[0].float(),
        windows=window[None],
        experts=torch.zeros(1, 1, dtype=torch.int64),
        first_target=0,
        implementation="numba",
    )[0, 0]
    for t in range(case.input_bytes):
        probability = read_text(model, [0], window[: t + 1].numpy().tobytes())[0].probability
        assert probability.shape == (256,)
        assert float(probability.sum(dtype=np.float64)) == pytest.approx(1.0, abs=2e-6)
        # float32 probabilities of float32 differences of logits; below exp(-87) they are nothing
        expected, rounding = float(np.exp(float(whole[t]))), 2e-6 + 7.5e-8 * abs(float(whole[t]))
        assert probability[int(window[t + 1])] == pytest.approx(expected, rel=rounding, abs=1e-37)


def test_an_empty_text_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="no byte"):
        read_text(resident(CASES[1]), [0], b"")


@pytest.mark.parametrize("decoder_kind", ["shared", "per expert"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_texts_continued_together_are_what_each_is_alone(count: int, temperature: float, decoder_kind: str) -> None:
    """And what reading every byte anew, mixing and drawing gives."""
    case = CASES[1]
    model = resident(case, per_expert=decoder_kind == "per expert")
    generator, experts = np.random.default_rng(5), [0, 2]
    prompts = [generator.integers(0, 256, 3 + row, dtype=np.uint8).tobytes() for row in range(count)]
    uniforms, weights = generator.random((count, 6)), np.array([0.75, 0.25])
    texts = [
        Continuation(read_text(model, experts, prompt), weights, row)
        for prompt, row in zip(prompts, uniforms, strict=True)
    ]
    together = continue_texts(model, experts=experts, texts=texts, temperature=temperature)
    for prompt, text, row, written in zip(prompts, texts, uniforms, together, strict=True):
        (alone,) = continue_texts(model, experts=experts, texts=[text], temperature=temperature)
        assert alone.text == written.text
        so_far = prompt
        for uniform in row:
            readings = read_text(model, experts, so_far)
            mixture = 0.75 * readings[0].probability.astype(float) + 0.25 * readings[1].probability.astype(float)
            so_far += bytes([draw_byte(mixture, temperature, uniform, np.empty(256))])
        assert so_far == prompt + written.text
        for expert, reading in zip(experts, written.readings, strict=True):
            (again,) = read_text(model, [expert], so_far)
            np.testing.assert_array_equal(reading.state, again.state)
            np.testing.assert_array_equal(reading.probability, again.probability)


def test_a_continuation_in_two_parts_equals_one() -> None:
    model = resident(CASES[1])
    uniforms, weights = np.random.default_rng(6).random(20), np.ones(1)
    start = Continuation(read_text(model, [1], b"ab"), weights, uniforms)
    (whole,) = continue_texts(model, experts=[1], texts=[start], temperature=1.0)
    (first,) = continue_texts(model, experts=[1], texts=[start._replace(uniforms=uniforms[:7])], temperature=1.0)
    rest = Continuation(first.readings, weights, uniforms[7:])
    (second,) = continue_texts(model, experts=[1], texts=[rest], temperature=1.0)
    assert first.text + second.text == whole.text
    np.testing.assert_array_equal(second.readings[0].state, whole.readings[0].state)
