"""Do inference kernels give each window its own expert's log-probabilities, and steps equal whole windows?  (Eq. 1)"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.kernels.expert_losses import reference as expert_reference
from thinwire.kernels.expert_losses.cases import CASES, LossCase, inputs_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores
from thinwire.kernels.routed_scores.cpu_impl import ByteStepper

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
def test_first_target_drops_exactly_the_earlier_ones(implementation: str, first_target: int) -> None:
    given = inputs(CASES[1])
    arguments = {
        "shape": CASES[1].shape,
        "decoder": given.decoders.float(),
        "windows": given.windows,
        "experts": given.experts,
        "implementation": implementation,
    }
    whole = routed_scores(given.thetas.float(), first_target=0, **arguments)
    part = routed_scores(given.thetas.float(), first_target=first_target, **arguments)
    assert part.shape == (5, 2, 12 - first_target)
    assert torch.equal(part, whole[:, :, first_target:])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 65, 131])
def test_odd_numbers_of_windows_and_threads_change_no_bit(count: int) -> None:
    """64 windows make a task: counts on either side of lanes and of tasks."""
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


def stepper_of(case: LossCase) -> ByteStepper:
    given = inputs(case)
    decoder = given.decoders[0].float().numpy()
    return ByteStepper(given.thetas[0].float().numpy(), shape=case.shape, decoder=decoder)


STEPPER_CASES = [case for case in CASES if case.input_bytes > 8]


@pytest.mark.parametrize("case", STEPPER_CASES, ids=lambda case: case.name)
def test_stepping_equals_scoring_the_window(case: LossCase) -> None:
    given = inputs(case)
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
    stepper = stepper_of(case)
    for t in range(case.input_bytes):
        log_p = stepper.read(window[t : t + 1].numpy())
        assert log_p.shape == (256,)
        assert float(np.exp(log_p).sum()) == pytest.approx(1.0, abs=1e-12)
        # the same logits; only the normaliser's sum is float32 there and float64 here
        assert log_p[int(window[t + 1])] == pytest.approx(float(whole[t]), abs=2e-6)


@pytest.mark.parametrize(
    "shape", [ExpertShape(width=16, embed_width=16), ExpertShape(width=12, depth=1, embed_width=20)]
)
def test_two_reads_equal_one_bit_for_bit(shape: ExpertShape) -> None:
    case = LossCase("stepper", shape, 1, 20, 1)
    text = inputs(case).windows[0].numpy()
    stepper = stepper_of(case)
    whole = stepper.read(text[:20])
    for cut in (1, 7, 19):
        stepper.reset()
        stepper.read(text[:cut])
        np.testing.assert_array_equal(stepper.read(text[cut:20]), whole)
    carried = stepper.read(text[:20])  # no reset: the state is carried on
    assert not np.array_equal(carried, whole)
    stepper.reset()
    np.testing.assert_array_equal(stepper.read(text[:20]), whole)
