"""Is what does not fit refused, alike by every implementation, and does a view with strides give the same bits?

The hook that checks annotations in tests is off here: a user's calls are not checked by it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.base.seeds import StreamKey, stream_key
from thinwire.kernels import throughput
from thinwire.kernels.dispatch import check_precision
from thinwire.kernels.eggroll import api as eggroll
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.partial_attention.api import partial_attention, partial_attention_backward
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores
from thinwire.kernels.routed_scores.resident import ResidentExperts
from thinwire.kernels.routed_scores.writing import Continuation, continue_texts, read_text
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe, weighted_probe_sum

SHAPE = ExpertShape(width=8, depth=1, embed_width=8)
WIDE = ExpertShape(width=232, embed_width=32)
ADDRESS = ProbeAddress(stream_key(3, "probe", 1), 5, 1)
IMPLEMENTATIONS = ("numba", "reference", "triton")
EGGROLL = eggroll.EggrollShape(width=5, depth=1)
RULES = eggroll.EggrollRules()

Arguments = dict[str, Any]
Change = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def losses_of(shape: ExpertShape = SHAPE) -> Arguments:
    generator = torch.Generator().manual_seed(0)
    return {
        "theta": 0.2 * torch.randn(shape.num_parameters, generator=generator),
        "shape": shape,
        "decoder": 0.3 * torch.randn(256, shape.embed_width, generator=generator),
        "windows": torch.randint(0, 256, (3, 5), generator=generator, dtype=torch.uint8),
        "address": ADDRESS,
        "directions": range(2),
        "epsilon": 1e-3,
    }


def scores_of(shape: ExpertShape = SHAPE) -> Arguments:
    given = losses_of(shape)
    return {
        "thetas": torch.stack([given["theta"] * factor for factor in (1.0, 0.5, 2.0)]),
        "shape": shape,
        "decoder": given["decoder"],
        "windows": given["windows"],
        "experts": torch.tensor([[0, 1], [1, 2], [2, 0]]),
        "first_target": 1,
    }


def inputs_of(shape: ExpertShape = SHAPE) -> Arguments:
    given = losses_of(shape)
    return {name: given[name] for name in ("theta", "shape", "decoder", "windows")}


def eggroll_of() -> Arguments:
    generator = torch.Generator().manual_seed(0)
    return {
        "theta": eggroll.initial_theta(EGGROLL, seed=1),
        "shape": EGGROLL,
        "rules": RULES,
        "windows": torch.randint(0, 256, (3, 5), generator=generator, dtype=torch.uint8),
        "address": eggroll.NoiseAddress(stream_key(3, "eggroll"), 5),
        "pairs": range(2, 7),
        "state": torch.randn(3, 1, 5, generator=generator),
    }


def called(function: Callable[..., Any], given: Arguments) -> Any:
    first, *_ = given
    return function(given[first], **{name: value for name, value in given.items() if name != first})


def strided(array: Tensor) -> Tensor:
    """The same numbers, every other place of twice as many; what lies between is not to be read."""
    between = torch.full_like(array, 9)
    view = torch.stack([array, between], dim=-1)[..., 0]
    assert not view.is_contiguous()
    return view


@pytest.mark.parametrize("shape", [SHAPE, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    ("function", "arguments", "names"),
    [
        (expert_losses, losses_of, ("theta", "decoder", "windows")),
        (routed_scores, scores_of, ("thetas", "decoder", "windows", "experts")),
        (decoder_inputs, inputs_of, ("theta", "decoder", "windows")),
    ],
    ids=["expert_losses", "routed_scores", "decoder_inputs"],
)
def test_strides_change_no_bit(
    function: Callable[..., Tensor], arguments: Callable[..., Arguments], names: tuple[str, ...], shape: ExpertShape
) -> None:
    given = arguments(shape) | {"implementation": "numba"}
    expected = called(function, given)
    for name in names:
        assert torch.equal(called(function, given | {name: strided(given[name])}), expected), name
    turned = given | {"windows": given["windows"].t().contiguous().t()}
    assert torch.equal(called(function, turned), expected)


def test_strides_change_no_bit_of_eggroll() -> None:
    given = eggroll_of() | {"implementation": "numba"}
    expected = called(eggroll.eggroll_losses, given)
    for name in ("theta", "windows", "state"):
        assert torch.equal(called(eggroll.eggroll_losses, given | {name: strided(given[name])}), expected), name


def test_weights_that_need_a_gradient_are_read_as_they_are() -> None:
    given = losses_of() | {"implementation": "numba"}
    asked = given | {"theta": given["theta"].clone().requires_grad_()}
    assert torch.equal(called(expert_losses, asked), called(expert_losses, given))


THETA: list[tuple[str, str, Change]] = [
    ("theta", r"theta is \[1048\]", lambda theta: theta[:-1]),
    ("theta", r"theta is \[1048\]", lambda theta: torch.cat([theta, torch.ones(5)])),
    ("theta", r"theta is \[1048\]", lambda theta: theta[None]),
    ("theta", "floating point", lambda theta: theta.long()),
]
DECODER: list[tuple[str, str, Change]] = [
    ("decoder", r"decoder is \[256, 8\]", lambda decoder: decoder[:, :4]),
    ("decoder", r"decoder is \[256, 8\]", lambda decoder: decoder[:255]),
    ("decoder", r"decoder is \[256, 8\]", lambda decoder: torch.stack([decoder] * 2)),
    ("decoder", "alike in dtype", lambda decoder: decoder.double()),
]
WINDOWS: list[tuple[str, str, Change]] = [
    ("windows", "windows are uint8", lambda windows: windows.long() + 300),
    ("windows", "windows are uint8", lambda windows: windows[0]),
    ("windows", "input and target", lambda windows: windows[:, :1]),
]
NO_WINDOW: list[tuple[str, str, Change]] = [("windows", "at least 1", lambda windows: windows[:0])]
UPDATES: list[tuple[str, str, Change]] = [
    ("address", "update is in 0..2", lambda address: address._replace(update=-1)),
    ("address", "update is in 0..2", lambda address: address._replace(update=2**32)),
    ("address", "key.high is in 0..2", lambda address: address._replace(key=StreamKey(0, 2**32))),
]
LOSSES = [
    *THETA,
    *DECODER,
    *WINDOWS,
    *NO_WINDOW,
    *UPDATES,
    ("address", "accumulation is in 0..2", lambda address: address._replace(accumulation=2**32)),
    ("directions", "directions are in 0..2", lambda _: range(-1, 1)),
    ("directions", "directions are in 0..2", lambda _: range(2**32 - 1, 2**32 + 1)),
    ("signs", "at least one", lambda _: ()),
]
SCORES = [
    ("thetas", r"thetas are \[N, 1048\]", lambda thetas: thetas[:, :-1]),
    ("thetas", "N at least 1", lambda thetas: thetas[:0]),
    *DECODER,
    *WINDOWS,
    ("experts", r"counted 0\.\.2, and there is no expert 3", lambda experts: experts + 1),
    ("experts", r"counted 0\.\.2, and there is no expert -1", lambda experts: experts - 1),
    ("experts", "signed integers", lambda experts: experts.float()),
    ("experts", r"signed integers \[3, k\]", lambda experts: experts[:2]),
    ("experts", r"signed integers \[3, k\]", lambda experts: experts[:, 0]),
    ("first_target", r"first_target is in 0\.\.3", lambda _: -1),
    ("first_target", r"first_target is in 0\.\.3", lambda _: 4),
]
EGGROLLS = [
    ("theta", "theta is", lambda theta: theta[:-1]),
    *WINDOWS,
    *NO_WINDOW,
    *UPDATES,
    ("pairs", "pairs are in 0..2", lambda _: range(2**32 - 1, 2**32 + 1)),
    ("state", r"state is \[3, 1, 5\]", lambda state: state[:2]),
    ("state", r"state is \[3, 1, 5\]", lambda state: state[..., :4]),
]


def refuses(function: Callable[..., Any], given: Arguments, change: tuple[str, str, Change]) -> None:
    name, message, of = change
    with pytest.raises(ValueError, match=message):
        called(function, given | {name: of(given.get(name))})


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("change", LOSSES)
def test_losses_of_what_does_not_fit_are_refused(change: tuple[str, str, Change], implementation: str) -> None:
    refuses(expert_losses, losses_of() | {"implementation": implementation}, change)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("change", SCORES)
def test_scores_of_what_does_not_fit_are_refused(change: tuple[str, str, Change], implementation: str) -> None:
    refuses(routed_scores, scores_of() | {"implementation": implementation}, change)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("change", [*THETA, *DECODER, *WINDOWS, *NO_WINDOW])
def test_decoder_inputs_of_what_does_not_fit_are_refused(change: tuple[str, str, Change], implementation: str) -> None:
    refuses(decoder_inputs, inputs_of() | {"implementation": implementation}, change)


@pytest.mark.parametrize("implementation", ["numba", "reference"])
@pytest.mark.parametrize("change", EGGROLLS)
def test_eggroll_of_what_does_not_fit_is_refused(change: tuple[str, str, Change], implementation: str) -> None:
    given = eggroll_of() | {"implementation": implementation}
    refuses(eggroll.eggroll_losses, given, change)
    if change[0] in {"theta", "windows", "state"}:
        unperturbed = {name: value for name, value in given.items() if name not in {"address", "pairs"}}
        refuses(eggroll.window_losses, unperturbed, change)


def test_sums_of_eggrolls_perturbations_need_pairs() -> None:
    given = eggroll_of()
    common: Arguments = {"shape": EGGROLL, "address": given["address"]}
    with pytest.raises(ValueError, match="signs are"):
        eggroll.perturbation_sum(np.ones((2, 2)), **common)
    with pytest.raises(ValueError, match="numbers of signs"):
        eggroll.perturbation_sum(np.ones(2), **common, first_pair=2**32 - 1)
    with pytest.raises(ValueError, match="theta is"):
        eggroll.sign_update(given["theta"][:-1], np.ones(2), **common, rules=RULES)
    with pytest.raises(ValueError, match="at least one pair"):
        eggroll.sign_update(given["theta"], np.ones(0), **common, rules=RULES)
    with pytest.raises(ValueError, match="as theta"):
        eggroll.move(given["theta"], np.zeros(3), num_pairs=1, rules=RULES)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nothing_asked_for_is_nothing_answered(implementation: str) -> None:
    empty = called(expert_losses, losses_of() | {"directions": range(0), "implementation": implementation})
    assert empty.shape == (0, 2)
    given = scores_of() | {"implementation": implementation}
    none = {"windows": given["windows"][:0], "experts": given["experts"][:0]}
    assert called(routed_scores, given | none).shape == (0, 2, 3)
    assert called(routed_scores, given | {"experts": given["experts"][:, :0]}).shape == (3, 0, 3)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_probes_of_no_32_bit_word_are_refused(implementation: str) -> None:
    common: Arguments = {"shape": SHAPE, "implementation": implementation}
    for direction in (-1, 2**32):
        with pytest.raises(ValueError, match="direction is"):
            sign_probe(ADDRESS, direction=direction, **common)
    with pytest.raises(ValueError, match="update is"):
        sign_probe(ADDRESS._replace(update=2**32), direction=0, **common)
    with pytest.raises(ValueError, match="numbers of weights"):
        weighted_probe_sum(np.ones(3), address=ADDRESS, first_direction=2**32 - 1, **common)
    with pytest.raises(ValueError, match="accumulation is"):
        weighted_probe_sum(np.ones(3), address=ADDRESS._replace(accumulation=-1), **common)
    with pytest.raises(ValueError, match="weights are"):
        weighted_probe_sum(np.ones((3, 2)), address=ADDRESS, **common)
    assert not weighted_probe_sum(np.ones(0), address=ADDRESS, **common).any()


def test_resident_experts_are_those_asked_for() -> None:
    given = scores_of()
    arrays = given["thetas"].numpy(), given["decoder"].numpy()
    held = ResidentExperts(arrays[0], shape=SHAPE, decoder=arrays[1])
    asked = given | {"implementation": "numba"}
    assert torch.equal(called(routed_scores, asked | {"resident": held}), called(routed_scores, asked))
    other = ExpertShape(width=4, depth=1, embed_width=8)
    of_other = ResidentExperts(np.zeros((3, other.num_parameters), np.float32), shape=other, decoder=arrays[1])
    for wrong in (
        ResidentExperts(arrays[0][:2], shape=SHAPE, decoder=arrays[1]),
        ResidentExperts(arrays[0], shape=SHAPE, decoder=np.stack([arrays[1]] * 3)),
        of_other,
    ):
        with pytest.raises(ValueError, match="resident holds"):
            called(routed_scores, asked | {"resident": wrong})


def test_packed_experts_must_fit() -> None:
    thetas, decoder = scores_of()["thetas"].numpy(), losses_of()["decoder"].numpy()
    for wrong_thetas, wrong_decoder, message in (
        (thetas[:, :-1], decoder, "thetas are"),
        (thetas, decoder[:255], "the decoder is"),
        (thetas, np.stack([decoder] * 2), "the decoder is"),
        (thetas, decoder.astype(float), "float32"),
    ):
        with pytest.raises(ValueError, match=message):
            ResidentExperts(wrong_thetas, shape=SHAPE, decoder=wrong_decoder)
    model = ResidentExperts(thetas, shape=SHAPE, decoder=decoder)
    for expert in (-1, 3):
        with pytest.raises(ValueError, match=f"no expert {expert}"):
            read_text(model, [expert], b"text")
    (reading,) = read_text(model, [1], b"text")
    short = Continuation([reading], np.ones(0), np.zeros(2))
    with pytest.raises(ValueError, match="readings, weights"):
        continue_texts(model, experts=[1], texts=[short], temperature=1.0)


@pytest.mark.parametrize("name", ["width", "depth", "embed_width"])
@pytest.mark.parametrize("value", [-3, 0, 4.5, "4"])
def test_sizes_are_whole_numbers_of_at_least_one(name: str, value: object) -> None:
    sizes: Arguments = {"width": 4, name: value}
    with pytest.raises(ValueError, match=f"{name} is a whole number of at least 1"):
        ExpertShape(**sizes)
    if name != "embed_width":
        with pytest.raises(ValueError, match=f"{name} is a whole number of at least 1"):
            eggroll.EggrollShape(**sizes)


@pytest.mark.parametrize("name", ["threads", "batch", "input_bytes", "directions", "repeats"])
def test_a_throughput_of_nothing_is_refused(name: str) -> None:
    counts = {"threads": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} is a whole number of at least 1"):
        throughput.measure(**counts)


def test_an_unknown_precision_is_refused() -> None:
    wrong: Any = "tf16"
    with pytest.raises(UserError, match="no precision 'tf16'"):
        check_precision(wrong, chosen="triton")


@pytest.mark.parametrize("implementation", ["flash", "reference"])
def test_attention_of_what_does_not_fit_is_refused(implementation: str) -> None:
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    common: Arguments = {"mask": "causal", "implementation": implementation}
    for wrong_q, wrong_k, wrong_v in ((q, k, k[:, :, :2]), (q, k[..., :4], k[..., :4]), (q[0], k, k)):
        with pytest.raises(ValueError, match="queries are"):
            partial_attention(wrong_q, wrong_k, wrong_v, **common)
    with pytest.raises(ValueError, match="a mask is one of causal, full"):
        partial_attention(q, k, k, **common | {"mask": "windowed"})
    with pytest.raises(ValueError, match="lse"):
        partial_attention_backward(q, q, k, k, out=q, lse=torch.zeros(1, 4, 2), **common)
