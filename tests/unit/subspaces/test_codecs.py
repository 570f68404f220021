"""Does every codec keep its promises: same keys for every reader, exact gradients, and the bytes it said?"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from thinwire.subspaces.basis import random_basis, weight_basis
from thinwire.subspaces.codecs.base import Codec, Coded
from thinwire.subspaces.codecs.plain import PlainCodec
from thinwire.subspaces.codecs.quantised import QuantisedCodec
from thinwire.subspaces.codecs.subspace import SubspaceCodec
from thinwire.subspaces.codecs.top_k import TopKCodec
from thinwire.subspaces.rotation import Rotation, generators

WIDTH, MODEL_WIDTH = 7, 10  # odd, so that bits and nibbles do not fill their bytes
WIRES = [torch.bfloat16, torch.float32, torch.float64]
Maker = Callable[[torch.dtype], Codec]


def _rotated(wire: torch.dtype, *, count: int, rank: int = 3, dtype: torch.dtype = torch.float64) -> SubspaceCodec:
    basis = random_basis(1, layer=0, side="key", width=WIDTH, rank=rank).to(dtype)
    skew = generators(1, layer=0, side="key", width=WIDTH, count=count, norm="spectral")
    rotation = Rotation(basis, skew, exponential="taylor", order=2, theta_max=1.0)
    return SubspaceCodec(width=WIDTH, wire=wire, rank=rank, num_generators=count, rotation=rotation)


def _fixed(wire: torch.dtype) -> SubspaceCodec:
    basis = random_basis(1, layer=0, side="key", width=WIDTH, rank=3)
    return SubspaceCodec(width=WIDTH, wire=wire, rank=3, num_generators=0, rotation=basis)


MAKERS: dict[str, Maker] = {
    "plain": lambda wire: PlainCodec(width=WIDTH, wire=wire),
    "subspace k=1": lambda wire: _rotated(wire, count=1),
    "subspace k=3": lambda wire: _rotated(wire, count=3),
    "subspace rank 1": lambda wire: _rotated(wire, count=1, rank=1),
    "subspace fixed": _fixed,
    "top_k": lambda wire: TopKCodec(width=WIDTH, wire=wire, keep_fraction=0.3),
    "quantised 4": lambda wire: QuantisedCodec(width=WIDTH, wire=wire, bits=4, group=7),
    "quantised 2": lambda wire: QuantisedCodec(width=WIDTH, wire=wire, bits=2, group=1),
    "quantised 8": lambda wire: QuantisedCodec(width=WIDTH, wire=wire, bits=8, group=7),
}
EXACT = [name for name in MAKERS if "quantised" not in name]
every_codec = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
exact_codecs = pytest.mark.parametrize("make", [MAKERS[name] for name in EXACT], ids=EXACT)
every_wire = pytest.mark.parametrize("wire", WIRES, ids=["bfloat16", "float32", "float64"])
sizes = pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (2, 1), (1, 5), (2, 6)])


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _weight() -> Tensor:
    return _normal(WIDTH, MODEL_WIDTH, seed=9)


def _theta(codec: Codec, *, batch: int) -> Tensor | None:
    if isinstance(codec, SubspaceCodec) and codec.needs_theta:
        return _normal(batch, codec.num_generators, seed=7) / 2
    return None


def _encoded(codec: Codec, *, batch: int, tokens: int) -> Coded:
    hidden = _normal(batch, tokens, MODEL_WIDTH)
    return codec.encode(hidden, _weight(), theta=_theta(codec, batch=batch))


def _through_the_wire(codec: Codec, coded: Coded, *, tokens: int, dtype: torch.dtype = torch.float64) -> Coded:
    return codec.unpack(codec.pack(coded), tokens=tokens, dtype=dtype)


@every_codec
@every_wire
@sizes
def test_what_travels_is_what_was_said(make: Maker, wire: torch.dtype, batch: int, tokens: int) -> None:
    codec = make(wire)
    coded = _encoded(codec, batch=batch, tokens=tokens)
    packed = codec.pack(coded)
    specs = codec.wire_specs(batch=batch, tokens=tokens)
    assert [(tuple(t.shape), t.dtype) for t in packed] == [tuple(spec) for spec in specs]
    assert codec.wire_bytes(batch=batch, tokens=tokens) == sum(t.numel() * t.element_size() for t in packed)
    assert not any(t.requires_grad for t in packed)
    back = codec.gradient_specs(batch=batch, tokens=tokens)
    assert [spec.shape for spec in back] == [tuple(carrier.shape) for carrier in coded.carriers]
    assert codec.gradient_bytes(batch=batch, tokens=tokens) == sum(math.prod(s.shape) * s.dtype.itemsize for s in back)


@exact_codecs
@every_wire
@sizes
def test_carriers_arrive_rounded_to_the_wire_and_no_further(
    make: Maker, wire: torch.dtype, batch: int, tokens: int
) -> None:
    codec = make(wire)
    coded = _encoded(codec, batch=batch, tokens=tokens)
    arrived = _through_the_wire(codec, coded, tokens=tokens)
    types = [spec.dtype for spec in codec.gradient_specs(batch=batch, tokens=tokens)]
    for sent, seen, dtype in zip(coded.carriers, arrived.carriers, types, strict=True):
        assert torch.equal(seen, sent.to(dtype).double())
    for sent, seen in zip(coded.extra, arrived.extra, strict=True):
        assert torch.equal(seen, sent)
    again = codec.pack(arrived)
    assert all(torch.equal(a, b) for a, b in zip(again, codec.pack(coded), strict=True))


@exact_codecs
def test_a_float64_wire_loses_nothing(make: Maker) -> None:
    codec = make(torch.float64)
    coded = _encoded(codec, batch=2, tokens=5)
    assert torch.equal(codec.decode(_through_the_wire(codec, coded, tokens=5)), codec.decode(coded))


@every_codec
def test_carriers_of_a_reader_are_new_leaves(make: Maker) -> None:
    codec = make(torch.float64)
    hidden = _normal(2, 5, MODEL_WIDTH).requires_grad_(True)
    packed = codec.pack(codec.encode(hidden, _weight(), theta=_theta(codec, batch=2)))
    arrived = codec.unpack(packed, tokens=5, dtype=torch.float64)
    sent = {t.data_ptr() for t in packed}
    assert not any(c.requires_grad or c.data_ptr() in sent for c in arrived.carriers)


@exact_codecs
@pytest.mark.parametrize("tokens", [1, 40])
def test_gradients_of_encode_and_decode(make: Maker, tokens: int) -> None:
    codec = make(torch.float64)
    hidden, weight = _normal(2, tokens, MODEL_WIDTH), _weight()
    theta = _theta(codec, batch=2)
    inputs = [t.requires_grad_(True) for t in (hidden, weight, theta) if t is not None]

    def there_and_back(*given: Tensor) -> Tensor:
        return codec.decode(codec.encode(given[0], given[1], theta=given[2] if theta is not None else None))

    # at 40 tokens a random direction is checked instead of every entry
    assert torch.autograd.gradcheck(there_and_back, inputs, fast_mode=tokens == 40)


@every_codec
def test_gradients_of_decode_alone(make: Maker) -> None:
    codec = make(torch.float64)
    arrived = _through_the_wire(codec, _encoded(codec, batch=2, tokens=3), tokens=3)
    leaves = [carrier.requires_grad_(True) for carrier in arrived.carriers]
    assert torch.autograd.gradcheck(lambda *c: codec.decode(Coded(tuple(c), arrived.extra)) * 1.0, leaves)


@pytest.mark.parametrize("name", ["quantised 4", "quantised 2", "quantised 8"])
def test_gradients_pass_straight_through_quantisation(name: str) -> None:
    """A gradient at the reader's keys reaches the owner's weights as if nothing had been rounded."""
    codec, plain = MAKERS[name](torch.float64), MAKERS["plain"](torch.float64)
    gradient, found = _normal(2, 5, WIDTH, seed=3), []
    for each in (codec, plain):
        hidden, weight = _normal(2, 5, MODEL_WIDTH).requires_grad_(True), _weight().requires_grad_(True)
        coded = each.encode(hidden, weight, theta=None)
        read = _through_the_wire(each, coded, tokens=5).carriers[0].requires_grad_(True)
        (at_reader,) = torch.autograd.grad(each.decode(Coded((read,))), read, gradient)
        found.append(torch.autograd.grad(coded.carriers[0], (hidden, weight), at_reader))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@every_codec
@every_wire
def test_a_nan_arrives(make: Maker, wire: torch.dtype) -> None:
    codec = make(wire)
    hidden = _normal(2, 5, MODEL_WIDTH)
    hidden[1, 2, 3] = math.nan
    coded = codec.encode(hidden, _weight(), theta=_theta(codec, batch=2))
    seen = codec.decode(_through_the_wire(codec, coded, tokens=5))
    assert seen[1, 2].isnan().all() if not isinstance(codec, TopKCodec) else seen[1, 2].isnan().any()
    assert seen[0].isfinite().all()


@every_codec
@every_wire
def test_a_chunk_of_zeros_stays_zero(make: Maker, wire: torch.dtype) -> None:
    codec = make(wire)
    coded = codec.encode(torch.zeros(2, 5, MODEL_WIDTH, dtype=torch.float64), _weight(), theta=_theta(codec, batch=2))
    assert torch.equal(codec.decode(_through_the_wire(codec, coded, tokens=5)), torch.zeros(2, 5, WIDTH).double())


@every_codec
def test_sequences_of_a_batch_do_not_mix(make: Maker) -> None:
    codec = make(torch.float64)
    hidden, theta = _normal(2, 5, MODEL_WIDTH), _theta(codec, batch=2)
    both = codec.decode(_through_the_wire(codec, codec.encode(hidden, _weight(), theta=theta), tokens=5))
    for row in range(2):
        part = slice(row, row + 1)
        alone = codec.encode(hidden[part], _weight(), theta=None if theta is None else theta[part])
        seen = codec.decode(_through_the_wire(codec, alone, tokens=5))
        torch.testing.assert_close(both[part], seen, rtol=0, atol=1e-13)


@every_codec
@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float32])
def test_compute_types(make: Maker, compute: torch.dtype) -> None:
    """BF16 activations with FP32 weights and frames: theta stays FP32, keys come out as BF16."""
    codec = make(torch.bfloat16)
    if isinstance(codec, SubspaceCodec) and codec.needs_theta:
        codec = _rotated(torch.bfloat16, count=codec.num_generators, rank=codec.rank, dtype=torch.float32)
    theta = _theta(codec, batch=2)
    hidden = _normal(2, 5, MODEL_WIDTH)
    coded = codec.encode(hidden.to(compute), _weight().float(), theta=None if theta is None else theta.float())
    arrived = _through_the_wire(codec, coded, tokens=5, dtype=compute)
    assert coded.carriers[0].dtype == arrived.carriers[0].dtype == codec.decode(arrived).dtype == compute
    if theta is not None:
        assert arrived.carriers[1].dtype == torch.float32
    exact = codec.decode(_through_the_wire(codec, codec.encode(hidden, _weight(), theta=theta), tokens=5))
    if not isinstance(codec, TopKCodec | QuantisedCodec):
        assert (codec.decode(arrived) - exact).norm() < 0.02 * exact.norm()


def test_full_rank_without_a_turn_is_plain() -> None:
    codec = _rotated(torch.float64, count=2, rank=WIDTH)
    plain = MAKERS["plain"](torch.float64)
    hidden = _normal(2, 5, MODEL_WIDTH)
    coded = codec.encode(hidden, _weight(), theta=torch.zeros(2, 2, dtype=torch.float64))
    expected = plain.decode(plain.encode(hidden, _weight(), theta=None))
    torch.testing.assert_close(codec.decode(coded), expected, rtol=0, atol=1e-12)


def test_a_weight_inside_the_subspace_is_kept() -> None:
    basis = random_basis(1, layer=0, side="key", width=WIDTH, rank=3)
    inside = basis @ _normal(3, MODEL_WIDTH)
    codec = SubspaceCodec(width=WIDTH, wire=torch.float64, rank=3, num_generators=0, rotation=weight_basis(inside, 3))
    hidden = _normal(2, 5, MODEL_WIDTH, seed=4)
    seen = codec.decode(codec.encode(hidden, inside, theta=None))
    torch.testing.assert_close(seen, hidden @ inside.mT, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_both_orders_of_the_projection_agree(tokens: int) -> None:
    codec = _rotated(torch.float64, count=1)
    hidden, theta = _normal(2, tokens, MODEL_WIDTH), _normal(2, 1)
    frame = codec.frame(theta)
    expected = (hidden @ _weight().mT) @ frame
    assert frame.shape == (2, WIDTH, 3)
    torch.testing.assert_close(codec.encode(hidden, _weight(), theta=theta).carriers[0], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("tokens", "products"), [(64, 32 * 4 * (32 + 64)), (1, 32 * (32 + 4))])
def test_the_projection_takes_the_fewest_products(tokens: int, products: int) -> None:
    """B U first for a chunk, whose tokens then cost d r each; X B first for a single token."""
    frame, hidden = torch.eye(32)[:, :4].contiguous(), torch.ones(1, tokens, 32)
    codec = SubspaceCodec(width=32, wire=torch.float32, rank=4, num_generators=0, rotation=frame)
    with FlopCounterMode(display=False) as counter:
        codec.encode(hidden, torch.ones(32, 32), theta=None)
    assert counter.get_total_flops() == 2 * products


def test_decoding_is_the_folded_weight() -> None:
    """W = B U U^T: what a reader rebuilds is what an ordinary layer with that weight computes."""
    codec = _rotated(torch.float64, count=2)
    hidden, theta = _normal(1, 5, MODEL_WIDTH), _normal(1, 2) / 2
    frame = codec.frame(theta)[0]
    folded = frame @ frame.mT @ _weight()
    seen = codec.decode(codec.encode(hidden, _weight(), theta=theta))
    torch.testing.assert_close(seen, hidden @ folded.mT, rtol=0, atol=1e-13)


def test_theta_travels_in_single_precision_at_least() -> None:
    for wire, theta_wire in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        coefficients, theta = _rotated(wire, count=3).wire_specs(batch=2, tokens=4)
        assert (coefficients.dtype, theta.dtype) == (wire, theta_wire)
        assert theta.shape == (2, 3)
    assert len(_fixed(torch.float32).wire_specs(batch=2, tokens=4)) == 1


def test_a_theta_must_match_the_codec() -> None:
    hidden = _normal(1, 2, MODEL_WIDTH)
    with pytest.raises(ValueError, match="is needed"):
        _rotated(torch.float32, count=1).encode(hidden, _weight(), theta=None)
    with pytest.raises(ValueError, match="takes no theta"):
        _fixed(torch.float32).encode(hidden, _weight(), theta=torch.zeros(1, 1))


@pytest.mark.parametrize("rank", [0, WIDTH + 1])
def test_a_rank_that_does_not_fit_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="d_kv = 7"):
        SubspaceCodec(width=WIDTH, wire=torch.float32, rank=rank, num_generators=0, rotation=None)


def test_a_frame_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(7, 2\), not \(7, 3\)"):
        SubspaceCodec(width=WIDTH, wire=torch.float32, rank=3, num_generators=0, rotation=torch.zeros(WIDTH, 2))


def test_top_k_keeps_the_largest_entries_of_each_sequence() -> None:
    codec = TopKCodec(width=WIDTH, wire=torch.float64, keep_fraction=0.2)
    hidden = _normal(2, 5, MODEL_WIDTH)
    z = hidden @ _weight().mT
    seen = codec.decode(codec.encode(hidden, _weight(), theta=None))
    for row, found in zip(z, seen, strict=True):
        kept = found != 0
        assert kept.sum() == codec.num_kept(tokens=5) == 7
        assert torch.equal(found[kept], row[kept])
        assert row[kept].abs().min() > row[~kept].abs().max()


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_top_k_at_its_ends(fraction: float) -> None:
    codec = TopKCodec(width=WIDTH, wire=torch.float64, keep_fraction=fraction)
    hidden = _normal(2, 3, MODEL_WIDTH)
    seen = codec.decode(_through_the_wire(codec, codec.encode(hidden, _weight(), theta=None), tokens=3))
    if fraction == 1.0:
        assert torch.equal(seen, hidden @ _weight().mT)
    else:
        assert (seen != 0).flatten(1).sum(1).tolist() == [1, 1]


def test_top_k_with_equal_entries_keeps_as_many_as_it_said() -> None:
    codec = TopKCodec(width=WIDTH, wire=torch.float32, keep_fraction=0.3)
    coded = codec.encode(torch.ones(2, 3, MODEL_WIDTH), torch.ones(WIDTH, MODEL_WIDTH), theta=None)
    assert coded.extra[0].flatten(1).sum(1).tolist() == [6, 6]
    assert torch.equal(codec.decode(coded).flatten(1).sum(1), torch.full((2,), 60.0))


@pytest.mark.parametrize(("bits", "group"), [(2, 7), (4, 7), (8, 7), (4, 1)])
def test_quantised_entries_are_within_half_a_step(bits: int, group: int) -> None:
    codec = QuantisedCodec(width=WIDTH, wire=torch.bfloat16, bits=bits, group=group)
    hidden = _normal(2, 50, MODEL_WIDTH)
    z = hidden @ _weight().mT
    seen = codec.decode(_through_the_wire(codec, codec.encode(hidden, _weight(), theta=None), tokens=50))
    grouped = z.unflatten(-1, (-1, group))
    step = (grouped.amax(-1) - grouped.amin(-1)) / (2**bits - 1)
    # BF16 offsets and scales move the grid by up to 2^-8 of the largest entry
    allowed = step / 2 + 2.0**-8 * 2 * grouped.abs().amax(-1)
    assert ((seen - z).unflatten(-1, (-1, group)).abs() <= allowed[..., None]).all()


def test_more_bits_are_better() -> None:
    hidden, errors = _normal(2, 50, MODEL_WIDTH), []
    for bits in (2, 4, 8):
        codec = QuantisedCodec(width=WIDTH, wire=torch.bfloat16, bits=bits, group=WIDTH)
        seen = codec.decode(_through_the_wire(codec, codec.encode(hidden, _weight(), theta=None), tokens=50))
        errors.append((seen - hidden @ _weight().mT).norm().item())
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@pytest.mark.parametrize("value", [1.0, -3.3, 1e-30, 1e30])
def test_a_constant_chunk_is_quantised_without_dividing_by_zero(value: float) -> None:
    codec = MAKERS["quantised 4"](torch.bfloat16)
    coded = Coded((torch.full((1, 3, WIDTH), value, dtype=torch.float64),))
    seen = codec.decode(_through_the_wire(codec, coded, tokens=3))
    torch.testing.assert_close(seen, coded.carriers[0], rtol=2.0**-8, atol=0)


def test_a_nan_spoils_its_own_group_alone() -> None:
    codec = QuantisedCodec(width=6, wire=torch.bfloat16, bits=4, group=3)
    z = torch.ones(1, 2, 6)
    z[0, 1, 4] = math.nan
    seen = codec.decode(_through_the_wire(codec, Coded((z,)), tokens=2))
    assert seen.isnan()[0].tolist() == [[False] * 6, [False] * 3 + [True] * 3]


@pytest.mark.parametrize(("bits", "group"), [(3, 7), (4, 2), (4, 0)])
def test_quantisation_that_does_not_fit_is_refused(bits: int, group: int) -> None:
    with pytest.raises(ValueError):
        QuantisedCodec(width=WIDTH, wire=torch.bfloat16, bits=bits, group=group)


def test_a_frame_keeps_its_precision_under_mixed_products() -> None:
    """Forward runs under autocast, backward does not; both must use the same keys."""
    codec = _rotated(torch.bfloat16, count=3, dtype=torch.float32)
    theta = _normal(2, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = codec.frame(theta)
    assert torch.equal(mixed, codec.frame(theta))
