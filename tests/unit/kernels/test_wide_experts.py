"""Do wide experts, read layer by layer in chunks, give the bits of the narrow experts' kernel, in bounded memory?

The definition in FP64 is the judge; the kernel that reads all weights for every byte is the witness, bit for bit.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from loss_cases import ADDRESS, UNIT_ROUNDOFF, endpoint_losses, evaluate, exact_losses
from thinwire.kernels import wide_workspace
from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import CASES, WIDE_CASES, LossCase, inputs_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_layout import sizes_of
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores

by_name = pytest.mark.parametrize("case", WIDE_CASES, ids=lambda case: case.name)


@pytest.fixture
def layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whichever the width: call it with False to have every byte read all weights instead."""

    def choose(wide: bool) -> None:
        monkeypatch.setattr(wide_workspace, "CACHED_WEIGHTS_BYTES", 0 if wide else 2**40)

    choose(True)
    return choose


@by_name
@pytest.mark.usefixtures("layer_by_layer")
def test_losses_match_float64(case: LossCase) -> None:
    losses = evaluate(case, implementation="numba")
    assert losses.shape == (case.num_directions, 2)
    torch.testing.assert_close(losses, exact_losses(case), rtol=2e-6, atol=0.0)


@by_name
@pytest.mark.usefixtures("layer_by_layer")
def test_directional_derivatives_err_no_more_than_float32_rounding(case: LossCase) -> None:
    """One rounding of the loss for narrow experts; sums of up to 2,036 terms on one byte are given 4 (1.5 seen)."""
    exact, roundings = endpoint_losses(case), 8.0 if case.weights == "extreme" else 4.0
    bound = roundings * UNIT_ROUNDOFF * float(exact.max()) / case.epsilon
    derivative = (exact[:, 0] - exact[:, 1]) / (2 * case.epsilon)
    losses = evaluate(case, implementation="numba")
    error = (losses[:, 0] - losses[:, 1]) / (2 * case.epsilon) - derivative
    assert float(error.abs().max()) <= bound
    assert bound < 0.5 * float(derivative.abs().max())


@pytest.mark.parametrize("case", CASES[1:3] + CASES[4:] + WIDE_CASES[:-1], ids=lambda case: case.name)
def test_both_ways_through_an_expert_give_the_same_bits(case: LossCase, layer_by_layer: Callable[[bool], None]) -> None:
    wide = evaluate(case, implementation="numba")
    layer_by_layer(False)
    assert torch.equal(wide, evaluate(case, implementation="numba"))


