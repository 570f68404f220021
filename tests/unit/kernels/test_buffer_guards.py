"""Do the experts' kernels write past a workspace?  Guards around each buffer must be untouched at the end."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from loss_cases import evaluate
from thinwire.kernels import lane_workspace, wide_workspace
from thinwire.kernels.expert_losses.cases import CASES, WIDE_CASES, LossCase, inputs_for
from thinwire.kernels.routed_scores import cpu_impl, stream_forward
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores

GUARD = 256
"""Floats on either side: a record's or a tile's worth."""
PATTERN = np.float32(1234.5)
SMALL_WIDE_CASES = [case for case in WIDE_CASES if case.shape.width <= 181]


@pytest.fixture(autouse=True)
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray]]:
    """Workspaces of the expert kernels with guards; looked at when the test is over."""
    whole: list[np.ndarray] = []

    def with_guards(count: int) -> np.ndarray:
        raw = np.full(count + 2 * GUARD + 16, PATTERN, np.float32)
        start = GUARD + (-raw.ctypes.data // 4) % 16
        held = raw[start - GUARD : start + count + GUARD]
        held[GUARD : GUARD + count] = 0.0
        whole.append(held)
        return held[GUARD : GUARD + count]

    for module in (lane_workspace, wide_workspace, stream_forward):
        monkeypatch.setattr(module, "aligned_floats", with_guards)
    yield whole
    assert whole
    for held in whole:
        assert np.all(held[:GUARD] == PATTERN)
        assert np.all(held[-GUARD:] == PATTERN)


@pytest.mark.parametrize("layer_by_layer", [False, True])
@pytest.mark.parametrize("case", [*CASES, *SMALL_WIDE_CASES], ids=lambda case: case.name)
def test_losses(case: LossCase, layer_by_layer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_workspace, "CACHED_WEIGHTS_BYTES", 0 if layer_by_layer else 2**40)
    assert torch.isfinite(evaluate(case, implementation="numba")).all()


@pytest.mark.parametrize("lanes_from", [1, 17])
@pytest.mark.parametrize("case", [*CASES, *SMALL_WIDE_CASES[1:4]], ids=lambda case: case.name)
def test_scores_and_decoder_inputs(case: LossCase, lanes_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts in the lanes, and one to four at a time."""
    monkeypatch.setattr(cpu_impl, "LANES_FROM", lanes_from)
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    windows = windows.repeat(3, 1)[:7]
    shared = {"shape": case.shape, "decoder": decoder.float(), "windows": windows, "implementation": "numba"}
    experts = torch.zeros(len(windows), 1, dtype=torch.int64)
    for first_target in {0, case.input_bytes - 1}:
        scores = routed_scores(theta.float()[None], experts=experts, first_target=first_target, **shared)
        assert torch.isfinite(scores).all()
    assert torch.isfinite(decoder_inputs(theta.float(), **shared)).all()
