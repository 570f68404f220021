"""``thinwire measure variance RUN``: how noisy a SOMA run's estimates are, beside the closed forms."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.cli.terminal import Terminal, print_columns, print_json, print_table
from thinwire.config.parse import parse
from thinwire.runs.layout import RunFolder

RESULT = "variance.json"


@dataclass(frozen=True)
class VarianceArguments:
    """How far a SOMA run's gradient estimates are from backpropagation's, at its experts' newest checkpoints.

    Measured with the run's own n_pert, B and epsilon, beside the closed forms, with what n_pert and B the closed form
    would choose for as many forward passes. Kept in RUN/results/variance.json.
    """

    run: tyro.conf.Positional[Path]
    """The run folder; it may still be in progress."""
    experts: int = 2
    """Measure at most so many experts, evenly spread."""
    repeats: int = 2
    """Estimates of each expert, every one with a batch and directions of its own."""
    reference_windows: int = 0
    """Windows of each expert's reference gradient; 0 takes 32 KiB of text, at least 64 windows."""
    arithmetic: Literal["training", "float64"] = "training"
    """training: the kernels that train, in float32; float64: the reference implementation, slow."""
    json: bool = False
    """Print one JSON object."""


def variance(argv: list[str]) -> None:
    arguments = parse(VarianceArguments, argv, prog="thinwire measure variance")
    for name in ("experts", "repeats"):
        if getattr(arguments, name) < 1:
            raise UserError("there is nothing to measure", where=f"--{name}", fix="give 1 or more")
    if arguments.reference_windows < 0:
        raise UserError("a number of windows cannot be negative", where="--reference-windows", fix="give 64, or 0")
    from thinwire.launch.local import available_cores
    from thinwire.soma.measured_variance import Effort, measure_variance

    effort = Effort(
        experts=arguments.experts,
        repeats=arguments.repeats,
        reference_windows=arguments.reference_windows,
        arithmetic=arguments.arithmetic,
        threads=available_cores(),
    )
    with Terminal().progress() as progress:
        record = measure_variance(arguments.run, effort=effort, progress=progress)
    write_json(RunFolder(arguments.run).results / RESULT, record)
    if arguments.json:
        print_json(record)
    else:
        _print(record)


def _print(record: dict[str, Any]) -> None:
    reference, allocations = record["reference"], record["allocations"]
    sets = f"{sum(reference['windows']):,} windows of {record['window_bytes']:,} bytes"
    print_table(
        [
            ("experts", ", ".join(f"{e} (update {u:,})" for e, u in zip(*_both(record), strict=True))),
            ("nu", f"{record['nu']:.3g}, relative variance of one window's gradient"),
            ("a", f"{record['a']:,}; {record['probe_terms']['a']:,.0f} for the probes used"),
            ("curvature", _curvature_words(record)),
            ("reference", f"{sets}, squared error {reference['relative_error']:.1%} of the gradient's square"),
        ]
    )
    lines = []
    for difference, found in record["measured"].items():
        r_g, error, cosine = found["r_g"], found["relative_error"], found["cosine"]
        lines += [
            [f"{difference}: R_g", _figure(r_g["measured"], r_g["standard_error"]), _figure(r_g["predicted"])],
            [
                f"{difference}: R",
                _figure(error["without_reference_noise"], error["standard_error"]),
                _figure(error["predicted"]),
            ],
            [f"{difference}: cosine", f"{cosine['measured']:.4f}", f"{cosine['predicted']:.4f}"],
        ]
    print_columns(["", "measured", "predicted"], lines)
    own = allocations["own"]
    rows = [[f"the run's, {own['difference']}", *_cells(own)]]
    for name, words in (("best", "least variance"), ("cheapest", "least cost")):
        rows += [[f"{words}, {difference}", *_cells(found)] for difference, found in allocations[name].items()]
    forwards = f"{allocations['window_forwards']:,} forwards of a window an update"
    print_columns([forwards, "n_pert", "B", "relative variance"], rows)


def _curvature_words(record: dict[str, Any]) -> str:
    costs = record["noise_costs"]
    if costs is None:
        return "not positive everywhere: what noise costs cannot be told here"
    return f"batch noise costs a step {costs['batch']:,.0f} times as much as perturbation noise"


def _both(record: dict[str, Any]) -> tuple[list[int], list[int]]:
    return record["experts"], record["updates"]


def _figure(value: float | None, error: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" + (f" +- {error:.2g}" if error is not None else "")


def _cells(allocation: dict[str, Any]) -> list[str]:
    return [f"{allocation['directions']:,}", f"{allocation['batch']:,}", f"{allocation['variance']:,.4g}"]
