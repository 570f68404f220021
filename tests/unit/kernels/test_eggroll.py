"""Does EGGROLL's rank-one forward equal the dense one, its noise its definition, and its update the stated rule?"""

import numpy as np
import pytest
import torch

from thinwire.base.errors import UserError
from thinwire.base.seeds import philox, stream_key
from thinwire.kernels.eggroll import reference
from thinwire.kernels.eggroll.api import (
    EggrollRules,
    EggrollShape,
    NoiseAddress,
    eggroll_losses,
    fitness_signs,
    initial_theta,
    next_state,
    perturbation_sum,
    sign_update,
    window_losses,
    zero_state,
)
from thinwire.kernels.eggroll.cases import CASES, PAPER_WIDTHS, EggrollCase, inputs_for
from thinwire.kernels.eggroll.cpu_impl import pair_rows
from thinwire.kernels.eggroll.noise import normal_table, pair_normals

ADDRESS = NoiseAddress(stream_key(1, "eggroll"), 5)


def arguments(case: EggrollCase, *, dtype: torch.dtype) -> dict[str, object]:
    theta, windows, state = map(torch.from_numpy, inputs_for(case))
    return {
        "theta": theta.to(dtype),
        "shape": case.shape,
        "rules": case.rules,
        "windows": windows,
        "address": ADDRESS,
        "pairs": range(case.first_pair, case.first_pair + case.num_pairs),
        "state": state,
    }


def losses_of(case: EggrollCase, **changed: object) -> torch.Tensor:
    return eggroll_losses(**(arguments(case, dtype=torch.float32) | changed))


