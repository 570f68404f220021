"""Does every implementation evaluate the expert that appendix C defines, at the probes' endpoints, for any split?

FP64 endpoints: theta +- eps z rounded once to float32, as the kernels are told to, then evaluated in float64. What is
left is the rounding of the float32 forward pass alone.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from loss_cases import ADDRESS, UNIT_ROUNDOFF, endpoint_losses, evaluate, exact_losses
from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import CASES, LossCase, inputs_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import routed_scores

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_name
def test_losses_match_float64(case: LossCase) -> None:
    exact = exact_losses(case)
    assert exact.dtype == torch.float64
    assert exact.shape == (case.num_directions, 2)
    for implementation in ("numba", "reference"):
        losses = evaluate(case, implementation=implementation)
        assert losses.dtype == torch.float64
        torch.testing.assert_close(losses, exact, rtol=2e-6, atol=0.0)


@by_name
def test_directional_derivatives_err_no_more_than_float32_rounding(case: LossCase) -> None:
    """One rounding of a loss L is at most 2^-24 L; two of them make at most u = 2^-24 L / eps of (L+ - L-) / (2 eps).

    Each position rounds a few operations at logits of the loss's own size, and errors of different positions and
    windows average out, so one u is a fair bound on the mean of a usual expert (0.35 u seen on a single byte, 0.1 u on
    batches). The extreme expert's hidden states exceed its loss many times over, so it is given 8 u (3.4 u seen).
    """
    exact, roundings = endpoint_losses(case), 8.0 if case.weights == "extreme" else 1.0
    bound = roundings * UNIT_ROUNDOFF * float(exact.max()) / case.epsilon
    derivative = (exact[:, 0] - exact[:, 1]) / (2 * case.epsilon)
    for implementation in ("numba", "reference"):
        losses = evaluate(case, implementation=implementation)
        error = (losses[:, 0] - losses[:, 1]) / (2 * case.epsilon) - derivative
        assert float(error.abs().max()) <= bound
    # the bound is far below the derivative itself, so that a flipped sign or a lost 1/2 would break it
    assert bound < 0.5 * float(derivative.abs().max())


@pytest.mark.parametrize("implementation", ["numba", "reference"])
def test_signs_and_columns_are_in_the_order_asked_for(implementation: str) -> None:
    case = CASES[1]
    both = evaluate(case, implementation=implementation)
    plus = evaluate(case, implementation=implementation, signs=(1,))
    minus = evaluate(case, implementation=implementation, signs=(-1,))
    swapped = evaluate(case, implementation=implementation, signs=(-1, 1))
    centre = evaluate(case, implementation=implementation, signs=(0,))
    tolerance = {"rtol": 0.0, "atol": 0.0 if implementation == "numba" else 2e-7 * 6}
    torch.testing.assert_close(torch.cat([plus, minus], dim=1), both, **tolerance)
    torch.testing.assert_close(swapped.flip(1), both, **tolerance)
    assert not torch.allclose(plus, minus, rtol=1e-6)
    torch.testing.assert_close(centre, centre[:1].expand(3, 1), **tolerance)  # sign 0 is theta itself


@by_name
def test_numba_is_bit_identical_for_any_threads_and_any_split_of_directions(case: LossCase) -> None:
    whole = evaluate(case, implementation="numba", directions=range(5))
    for threads in (2, 3):
        again = evaluate(case, implementation="numba", directions=range(5), threads=threads)
        assert torch.equal(again, whole)
    parts = [evaluate(case, implementation="numba", directions=part) for part in (range(1), range(1, 4), range(4, 5))]
    assert torch.equal(torch.cat(parts), whole)
    backwards = evaluate(case, implementation="numba", directions=range(4, -1, -2))
    assert torch.equal(backwards, whole[[4, 2, 0]])


def test_reference_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[3]
    whole = evaluate(case, implementation="reference", dtype=torch.float64, directions=range(5))
    monkeypatch.setattr(reference, "COPIES_PER_CHUNK_BYTES", 1)
    chunked = evaluate(case, implementation="reference", dtype=torch.float64, directions=range(5))
    torch.testing.assert_close(chunked, whole, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("implementation", ["numba", "reference"])
def test_every_part_of_the_address_reaches_the_losses(implementation: str) -> None:
    case = CASES[1]
    addresses = [ADDRESS, ADDRESS._replace(update=6), ADDRESS._replace(accumulation=0)]
    addresses.append(ADDRESS._replace(key=stream_key(3, "probe", 2)))
    results = [evaluate(case, implementation=implementation, address=address) for address in addresses]
    values = torch.cat(results).flatten()
    assert len(torch.unique(values)) == len(values)


def test_zero_radius_is_the_unperturbed_loss() -> None:
    case = CASES[4]
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    exact = reference.mean_loss(theta[None], shape=case.shape, decoder=decoder, windows=windows)
    losses = evaluate(case, implementation="numba", epsilon=0.0)
    assert len(torch.unique(losses)) == 1
    torch.testing.assert_close(losses[0, :1], exact, rtol=2e-6, atol=0.0)


@pytest.mark.parametrize(
    "shape", [ExpertShape(width=16, embed_width=16), ExpertShape(width=12, depth=1, embed_width=20)]
)
def test_a_window_alone_equals_the_same_window_in_a_batch_of_17(shape: ExpertShape) -> None:
    case = LossCase("lanes", shape, 17, 9, 1)
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    arguments = {"shape": shape, "decoder": decoder.float(), "first_target": 0, "implementation": "numba"}

    def scores(batch: Tensor) -> Tensor:
        experts = torch.zeros(len(batch), 1, dtype=torch.int64)
        return routed_scores(theta.float()[None], windows=batch, experts=experts, **arguments)

    together = scores(windows)
    for lane in range(17):
        assert torch.equal(scores(windows[lane : lane + 1])[0], together[lane])

    def loss(batch: Tensor) -> float:
        return float(evaluate(case, implementation="numba", windows=batch, signs=(1,)))

    alone = [loss(windows[lane : lane + 1]) for lane in range(17)]
    # FP64 sums of float32-accurate windows: the batch's mean is the mean of the windows alone
    assert loss(windows) == pytest.approx(np.mean(alone), rel=1e-14)
    assert len(set(alone)) == 17


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16])
def test_any_batch_is_the_mean_of_its_windows_for_every_direction(batch: int) -> None:
    """However windows and directions are laid over the lanes; an odd number of signed directions included."""
    case = LossCase("lanes", ExpertShape(width=7, embed_width=7), 16, 6, 5)
    _, _, windows = (torch.from_numpy(array) for array in inputs_for(case))

    def of(part: Tensor, **changes: object) -> Tensor:
        return evaluate(case, implementation="numba", windows=part, **changes)

    together = of(windows[:batch])
    alone = torch.stack([of(windows[row : row + 1]) for row in range(batch)])
    torch.testing.assert_close(together, alone.mean(dim=0), rtol=1e-14, atol=0.0)
    for direction in range(5):
        single = of(windows[:batch], directions=range(direction, direction + 1), signs=(-1,))
        assert torch.equal(single[0, 0], together[direction, 1])


def test_windows_do_not_see_each_other() -> None:
    case = CASES[2]
    _, _, windows = (torch.from_numpy(array) for array in inputs_for(case))
    doubled = torch.cat([windows, windows])
    once = evaluate(case, implementation="numba")
    twice = evaluate(case, implementation="numba", windows=doubled)
    torch.testing.assert_close(twice, once, rtol=1e-14, atol=0.0)


def test_targets_are_the_next_bytes() -> None:
    """The last byte is only a target, the first one only an input: computed by hand from the decoder's inputs."""
    case = CASES[3]
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    h = reference.decoder_inputs(theta[None], shape=case.shape, decoder=decoder, inputs=windows[:, :-1])[0]
    logits = torch.einsum("btd,vd->btv", h, decoder)
    by_hand = torch.nn.functional.cross_entropy(logits.reshape(-1, 256), windows[:, 1:].reshape(-1).long())
    for implementation in ("numba", "reference"):
        loss = evaluate(case, implementation=implementation, epsilon=0.0, signs=(1,))
        assert float(loss[0]) == pytest.approx(float(by_hand), rel=2e-6)
    changed = windows.clone()
    changed[:, -1] += 1
    moved = evaluate(case, implementation="numba", windows=changed)
    assert not torch.equal(moved, evaluate(case, implementation="numba"))


