"""How noisy would an expert of another size be?  nu and a as a run measured them, or as we have seen them elsewhere."""

from dataclasses import dataclass
from math import log
from typing import Any

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.exact_gradients import GAIN_DENSITY, ORDINARY_DENSITY
from thinwire.soma.theory import CoordinateGroup, NoiseCosts, NoiseTerms, recorded_terms

SEEN_NU = ((128, 63.0), (1024, 15.0))
"""nu of windows of 128 and of 1,024 bytes: a width-32 expert after a seed run of 300 updates on English web text."""
SEEN_COSTS = NoiseCosts(batch=470.0, signal=850.0)
"""Geometric means of what was seen early (613 to 1,366, and 1,582) and later (202 to 268, and 454); decision 0016."""


@dataclass(frozen=True)
class Measured:
    """What a run's estimates were seen to be made of.

    Attributes:
        terms: of the probes that were used, on windows of the planned size.
        num_parameters: of the expert.
    """

    terms: NoiseTerms
    num_parameters: int


@dataclass(frozen=True)
class NoiseSource:
    """What the closed forms of Eq. (17) are fed with.

    Attributes:
        nu: of Eq. (17), sigma^2 / |g|^2 on windows of the planned size, as ``measure variance`` prints it. The terms
            have the probe-weighted one, |q sigma|^2 / |q g|^2, which differs where gains are more or less noisy.
        measured: None where nobody measured anything.
        origin: where nu and a come from, for people.
        is_assumed: whether nobody measured them for this text, start and window size.
        costs: what batch noise and the gradient cost a step, in units of perturbation noise; the same for every shape.
        costs_assumed: whether nobody measured those.
    """

    nu: float
    measured: Measured | None
    origin: str
    is_assumed: bool
    costs: NoiseCosts
    costs_assumed: bool

    def terms_of(self, shape: ExpertShape) -> NoiseTerms:
        """Of an expert of this shape; nu does not depend on how its coordinates are grouped (appendix F.1).

        choice: a and everything that multiplies it grow in proportion to the coordinates, as d - 1 does for dense
        probes: gradient and noise are taken to lie alike over gains and ordinary weights at every size.
        """
        if self.measured is None:
            return evenly_spread_terms(shape, nu=self.nu)
        ratio, terms = shape.num_parameters / self.measured.num_parameters, self.measured.terms
        return terms._replace(
            **{name: ratio * getattr(terms, name) for name in ("a", "a_nu", "baseline", "baseline_nu")}
        )


def evenly_spread_terms(shape: ExpertShape, *, nu: float) -> NoiseTerms:
    """Of the recorded probes (appendix E) where every coordinate has the same part of |g|^2 and of sigma^2.

    The probe-weighted nu is then nu itself, and a is close to the number of coordinates: half of them are perturbed,
    but only half of the gradient is seen.
    """
    gains = sum(slot.size for slot in shape.slots if slot.is_gain)
    groups = []
    for count, density in ((shape.num_parameters - gains, ORDINARY_DENSITY), (gains, GAIN_DENSITY)):
        part = count / shape.num_parameters
        groups.append(CoordinateGroup(count, density, squared_gradient=part, gradient_variance=nu * part))
    return recorded_terms([groups])


def assumed_noise(window_bytes: int) -> NoiseSource:
    """What we have seen elsewhere.

    choice: nu falls with the window's length by the power law through two measured lengths, and the gradient is taken
    to be spread evenly; both change with text and training, so a plan from them says that they are assumed.
    """
    return NoiseSource(SEEN_NU[-1][1] * _ratio(window_bytes), None, "assumed", True, SEEN_COSTS, True)


def measured_noise(record: dict[str, Any], *, window_bytes: int) -> NoiseSource:
    """From ``RUN/results/variance.json``; for windows of another length nu is carried over by the assumed law.

    Costs that were not measured, or could not be told, are those seen elsewhere.
    """
    kept = record.get("noise_costs")
    costs = NoiseCosts(**kept) if kept else SEEN_COSTS
    terms, nu = NoiseTerms(**record["probe_terms"]), record["nu"]
    updates = ", ".join(f"{update:,}" for update in sorted(set(record["updates"])))
    origin = f"measured at update {updates}"
    if record["window_bytes"] == window_bytes:
        return NoiseSource(nu, Measured(terms, record["num_parameters"]), origin, False, costs, not kept)
    ratio = _ratio(window_bytes) / _ratio(record["window_bytes"])
    carried = terms._replace(nu=ratio * terms.nu, a_nu=ratio * terms.a_nu, baseline_nu=ratio * terms.baseline_nu)
    origin = f"{origin} on windows of {record['window_bytes']:,} bytes"
    return NoiseSource(ratio * nu, Measured(carried, record["num_parameters"]), origin, True, costs, not kept)


def _ratio(window_bytes: int) -> float:
    """nu of such windows over that of 1,024 bytes."""
    (short, of_short), (long, of_long) = SEEN_NU
    power = log(of_short / of_long) / log(long / short)
    return float((long / window_bytes) ** power)
