"""Do measurements at fixed weights agree with the closed forms?  FP64, through the product's probes and losses.

Eqs. 4, 17-20, appendices F.1, G.1 and G.2, on experts of 153 perturbed coordinates. Sampling errors are about 2%.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe
from thinwire.soma import theory
from thinwire.soma.config import Difference
from thinwire.soma.exact_gradients import GradientMoments, gradient_moments, probe_density
from thinwire.soma.model import Expert
from thinwire.soma.spsa import estimate
from thinwire.soma.theory import NoiseTerms
from thinwire.soma.variance import (
    DirectionSample,
    Subject,
    central_spread,
    coordinate_groups,
    grouped_spread,
    one_sided_spread,
    sample_directions,
    small_epsilon_spread,
)

SHAPE = ExpertShape(width=3, depth=1, embed_width=3)  # M = 153
EPSILON = 1e-4
NUM_EXPERTS, DIRECTIONS = 4, 6_400
POOL = 24


def subject(expert: int, *, epsilon: float = EPSILON) -> Subject:
    generator = np.random.default_rng(expert)
    theta = torch.from_numpy(0.6 * generator.standard_normal(SHAPE.num_parameters))
    gain = next(slot for slot in SHAPE.slots if slot.name == "norm")
    theta[gain.start : gain.stop] = 2.0  # else almost all of the gradient would lie in this gain
    weights = Expert(theta, torch.from_numpy(generator.standard_normal((256, SHAPE.embed_width))))
    return Subject(weights, SHAPE, epsilon, implementation="reference")


def windows(count: int, *, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 5), dtype=np.uint8))


class Measured(NamedTuple):
    """An expert's batch gradient and many directions on that batch."""

    moments: GradientMoments
    sample: DirectionSample

    @property
    def terms(self) -> NoiseTerms:
        return theory.recorded_terms([coordinate_groups(self.moments, shape=SHAPE, is_population=False)])

    @property
    def squared_gradient(self) -> float:
        return float(self.moments.mean @ self.moments.mean)


@pytest.fixture(scope="module")
def measured() -> list[Measured]:
    torch.set_num_threads(1)
    found = []
    for expert in range(NUM_EXPERTS):
        of, batch = subject(expert), windows(2, seed=expert)
        moments = gradient_moments(of.expert, shape=SHAPE, windows=batch)
        address = ProbeAddress(stream_key(3, "probe", expert), 1)
        sample = sample_directions(of, windows=batch, address=address, directions=DIRECTIONS, gradient=moments.mean)
        found.append(Measured(moments, sample))
    return found


@pytest.fixture(scope="module")
def probes(measured: list[Measured]) -> np.ndarray:
    """float64 [m, M] of the first expert."""
    address = measured[0].sample.address
    return np.stack([sign_probe(address, shape=SHAPE, direction=j) for j in range(DIRECTIONS)]).astype(float)


def separate_estimates(sample: DirectionSample, *, probes: np.ndarray, n: int, difference: Difference) -> np.ndarray:
    """float64 [m / n, M]: estimates of disjoint groups of n directions."""
    groups = []
    for start in range(0, DIRECTIONS, n):
        part = sample._replace(losses=sample.losses[start : start + n])
        groups.append(part.coefficients(difference) @ probes[start : start + n] / n)
    return np.stack(groups)


def test_the_recorded_distribution_predicts_r_g_within_5_percent(measured: list[Measured]) -> None:
    """At n_pert = 64, each expert alone and all together (appendix G.1)."""
    for one in measured:
        predicted = theory.centred_variance(one.terms, directions=64, difference="central")
        found = central_spread(one.sample, directions=64)
        assert found.variance / one.squared_gradient == pytest.approx(predicted, rel=0.05)
        assert found.standard_error / found.variance < 0.025
        along = small_epsilon_spread(one.sample, directions=64)
        assert found.variance == pytest.approx(along.variance, rel=1e-3)  # eps = 1e-4 alone tells them apart
    blocks = [coordinate_groups(one.moments, shape=SHAPE, is_population=False) for one in measured]
    predicted = theory.centred_variance(theory.recorded_terms(blocks), directions=64, difference="central")
    spread = sum(central_spread(one.sample, directions=64).variance for one in measured)
    assert spread / sum(one.squared_gradient for one in measured) == pytest.approx(predicted, rel=0.03)


def test_variance_falls_as_one_over_n_within_3_percent(measured: list[Measured], probes: np.ndarray) -> None:
    sample = measured[0].sample
    single = central_spread(sample, directions=1).variance
    for n in (1, 2, 4, 8, 16, 32):
        estimates = separate_estimates(sample, probes=probes, n=n, difference="central")
        assert n * estimates.var(axis=0, ddof=1).sum() == pytest.approx(single, rel=0.03)
        assert central_spread(sample, directions=n).variance == pytest.approx(single / n, rel=1e-12)


@pytest.mark.parametrize("n", [2, 4, 16])
def test_one_sided_variance_from_single_directions(measured: list[Measured], probes: np.ndarray, n: int) -> None:
    one = measured[0]
    estimates = separate_estimates(one.sample, probes=probes, n=n, difference="one_sided")
    found = one_sided_spread(one.sample, directions=n)
    assert estimates.var(axis=0, ddof=1).sum() == pytest.approx(found.variance, rel=0.04)
    predicted = theory.centred_variance(one.terms, directions=n, difference="one_sided")
    assert found.variance / one.squared_gradient == pytest.approx(predicted, rel=0.05)
    central = theory.centred_variance(one.terms, directions=n, difference="central")
    assert predicted / central == pytest.approx(n / (n - 1), rel=0.02)


