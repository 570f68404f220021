"""Which pictures of context-parallel runs lie beside the page?  Every figure that has data, by file name."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from thinwire.report.subspaces.curves import loss_figure, theta_figure, training_figure
from thinwire.report.subspaces.facts import groups_of
from thinwire.report.subspaces.records import SubspacesRun


def named_figures(
    runs: Sequence[SubspacesRun], *, prefixes: Sequence[str], comparison: str
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, how to draw it).

    Args:
        prefixes: of each run's figures.
        comparison: the name of the figure of all runs together.
    """
    groups = [group for group in groups_of(runs) if len(group.runs) > 1]
    for index, group in enumerate(groups):
        if any(run.validation for run in group.runs):
            name = comparison if index == 0 else f"{comparison}-{index}"
            yield name, partial(loss_figure, group.runs)
    for run, prefix in zip(runs, prefixes, strict=True):
        if run.validation:
            yield f"{prefix}loss", partial(loss_figure, (run,))
        if any(step.loss_nats_per_token is not None for step in run.steps):
            yield f"{prefix}training", partial(training_figure, (run,))
        if run.thetas:
            yield f"{prefix}theta", partial(theta_figure, run)
