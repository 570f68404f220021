"""Do the GPU's kernels evaluate the expert of appendix C?  The shared cases, in Triton's interpreter (slow, so few)."""

import pytest
import torch

from loss_cases import UNIT_ROUNDOFF, evaluate, exact_losses
from thinwire.base.errors import UserError
from thinwire.kernels import triton_plan, triton_wide
from thinwire.kernels.expert_losses.cases import CASES, LossCase
from thinwire.kernels.expert_shape import ExpertShape

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # exp of the interpreter

MOST_DIRECTIONS, MOST_BYTES, MOST_WIDTH = 1, 5, 64
SHORT_CASES = tuple(
    case._replace(
        num_directions=min(case.num_directions, MOST_DIRECTIONS), input_bytes=min(case.input_bytes, MOST_BYTES)
    )
    for case in CASES
    if case.shape.width <= MOST_WIDTH
)
TINY = LossCase("three windows, three directions", ExpertShape(width=5, depth=1, embed_width=5), 3, 3, 3)


@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda case: case.name)
def test_losses_match_float64_and_the_cpu(case: LossCase) -> None:
    exact = exact_losses(case)
    losses = evaluate(case, implementation="triton")
    assert losses.dtype == torch.float64
    assert losses.shape == (case.num_directions, 2)
    torch.testing.assert_close(losses, exact, rtol=2e-6, atol=0.0)
    # the CPU kernels perturb in float32 too, so the derivatives share their endpoints and differ by rounding alone
    cpu = evaluate(case, implementation="numba")
    roundings = 8.0 if case.weights == "extreme" else 1.0
    bound = 2 * roundings * UNIT_ROUNDOFF * float(exact.max()) / case.epsilon
    derivatives = [(part[:, 0] - part[:, 1]) / (2 * case.epsilon) for part in (losses, cpu)]
    assert float((derivatives[0] - derivatives[1]).abs().max()) <= bound


def test_bits_do_not_depend_on_how_directions_are_split() -> None:
    whole = evaluate(TINY, implementation="triton")
    for direction in range(TINY.num_directions):
        for column, sign in enumerate((1, -1)):
            alone = evaluate(TINY, implementation="triton", directions=range(direction, direction + 1), signs=(sign,))
            assert torch.equal(alone[0, 0], whole[direction, column])


def test_windows_past_one_tile_are_all_counted() -> None:
    """65 windows are a tile of 64 and one more; the mean is the mean of the windows alone."""
    case = LossCase("two tiles of windows", ExpertShape(width=4, depth=1, embed_width=4), 65, 2, 1)
    torch.testing.assert_close(evaluate(case, implementation="triton"), exact_losses(case), rtol=2e-6, atol=0.0)


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_weights_read_again_at_every_step_give_the_resident_ones_bits(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = evaluate(TINY, implementation="triton", precision=precision)
    monkeypatch.setattr(triton_plan, "RESIDENT_BYTES", 0)
    assert torch.equal(evaluate(TINY, implementation="triton", precision=precision), resident)
    exact = exact_losses(TINY)
    torch.testing.assert_close(resident, exact, rtol=2e-6, atol=0.0)


@pytest.mark.parametrize("embed_width", [65, 8])
def test_wide_experts_match_float64_in_chunks_of_any_size(embed_width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = LossCase("wide", ExpertShape(width=65, depth=1, embed_width=embed_width), 3, 4, 2)
    exact = exact_losses(case)
    whole = evaluate(case, implementation="triton")
    torch.testing.assert_close(whole, exact, rtol=2e-6, atol=0.0)
    monkeypatch.setattr(triton_wide, "CHUNK_BYTES", 1)
    torch.testing.assert_close(evaluate(case, implementation="triton"), whole, rtol=2e-7, atol=0.0)
    with pytest.raises(UserError, match="full FP32"):
        evaluate(case, implementation="triton", precision="tf32")


@pytest.mark.parametrize("implementation", ["numba", "reference"])
def test_only_triton_has_precisions(implementation: str) -> None:
    with pytest.raises(UserError, match="no precision 'tf32'"):
        evaluate(TINY, implementation=implementation, precision="tf32")