def test_curvature_shows_in_one_sided_differences_at_a_large_epsilon() -> None:
    """At eps = 0.3 the even part of the loss is no longer small: central differences do not see it."""
    large, batch = subject(0, epsilon=0.3), windows(2, seed=0)
    address = ProbeAddress(stream_key(3, "probe", 0), 1)
    sample = sample_directions(large, windows=batch, address=address, directions=2000)
    even = (sample.losses.sum(axis=1) / 2 - sample.losses.mean()) / sample.epsilon
    added = float(even.var(ddof=1)) * probe_density(SHAPE).sum() / 64
    ratio = one_sided_spread(sample, directions=64).variance - central_spread(sample, directions=64).variance * 64 / 63
    assert ratio == pytest.approx(added, rel=0.15)
    assert np.isnan(sample.slopes).all()


def test_independent_losses_have_a_quarter_of_the_summed_ones_variance(measured: list[Measured]) -> None:
    """Four experts, one fixed objective, the same forwards (Figure 11, left)."""
    samples = [one.sample for one in measured]
    independent = grouped_spread(samples, groups=[[0], [1], [2], [3]], directions=64)
    pairs = grouped_spread(samples, groups=[[0, 1], [2, 3]], directions=64)
    summed = grouped_spread(samples, groups=[[0, 1, 2, 3]], directions=64)
    assert summed.variance / independent.variance == pytest.approx(4.00, abs=0.15)
    assert pairs.variance / independent.variance == pytest.approx(2.00, abs=0.08)
    assert independent.variance == pytest.approx(sum(central_spread(one, directions=64).variance for one in samples))
    blocks = [coordinate_groups(one.moments, shape=SHAPE, is_population=False) for one in measured]
    predicted = theory.recorded_terms(theory.summed(blocks)).a / theory.recorded_terms(blocks).a
    assert predicted == pytest.approx(4.0, abs=0.05)


def pool_moments() -> GradientMoments:
    """Batches are drawn from a pool with replacement, so its spread is that of the population: divided by n."""
    moments = gradient_moments(subject(0).expert, shape=SHAPE, windows=windows(POOL, seed=50))
    return moments._replace(variance=moments.variance * (POOL - 1) / POOL)


def pool_terms(moments: GradientMoments) -> NoiseTerms:
    fixed = coordinate_groups(moments, shape=SHAPE, is_population=False)
    drawn = coordinate_groups(moments, shape=SHAPE, is_population=True)
    groups = [one._replace(gradient_variance=other.gradient_variance) for one, other in zip(fixed, drawn, strict=True)]
    return theory.recorded_terms([groups])


def relative_errors(
    *, n: int, batch: int, accumulation: int, difference: Difference, repeats: int, moments: GradientMoments
) -> np.ndarray:
    """|g_hat - g|^2 / |g|^2 of separate draws of batches and probes, g the pool's mean gradient."""
    of, pool = subject(0), windows(POOL, seed=50)
    generator = np.random.default_rng(9)
    found = np.empty(repeats)
    for repeat in range(repeats):

        def losses(address: ProbeAddress) -> torch.Tensor:
            drawn = pool[torch.from_numpy(generator.integers(0, POOL, batch))]
            sample = sample_directions(of, windows=drawn, address=address, directions=n)
            return torch.from_numpy(sample.losses[:, : theory.FORWARDS_PER_DIRECTION[difference]].copy())

        addresses = [ProbeAddress(stream_key(4, "probe", n), repeat, a) for a in range(accumulation)]
        made = estimate(losses, addresses=addresses, shape=SHAPE, epsilon=EPSILON, difference=difference)
        found[repeat] = ((made.gradient.numpy() - moments.mean) ** 2).sum()
    return found / float(moments.mean @ moments.mean)


@pytest.mark.parametrize(("difference", "accumulation"), [("central", 1), ("central", 3), ("one_sided", 3)])
def test_total_error_of_drawn_batches(difference: Difference, accumulation: int) -> None:
    """Eqs. 17 and 19 and the bias of sparse probes, together Eq. 5."""
    moments = pool_moments()
    setting = {"batch": 2, "accumulation": accumulation, "difference": difference}
    errors = relative_errors(n=4, repeats=150, moments=moments, **setting)
    standard_error = errors.std(ddof=1) / np.sqrt(len(errors))
    predicted = theory.relative_error(pool_terms(moments), directions=4, **setting)
    assert abs(errors.mean() - predicted) < 3 * standard_error
    assert standard_error < 0.12 * predicted


def test_the_measured_best_batch_is_the_predicted_one_or_its_neighbour() -> None:
    """n_pert B = 128 held fixed (Figure 11, right)."""
    moments = pool_moments()
    terms, batches = pool_terms(moments), [1, 2, 4, 8, 16, 32]
    found = []
    for batch in batches:
        setting = {"batch": batch, "accumulation": 1, "difference": "central"}
        errors = relative_errors(n=128 // batch, repeats=20, moments=moments, **setting)
        found.append(errors.mean())
        standard_error = errors.std(ddof=1) / np.sqrt(len(errors))
        predicted = theory.relative_error(terms, directions=128 // batch, **setting)
        assert abs(errors.mean() - predicted) < 4 * standard_error
    best = theory.best_allocation(terms, window_forwards=256, difference="central")
    continuous = theory.optimum(terms, product=128)
    assert 1 < continuous.batch < 32
    predicted_place = int(np.argmin([abs(np.log(batch / continuous.batch)) for batch in batches]))
    assert abs(int(np.argmin(found)) - predicted_place) <= 1
    assert best.variance == pytest.approx(continuous.variance, rel=0.1)
