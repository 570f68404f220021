"""Do the GPU's inference kernels give each window its own experts' log-probabilities?  In Triton's interpreter."""

import numpy as np
import pytest
import torch

from thinwire.kernels.expert_losses.cases import CASES, LossCase, inputs_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores
from thinwire.kernels.routed_scores.triton_impl import tiles_of

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # exp of the interpreter

PLAIN = LossCase("routed, three experts", ExpertShape(width=5, embed_width=5), 5, 4, 1)
PROJECTED = LossCase("routed, projections", ExpertShape(width=6, depth=1, embed_width=9), 3, 3, 1)
NUM_EXPERTS = 3


@pytest.mark.parametrize("decoder_kind", ["shared", "per expert"])
@pytest.mark.parametrize("case", [PLAIN, PROJECTED], ids=lambda case: case.name)
def test_scores_match_float64(case: LossCase, decoder_kind: str) -> None:
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    generator = np.random.default_rng(7)
    thetas = torch.stack([theta, 1.25 * theta, 0.75 * theta])
    experts = torch.from_numpy(np.stack([generator.permutation(NUM_EXPERTS)[:2] for _ in windows]))
    decoders = decoder if decoder_kind == "shared" else torch.stack([decoder, 1.5 * decoder, decoder.flip(0)])
    arguments = {"shape": case.shape, "windows": windows, "experts": experts, "first_target": 1}
    exact = routed_scores(thetas, decoder=decoders, **arguments, implementation="reference")
    scores = routed_scores(thetas.float(), decoder=decoders.float(), **arguments, implementation="triton")
    assert scores.dtype == torch.float64
    torch.testing.assert_close(scores, exact, rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize("case", [PLAIN, PROJECTED, CASES[0]], ids=lambda case: case.name)
def test_decoder_inputs_match_float64(case: LossCase) -> None:
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    arguments = {"shape": case.shape, "windows": windows}
    exact = decoder_inputs(theta, decoder=decoder, **arguments, implementation="reference")
    hidden = decoder_inputs(theta.float(), decoder=decoder.float(), **arguments, implementation="triton")
    torch.testing.assert_close(hidden.double(), exact, rtol=0.0, atol=5e-6)


def test_tiles_hold_every_request_once_beside_those_of_its_expert() -> None:
    experts = np.random.default_rng(0).integers(0, 7, (53, 3))
    experts[experts == 4] = 5  # an expert without requests
    tiles = tiles_of(experts, num_experts=8, rows=16)
    assert sorted(tiles.requests[tiles.requests >= 0].tolist()) == list(range(53 * 3))
    for expert, requests in zip(tiles.experts, tiles.requests.reshape(-1, 16), strict=True):
        assert (experts.reshape(-1)[requests[requests >= 0]] == expert).all()
        assert (requests >= 0).any()
