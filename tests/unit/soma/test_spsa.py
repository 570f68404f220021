"""Are differences and coefficients the formulas', by hand?  (Eqs. 2 and 8; properties lie in tests/properties)"""

import numpy as np
import pytest
import torch

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe, weighted_probe_sum
from thinwire.soma import spsa
from thinwire.soma.spsa import SIGNS, derivatives, differences_of, estimate, gradient_from_differences

SHAPE = ExpertShape(width=3, depth=1, embed_width=2)
ADDRESS = ProbeAddress(stream_key(0, "probe", 2), 9)


def test_central_differences_by_hand() -> None:
    losses = torch.tensor([[3.0, 1.0], [2.0, 2.5]], dtype=torch.float64)
    batch = differences_of(losses, difference="central")
    assert batch.differences.tolist() == [2.0, -0.5]
    assert batch.mean_loss == 2.125
    assert derivatives(batch.differences, epsilon=0.25, difference="central").tolist() == [4.0, -1.0]


def test_one_sided_differences_use_the_mean_of_the_others() -> None:
    plus = [3.0, 1.0, 8.0, 4.0]
    batch = differences_of(torch.tensor(plus, dtype=torch.float64)[:, None], difference="one_sided")
    along = derivatives(batch.differences, epsilon=0.5, difference="one_sided")
    by_hand = [(value - (sum(plus) - value) / 3) / 0.5 for value in plus]
    np.testing.assert_allclose(along, by_hand, rtol=1e-14)
    assert batch.mean_loss == 4.0


def test_signs_evaluated_by_each_difference() -> None:
    assert SIGNS == {"central": (1, -1), "one_sided": (1,)}


@pytest.mark.parametrize("difference", ["central", "one_sided"])
def test_estimate_is_the_weighted_mean_of_its_own_probes(difference: str) -> None:
    generator = np.random.default_rng(0)
    values = torch.from_numpy(generator.standard_normal((5, len(SIGNS[difference]))))
    epsilon = 1e-3
    result = estimate(lambda _: values, addresses=[ADDRESS], shape=SHAPE, epsilon=epsilon, difference=difference)
    plus = values[:, 0].numpy()
    if difference == "central":
        along = (plus - values[:, 1].numpy()) / (2 * epsilon)
    else:
        along = (plus - plus.mean()) / epsilon * 5 / 4
    z = np.stack([sign_probe(ADDRESS, shape=SHAPE, direction=j) for j in range(5)])
    np.testing.assert_allclose(result.gradient.numpy(), along @ z / 5, rtol=1e-12, atol=1e-10)
    assert result.gradient.dtype == torch.float64


def test_differences_alone_rebuild_the_gradient_for_any_threads() -> None:
    differences = [np.random.default_rng(s).standard_normal(7) for s in range(2)]
    addresses = [ADDRESS, ADDRESS._replace(accumulation=1)]
    setting = {"addresses": addresses, "shape": SHAPE, "epsilon": 1e-3, "difference": "central"}
    one = gradient_from_differences(differences, **setting)
    assert torch.equal(gradient_from_differences(differences, **setting, threads=3), one)
    assert not torch.equal(gradient_from_differences(differences[::-1], **setting), one)


def test_every_address_needs_its_differences() -> None:
    with pytest.raises(ValueError):
        gradient_from_differences([np.ones(2)], addresses=[ADDRESS] * 2, shape=SHAPE, epsilon=1.0, difference="central")


@pytest.mark.parametrize("implementation", ["numba", "triton", "reference"])
def test_probes_are_summed_by_the_implementation_of_the_run(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 2)))
    setting = {"addresses": [ADDRESS], "shape": SHAPE, "epsilon": 1e-3, "difference": "central"}
    expected, asked = estimate(lambda _: values, **setting).gradient, []

    def recording(*arguments: object, **rest: object) -> np.ndarray:
        asked.append(rest["implementation"])
        return weighted_probe_sum(*arguments, **rest)

    monkeypatch.setattr(spsa, "weighted_probe_sum", recording)
    found = estimate(lambda _: values, **setting, implementation=implementation).gradient
    assert torch.equal(found, expected)
    assert asked == [implementation]
