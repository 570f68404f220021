"""How noisy would an expert of another size be?  nu and a as a run measured them, or as we have seen them elsewhere."""

from dataclasses import dataclass
from math import log
from typing import Any

from thinwire.soma.theory import NoiseTerms, dense_terms

SEEN_NU = ((128, 63.0), (1024, 15.0))
"""nu of windows of 128 and of 1,024 bytes: a width-32 expert after a seed run of 300 updates on English web text."""


@dataclass(frozen=True)
class NoiseSource:
    """What the closed forms of Eq. (17) are fed with.

    Attributes:
        terms: of an expert with ``num_parameters`` coordinates, on windows of the planned size.
        num_parameters: None where ``terms`` are the dense ones of any size.
        origin: where nu and a come from, for people.
        is_assumed: whether nobody measured them for this text, start and window size.
    """

    terms: NoiseTerms
    num_parameters: int | None
    origin: str
    is_assumed: bool

    def terms_of(self, num_parameters: int) -> NoiseTerms:
        """Of an expert with so many coordinates; nu does not depend on how they are grouped (appendix F.1).

        choice: a and everything that multiplies it grow in proportion to the coordinates, as d - 1 does for dense
        probes: gradient and noise are taken to lie alike over gains and ordinary weights at every size.
        """
        if self.num_parameters is None:
            return dense_terms(num_parameters, nu=self.terms.nu)
        ratio = num_parameters / self.num_parameters
        grown = {name: ratio * getattr(self.terms, name) for name in ("a", "a_nu", "baseline", "baseline_nu")}
        return self.terms._replace(**grown)


def assumed_noise(window_bytes: int) -> NoiseSource:
    """What we have seen elsewhere.

    choice: nu falls with the window's length by the power law through two measured lengths, and a = d - 1; both change
    with text and training, so a plan from them says that they are assumed.
    """
    return NoiseSource(dense_terms(1, nu=SEEN_NU[-1][1] * _ratio(window_bytes)), None, "assumed", True)


def measured_noise(record: dict[str, Any], *, window_bytes: int) -> NoiseSource:
    """From ``RUN/results/variance.json``; for windows of another length nu is carried over by the assumed law."""
    terms = NoiseTerms(**record["probe_terms"])
    updates = ", ".join(f"{update:,}" for update in sorted(set(record["updates"])))
    origin = f"measured at update {updates}"
    if record["window_bytes"] == window_bytes:
        return NoiseSource(terms, record["num_parameters"], origin, False)
    ratio = _ratio(window_bytes) / _ratio(record["window_bytes"])
    carried = terms._replace(nu=ratio * terms.nu, a_nu=ratio * terms.a_nu, baseline_nu=ratio * terms.baseline_nu)
    return NoiseSource(
        carried, record["num_parameters"], f"{origin} on windows of {record['window_bytes']:,} bytes", True
    )


def _ratio(window_bytes: int) -> float:
    """nu of such windows over that of 1,024 bytes."""
    (short, of_short), (long, of_long) = SEEN_NU
    power = log(of_short / of_long) / log(long / short)
    return float((long / window_bytes) ** power)
