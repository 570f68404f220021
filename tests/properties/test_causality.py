"""Does no log-probability see a later byte, and does every one see the byte it scores?"""

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores

LENGTH = 14
SHAPES = (ExpertShape(width=16, embed_width=16), ExpertShape(width=6, depth=3, embed_width=9))


def log_probabilities(window: Tensor, *, shape: ExpertShape, implementation: str) -> Tensor:
    """float64 [T] of one window."""
    generator = np.random.default_rng(1)
    theta = torch.from_numpy((0.5 * generator.standard_normal(shape.num_parameters)).astype(np.float32))
    decoder = torch.from_numpy(generator.standard_normal((256, shape.embed_width)).astype(np.float32))
    return routed_scores(
        theta[None],
        shape=shape,
        decoder=decoder,
        windows=window[None],
        experts=torch.zeros(1, 1, dtype=torch.int64),
        first_target=0,
        implementation=implementation,
    )[0, 0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("implementation", ["numba", "reference"])
def test_a_changed_byte_changes_its_own_score_and_later_ones_only(shape: ExpertShape, implementation: str) -> None:
    """Position t scores byte t + 1 after reading bytes 0..t."""
    window = torch.from_numpy(np.random.default_rng(2).integers(0, 256, LENGTH + 1, dtype=np.uint8))
    before = log_probabilities(window, shape=shape, implementation=implementation)
    for byte in range(LENGTH + 1):
        changed = window.clone()
        changed[byte] += 17
        after = log_probabilities(changed, shape=shape, implementation=implementation)
        same = (after == before).tolist()
        if implementation == "numba":
            assert all(same[: max(byte - 1, 0)]), byte  # every earlier bit
        else:
            torch.testing.assert_close(after[: max(byte - 1, 0)], before[: max(byte - 1, 0)], rtol=0, atol=1e-5)
        if byte > 0:
            assert abs(float(after[byte - 1] - before[byte - 1])) > 1e-3, byte  # as a target
        if byte < LENGTH:
            assert abs(float(after[byte] - before[byte])) > 1e-4, byte  # as an input
    # the first byte is still felt at the end: the state is carried, not cut
    changed = window.clone()
    changed[0] += 17
    after = log_probabilities(changed, shape=shape, implementation=implementation)
    assert float(after[-1]) != float(before[-1])


@pytest.mark.parametrize("implementation", ["numba", "reference"])
def test_decoder_inputs_do_not_see_the_byte_they_predict(implementation: str) -> None:
    shape = SHAPES[0]
    generator = np.random.default_rng(3)
    theta = torch.from_numpy((0.5 * generator.standard_normal(shape.num_parameters)).astype(np.float32))
    decoder = torch.from_numpy(generator.standard_normal((256, 16)).astype(np.float32))
    windows = torch.from_numpy(generator.integers(0, 256, (2, LENGTH + 1), dtype=np.uint8))
    setting = {"shape": shape, "decoder": decoder, "implementation": implementation}
    before = decoder_inputs(theta, windows=windows, **setting)
    for byte in (1, 7, LENGTH):
        changed = windows.clone()
        changed[0, byte] += 1
        after = decoder_inputs(theta, windows=changed, **setting)
        torch.testing.assert_close(
            after[:, :byte], before[:, :byte], rtol=0, atol=0.0 if implementation == "numba" else 1e-5
        )
        torch.testing.assert_close(after[1], before[1], rtol=0, atol=0.0 if implementation == "numba" else 1e-5)
        if byte < LENGTH:
            assert float((after[0, byte] - before[0, byte]).abs().max()) > 1e-3
