"""How far do chunks turn their bases?  psi of a mean, draws by address, and the chunk before."""

import pytest
import torch

from thinwire.comm.group import alone
from thinwire.subspaces.config import CodecConfig
from thinwire.subspaces.sequence import make_layout
from thinwire.subspaces.theta import (
    Handover,
    LayerHeads,
    RotationHeads,
    ThetaAddress,
    draw,
    is_learned,
    predict,
    shift_by_one_chunk,
)
from thinwire.subspaces.turns import Turns


def drawn(
    *, seed: int = 1, step: int = 4, first_sequence: int = 2, layer: int = 0, chunk: int = 3, batch: int = 2
) -> torch.Tensor:
    address = ThetaAddress(seed=seed, step=step, first_sequence=first_sequence)
    codec, like = CodecConfig(generators=3, theta_max=0.5), torch.zeros(1, dtype=torch.float64)
    return draw(codec, address=address, layer=layer, chunk=chunk, batch=batch, like=like)


def test_new_heads_turn_nothing() -> None:
    heads = LayerHeads(width=6, generators=2)
    weights = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    hidden = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(1))
    (theta,) = predict(heads, [hidden], key=weights[0], value=weights[1], theta_max=1.0)
    assert theta.shape == (3, 2, 2)
    assert not theta.any()
    assert len(RotationHeads(layers=3, width=6, generators=2).layers) == 3


def test_theta_is_psi_of_the_mean_of_keys_and_of_values() -> None:
    heads, generator = LayerHeads(width=6, generators=2), torch.Generator().manual_seed(2)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    weights = torch.randn(2, 6, 5, generator=generator)
    hidden = torch.randn(3, 7, 5, generator=generator)
    chunks = [hidden[:, :4], hidden[:, 4:]]
    thetas = predict(heads, chunks, key=weights[0], value=weights[1], theta_max=0.7)
    for chunk, theta in zip(chunks, thetas, strict=True):
        for row, (side, weight) in enumerate(((heads.key, weights[0]), (heads.value, weights[1]))):
            raw = side(chunk @ weight.mT).mean(dim=1)
            torch.testing.assert_close(theta[:, row], 0.7 * torch.tanh(raw / 0.7), rtol=1e-5, atol=1e-6)
        assert float(theta.detach().abs().max()) < 0.7


def test_psi_keeps_its_precision_where_the_model_computes_in_less() -> None:
    heads, generator = LayerHeads(width=6, generators=1), torch.Generator().manual_seed(3)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    weights, hidden = torch.randn(2, 6, 5, generator=generator), torch.randn(1, 7, 5, generator=generator)
    (exact,) = predict(heads, [hidden], key=weights[0], value=weights[1], theta_max=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        (mixed,) = predict(heads, [hidden], key=weights[0], value=weights[1], theta_max=1.0)
    assert mixed.dtype == torch.float32
    assert torch.equal(exact, mixed)


def test_a_random_theta_depends_on_its_address_alone() -> None:
    first = drawn()
    assert first.shape == (2, 2, 3)
    assert torch.equal(first, drawn())
    assert float(first.abs().max()) < 0.5
    for change in ({"layer": 1}, {"chunk": 4}, {"step": 5}, {"seed": 2}, {"first_sequence": 3}):
        assert not torch.equal(first, drawn(**change))
    assert torch.equal(first[1], drawn(first_sequence=3)[0])
    assert torch.equal(first[0], drawn(batch=1)[0])


def test_random_thetas_fill_their_range() -> None:
    many = torch.cat([drawn(chunk=chunk).flatten() for chunk in range(100)])
    assert abs(float(many.mean())) < 0.05
    assert float(many.std()) == pytest.approx(0.5 / 3**0.5, rel=0.05)


def test_alone_each_chunk_gets_the_theta_before_it() -> None:
    layout = make_layout(num_tokens=12, num_chunks=3, num_ranks=1)
    handover = Handover(alone(), layout, slot=0, wire=torch.float64, turns=Turns())
    thetas = [torch.full((2, 2, 1), float(chunk + 1), dtype=torch.float64, requires_grad=True) for chunk in range(3)]
    shifted = shift_by_one_chunk(thetas, handover=handover)
    assert [float(theta[0, 0, 0].detach()) for theta in shifted] == [0.0, 1.0, 2.0]
    sum((chunk + 1) * theta.sum() for chunk, theta in enumerate(shifted)).backward()
    assert [float(theta.grad[0, 0, 0]) for theta in thetas] == [2.0, 3.0, 0.0]


def test_thetas_are_rounded_to_the_wire_whether_they_travel_or_not() -> None:
    layout = make_layout(num_tokens=12, num_chunks=2, num_ranks=1)
    handover = Handover(alone(), layout, slot=0, wire=torch.float32, turns=Turns())
    thetas = [torch.full((1, 2, 1), 0.1, dtype=torch.float64) for _ in range(2)]
    assert float(shift_by_one_chunk(thetas, handover=handover)[1][0, 0, 0]) == float(torch.tensor(0.1))


def test_which_sources_are_learned() -> None:
    assert [source for source in ("chunk", "previous_chunk", "none", "random") if is_learned(source)] == [
        "chunk",
        "previous_chunk",
    ]
