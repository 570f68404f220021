"""How sure is a mean loss, when windows of one document are alike?

95% intervals from document-bootstrap draws (appendix L of the first paper).  Whole documents are drawn with
replacement; a draw's loss is the sum over the drawn documents' windows divided by their number (a ratio of sums), and
the interval is made of the draws' percentiles.  It describes these trained models on other documents, not other
training seeds.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from thinwire.base.seeds import numpy_generator

LOW_PERCENTILE, HIGH_PERCENTILE = 2.5, 97.5
CHUNK_NUMBERS = 4_000_000
"""Drawn counts held at once: 32 MB."""


class Interval(NamedTuple):
    """A 95% interval, in the unit of the losses."""

    low: float
    high: float


def interval(
    losses: Float64[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"],
    *,
    draws: int,
    seed: int,
    counts: Float64[np.ndarray, " n"] | None = None,
) -> Interval:
    """95% percentile interval of the mean of ``losses`` over windows, resampling whole groups.

    Two sets of losses on the same windows with the same seed get the same draws, so a difference is paired by giving
    the differences of the losses.

    Args:
        losses: one a window, n >= 1.
        groups: the window's document; equal numbers stay together.
        draws: bootstrap draws, at least one.
        counts: targets of each window, where they differ; ``losses`` are then sums over them, and the mean is one
            over targets.

    Returns:
        With one group all draws are equal and both ends are the mean.
    """
    assert len(losses) >= 1
    assert draws >= 1
    _, group_of_window = np.unique(groups, return_inverse=True)
    sums = np.bincount(group_of_window, weights=losses)
    sizes = np.bincount(group_of_window, weights=counts).astype(np.float64)
    num_groups = len(sums)
    generator = numpy_generator(seed, "bootstrap")
    means = np.empty(draws)
    chunk = max(CHUNK_NUMBERS // num_groups, 1)
    for start in range(0, draws, chunk):
        num_drawn = min(chunk, draws - start)
        drawn = generator.multinomial(num_groups, np.full(num_groups, 1.0 / num_groups), size=num_drawn)
        means[start : start + num_drawn] = (drawn @ sums) / (drawn @ sizes)
    low, high = np.percentile(means, [LOW_PERCENTILE, HIGH_PERCENTILE])
    return Interval(float(low), float(high))