@pytest.mark.parametrize(("width", "count"), PAPER_WIDTHS.items())
def test_parameter_counts_are_the_papers(width: int, count: int) -> None:
    assert EggrollShape(width).num_parameters == count == 72 * width**2 + 537 * width


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rank_one_losses_equal_those_of_dense_perturbed_weights(case: EggrollCase) -> None:
    exact = reference.dense_losses(**arguments(case, dtype=torch.float64))
    assert float((exact[:, 0] - exact[:, 1]).abs().max()) > 1e-3  # the perturbation does something
    for dtype, implementation, tolerance in (
        (torch.float64, "reference", 1e-12),
        (torch.float32, "reference", 1e-5),
        (torch.float32, "numba", 1e-5),
    ):
        actual = eggroll_losses(**arguments(case, dtype=dtype), implementation=implementation)
        np.testing.assert_allclose(actual.numpy(), exact.numpy(), rtol=tolerance, err_msg=f"{implementation} {dtype}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unperturbed_losses_and_states_equal_the_reference(case: EggrollCase) -> None:
    found = arguments(case, dtype=torch.float64)
    kwargs = {name: found[name] for name in ("shape", "rules", "windows", "state")}
    exact = window_losses(found["theta"], **kwargs, implementation="reference")
    actual = window_losses(found["theta"].float(), **kwargs, threads=2)
    np.testing.assert_allclose(actual.losses, exact.losses, rtol=1e-5)
    np.testing.assert_allclose(actual.state, exact.state, atol=2e-5)


def test_results_are_the_same_bits_for_any_threads_and_chunks() -> None:
    case = EggrollCase("", EggrollShape(width=7, depth=2), num_pairs=70, streams=9)
    whole = losses_of(case)
    assert torch.equal(losses_of(case, threads=3), whole)
    parts = [losses_of(case, pairs=range(first, last)) for first, last in ((0, 1), (1, 20), (20, 70))]
    assert torch.equal(torch.cat(parts), whole)


def test_normals_are_the_documented_ones_in_both_implementations() -> None:
    shape, pairs = EggrollShape(width=5, depth=1), range(2**19 - 3, 2**19 + 18)
    found = pair_normals(ADDRESS, shape=shape, pairs=pairs)
    np.testing.assert_array_equal(pair_rows(ADDRESS, shape=shape, pairs=pairs), found)
    run = shape.normal_runs[3]
    for k in range(run.size):
        words = philox(ADDRESS.key, np.array([[run.first_block + k // 8, pairs[2], ADDRESS.update, 0]], np.uint32))[0]
        number = int(words[k % 8 // 2]) >> (16 * (k % 2)) & 0xFFFF
        assert found[2, run.start + k] == normal_table()[number]


def test_normals_are_standard_and_independent() -> None:
    table = normal_table().astype(float)
    np.testing.assert_array_equal(table, -table[::-1])
    assert np.mean(table**2) == pytest.approx(1, abs=1e-6)
    assert np.mean(table**4) == pytest.approx(3, abs=0.01)
    normals = pair_normals(ADDRESS, shape=EggrollShape(width=20), pairs=range(64)).astype(float)
    assert abs(normals.mean()) < 5 / np.sqrt(normals.size)
    assert abs(float(np.mean(normals[:-1] * normals[1:]))) < 5 / np.sqrt(normals.size)
    assert abs(float(np.mean(normals[:, :-8] * normals[:, 8:]))) < 5 / np.sqrt(normals.size)


def test_members_of_a_pair_share_their_bytes_and_pairs_take_turns_at_streams() -> None:
    """Without noise (sigma = 2^-60 vanishes in FP32) a pair's two losses are its stream's."""
    case = EggrollCase("", EggrollShape(width=6, depth=2), EggrollRules(sigma_shift=60), num_pairs=7, streams=3)
    found = arguments(case, dtype=torch.float32)
    plain = window_losses(**{name: found[name] for name in ("theta", "shape", "rules", "windows", "state")}).losses
    np.testing.assert_allclose(losses_of(case).numpy(), plain[np.arange(7) % 3][:, None].repeat(2, 1), rtol=1e-12)


def test_state_is_carried_unless_it_is_reset_or_a_document_ends() -> None:
    shape, rules = EggrollShape(width=8, depth=2), EggrollRules()
    theta = initial_theta(shape, seed=1)
    text = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (2, 13), dtype=np.uint8))
    start = zero_state(shape, streams=2)
    kwargs = {"shape": shape, "rules": rules}
    middle = next_state(theta, **kwargs, windows=text[:, :7].contiguous(), state=start)
    halves = [
        window_losses(theta, **kwargs, windows=text[:, :7].contiguous(), state=start).losses,
        window_losses(theta, **kwargs, windows=text[:, 6:].contiguous(), state=middle).losses,
    ]
    whole = window_losses(theta, **kwargs, windows=text, state=start).losses
    np.testing.assert_allclose((halves[0] + halves[1]) / 2, whole, rtol=1e-12)
    reset = EggrollRules(state="reset")
    assert not next_state(theta, shape=shape, rules=reset, windows=text, state=middle).any()
    ended = text.clone()
    ended[:, 0] = 0
    for rule, is_same in (("reset", True), ("ignore", False)):
        rules = EggrollRules(document_end=rule)
        one, other = (window_losses(theta, shape=shape, rules=rules, windows=ended, state=s) for s in (start, middle))
        assert np.array_equal(one.losses, other.losses) is is_same


def test_fitness_is_the_sign_of_the_better_member() -> None:
    losses = torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]], dtype=torch.float64)
    assert fitness_signs(losses).tolist() == [1, -1, 0]


def test_the_sum_over_pairs_equals_outer_products() -> None:
    shape = EggrollShape(width=3, depth=1)
    signs = np.random.default_rng(0).integers(-1, 2, 300).astype(np.int8)
    normals = pair_normals(ADDRESS, shape=shape, pairs=range(40, 340)).astype(float)
    noise = reference.factors(torch.from_numpy(normals), shape=shape)
    found = perturbation_sum(signs, shape=shape, address=ADDRESS, first_pair=40)
    for slot in shape.slots:
        a, b = (part.numpy() for part in noise[slot.name])
        expected = (
            np.einsum("p,pi,pj->ij", signs, a, b) if len(slot.shape) == 2 else np.einsum("p,pi,pi->i", signs, a, b)
        )
        np.testing.assert_allclose(found[slot.start : slot.stop], expected.ravel(), atol=1e-10)
    np.testing.assert_array_equal(
        perturbation_sum(signs, shape=shape, address=ADDRESS, first_pair=40, threads=2), found
    )
    parts = [(0, 216), (216, 300)]  # 40 + 216 = 256, the end of a block
    added = sum(perturbation_sum(signs[a:b], shape=shape, address=ADDRESS, first_pair=40 + a) for a, b in parts)
    np.testing.assert_array_equal(added, found)


@pytest.mark.parametrize("alpha", [0.01, 0.2])
def test_random_signs_move_a_part_alpha_of_the_weights(alpha: float) -> None:
    """Weights of one matrix share a and b, so the sampling error is taken from 12 updates, not from their number."""
    shape, rules = EggrollShape(width=8, depth=2), EggrollRules(alpha=alpha)
    theta = initial_theta(shape, seed=0)
    rates = []
    for update in range(12):
        signs = np.random.default_rng(update).choice([-1, 1], 2048)
        moved = sign_update(theta, signs, shape=shape, rules=rules, address=ADDRESS._replace(update=update))
        steps = (moved.theta - theta).abs()
        assert float((steps > 0).double().mean()) == pytest.approx(moved.moved_fraction)
        np.testing.assert_allclose(steps[steps > 0], 0.01, rtol=1e-4)
        rates.append(moved.moved_fraction)
    assert abs(np.mean(rates) - alpha) < 4 * np.std(rates, ddof=1) / np.sqrt(len(rates)) + 0.02 * alpha


def test_an_update_goes_where_the_fitter_members_are() -> None:
    """One step with many pairs lowers the loss of what they were scored on."""
    shape, rules = EggrollShape(width=8, depth=1), EggrollRules(alpha=0.5, float_step=0.02)
    theta, windows = initial_theta(shape, seed=2), torch.full((1, 9), 97, dtype=torch.uint8)
    kwargs = {"shape": shape, "rules": rules, "windows": windows, "state": zero_state(shape, streams=1)}
    losses = eggroll_losses(theta, **kwargs, address=ADDRESS, pairs=range(512))
    moved = sign_update(theta, fitness_signs(losses), shape=shape, rules=rules, address=ADDRESS)
    assert window_losses(moved.theta, **kwargs).losses[0] < window_losses(theta, **kwargs).losses[0]


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(UserError, match="counted up"):
        losses_of(CASES[0], pairs=range(0, 4, 2))
    with pytest.raises(UserError, match="float32"):
        eggroll_losses(**arguments(CASES[0], dtype=torch.float64), implementation="numba")