def test_a_weight_that_is_not_a_number_shows_in_the_loss() -> None:
    """A diverged run must not look like a finite one: every tensor's NaN reaches the loss."""
    case = CASES[4]
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    for slot in case.shape.slots:
        spoiled = theta.float()
        spoiled[slot.start] = float("nan")
        losses = expert_losses(
            spoiled,
            shape=case.shape,
            decoder=decoder.float(),
            windows=windows,
            address=ADDRESS,
            directions=range(1),
            epsilon=1e-3,
            implementation="numba",
        )
        assert torch.isnan(losses).all(), slot.name


@pytest.mark.parametrize(
    ("implementation", "shape"),
    [
        ("numba", ExpertShape(width=16, embed_width=16)),
        ("numba", ExpertShape(width=232)),
        ("triton", ExpertShape(width=4, depth=1, embed_width=4)),
    ],
)
def test_a_variance_beyond_float32_shows_in_the_loss(shape: ExpertShape, implementation: str) -> None:
    """Scaled by 1 / infinity the residual stream would be zeros, and the loss an innocent ln 256.

    PyTorch's layer norm gives zeros or NaN there, hence ``expert_losses`` promises nothing of the reference.
    """
    theta, decoder, windows = (torch.from_numpy(a) for a in inputs_for(LossCase("", shape, 2, 2, 1)))
    arguments = {"shape": shape, "windows": windows, "implementation": implementation}
    losses = expert_losses(
        theta.float(),
        decoder=1e20 * decoder.float(),
        address=ADDRESS,
        directions=range(1),
        epsilon=1e-3,
        **arguments,
    )
    assert torch.isnan(losses).all()
    for num_windows in (2, 16):  # with one expert's rows in the lanes, and with windows
        scores = routed_scores(
            theta.float()[None],
            decoder=1e20 * decoder.float(),
            experts=torch.zeros(num_windows, 1, dtype=torch.int64),
            first_target=0,
            **arguments | {"windows": windows[:1].repeat(num_windows, 1)},
        )
        assert torch.isnan(scores).all()


def test_a_decoder_weight_that_is_not_a_number_shows_in_the_loss() -> None:
    case = CASES[1]
    theta, decoder, windows = (torch.from_numpy(array).clone() for array in inputs_for(case))
    unused = (set(range(256)) - set(windows.flatten().tolist())).pop()
    decoder[unused, 3] = float("nan")  # reaches the loss through the softmax's sum alone
    losses = expert_losses(
        theta.float(),
        shape=case.shape,
        decoder=decoder.float(),
        windows=windows,
        address=ADDRESS,
        directions=range(1),
        epsilon=1e-3,
        implementation="numba",
    )
    assert torch.isnan(losses).all()