@pytest.mark.parametrize("case", WIDE_CASES[1:5], ids=lambda case: case.name)
@pytest.mark.usefixtures("layer_by_layer")
def test_no_bit_depends_on_threads_splits_or_chunks(case: LossCase, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(case, implementation="numba", directions=range(5))
    for threads in (2, 3):
        assert torch.equal(evaluate(case, implementation="numba", directions=range(5), threads=threads), whole)
    parts = [evaluate(case, implementation="numba", directions=part) for part in (range(1), range(1, 4), range(4, 5))]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(evaluate(case, implementation="numba", directions=range(4, -1, -2)), whole[[4, 2, 0]])
    sizes = sizes_of(case.shape)
    two_steps = 2 * wide_workspace.FLOAT_BYTES * wide_workspace.record_floats(sizes)
    one_direction = wide_workspace.FLOAT_BYTES * sizes.packed_floats
    monkeypatch.setattr(wide_workspace, "WEIGHTS_BYTES", one_direction)
    assert torch.equal(evaluate(case, implementation="numba", directions=range(5)), whole)
    for groups, budget in ((1, two_steps), (2, two_steps), (8, 1)):
        monkeypatch.setattr(wide_workspace, "GROUPS_AT_ONCE", groups)
        monkeypatch.setattr(wide_workspace, "ACTIVATION_BYTES", budget)
        assert torch.equal(evaluate(case, implementation="numba", directions=range(5)), whole)


@by_name
def test_scores_and_decoder_inputs_of_wide_experts(case: LossCase, layer_by_layer: Callable[[bool], None]) -> None:
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    thetas, decoders = torch.stack([theta, 0.9 * theta]).float(), torch.stack([decoder, 1.25 * decoder]).float()
    experts = torch.tensor([[row % 2, 1 - row % 2] for row in range(case.batch)])
    first = case.input_bytes // 2

    def scores(threads: int = 1) -> Tensor:
        arguments = {"shape": case.shape, "windows": windows, "experts": experts, "first_target": first}
        return routed_scores(thetas, decoder=decoders, implementation="numba", threads=threads, **arguments)

    def hidden(threads: int = 1) -> Tensor:
        arguments = {"shape": case.shape, "decoder": decoders[0], "windows": windows}
        return decoder_inputs(thetas[0], implementation="numba", threads=threads, **arguments)

    wide_scores, wide_hidden = scores(), hidden()
    assert torch.equal(scores(threads=3), wide_scores)
    assert torch.equal(hidden(threads=3), wide_hidden)
    layer_by_layer(False)
    assert torch.equal(scores(), wide_scores)
    assert torch.equal(hidden(), wide_hidden)
    slot = 1  # of the last window, which the other expert reads
    expert = int(experts[-1, slot])
    exact = reference.log_probabilities(
        thetas[expert][None].double(), shape=case.shape, decoder=decoders[expert].double(), windows=windows[-1:]
    )
    atol = 2e-3 if case.weights == "extreme" else 5e-6
    torch.testing.assert_close(wide_scores[-1, slot], exact[0, 0, first:], rtol=2e-6, atol=atol)


@pytest.mark.usefixtures("layer_by_layer")
def test_a_weight_that_is_not_a_number_shows_in_the_loss() -> None:
    case = CASES[5]
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    arguments = {"shape": case.shape, "decoder": decoder.float(), "windows": windows, "address": ADDRESS}
    for slot in case.shape.slots:
        spoiled = theta.float()
        spoiled[slot.start] = float("nan")
        losses = expert_losses(spoiled, directions=range(1), epsilon=1e-3, implementation="numba", **arguments)
        assert torch.isnan(losses).all(), slot.name


@pytest.mark.parametrize(("width", "batch"), [(32, 64), (32, 4), (64, 16), (181, 64)])
def test_what_a_core_caches_is_read_byte_by_byte(width: int, batch: int) -> None:
    sizes = sizes_of(ExpertShape(width=width))
    together = wide_workspace.directions_together(batch, sizes=sizes)
    assert not wide_workspace.is_wide(sizes, directions=together)


@pytest.mark.parametrize(("width", "batch"), [(181, 4), (361, 64), (509, 64), (509, 1)])
def test_what_no_core_caches_is_read_layer_by_layer(width: int, batch: int) -> None:
    sizes = sizes_of(ExpertShape(width=width))
    together = wide_workspace.directions_together(batch, sizes=sizes)
    assert wide_workspace.is_wide(sizes, directions=together)


@pytest.mark.parametrize("batch", [1, 4, 64, 1024])
@pytest.mark.parametrize("width", [181, 361, 509])
def test_memory_of_a_thread_stays_within_256_mib(width: int, batch: int) -> None:
    """Whatever the windows' number; with their length only log-probabilities grow (1 KiB a byte)."""
    sizes = sizes_of(ExpertShape(width=width))
    together = wide_workspace.directions_together(batch, sizes=sizes)
    groups = -(-batch * together // 16)
    work = wide_workspace.WideWorkspace.for_sizes(sizes, num_groups=groups, input_bytes=4096, directions=together)
    buffers = (work.flat, work.packed, work.table, work.state, work.activations, work.scratch, work.log_probability)
    assert sum(buffer.nbytes for buffer in buffers) <= 256 * 2**20
    assert work.groups <= wide_workspace.GROUPS_AT_ONCE
