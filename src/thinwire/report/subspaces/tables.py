"""Where are the numbers behind the page?  Tidy rows of context-parallel runs, units in the column names."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from thinwire.report.subspaces.records import TAGS, SubspacesRun

CURVE_COLUMNS = (
    "run",
    "split",
    "step",
    "phase",
    "loss_nats_per_token",
    "learning_rate",
    "gradient_norm",
    "num_tokens",
    "step_seconds",
    "seconds",
    "num_ranks",
    *(f"{tag.replace('-', '_')}_bytes" for tag in TAGS),
)
RESULT_COLUMNS = (
    "run",
    "evaluation",
    "protocol",
    "model",
    "codec",
    "loss_nats_per_token",
    "ci95_low_nats_per_token",
    "ci95_high_nats_per_token",
    "perplexity",
    "loss_nats_per_byte",
    "bits_per_byte",
    "as_trained_loss_nats_per_token",
    "num_scored_targets",
    "num_windows",
    "step",
)
BYTES_COLUMNS = ("run", "phase", "num_steps", "tag", "bytes_per_update", "counted_bytes")
THETA_COLUMNS = ("run", "step", "layer", "side", "mean_abs_theta", "angle_degrees", "orthonormality_defect")
EVENT_COLUMNS = ("run", "step", "event", "phase", "num_ranks", "members", "reason")


class Table(NamedTuple):
    name: str
    columns: tuple[str, ...]
    rows: Iterator[Sequence[Any]]


def tables_of(runs: Sequence[SubspacesRun]) -> tuple[Table, ...]:
    """Curves, results, bytes, theta and events."""
    return (
        Table("subspaces-curves.csv", CURVE_COLUMNS, _curve_rows(runs)),
        Table("subspaces-results.csv", RESULT_COLUMNS, _result_rows(runs)),
        Table("subspaces-bytes.csv", BYTES_COLUMNS, _byte_rows(runs)),
        Table("subspaces-theta.csv", THETA_COLUMNS, _theta_rows(runs)),
        Table("subspaces-events.csv", EVENT_COLUMNS, _event_rows(runs)),
    )


def _curve_rows(runs: Sequence[SubspacesRun]) -> Iterator[Sequence[Any]]:
    for run in runs:
        for s in run.steps:
            losses = (s.loss_nats_per_token, s.learning_rate, s.gradient_norm)
            yield (
                run.name,
                "train",
                s.step,
                s.phase,
                *losses,
                s.tokens,
                s.seconds,
                None,
                s.ranks,
                *(s.wire_bytes[tag] for tag in TAGS),
            )
        for v in run.validation:
            start = (run.name, "valid", v.step, v.phase, v.loss_nats_per_token)
            yield (*start, None, None, v.tokens, None, v.seconds, None, *(v.wire_bytes[tag] for tag in TAGS))


def _result_rows(runs: Sequence[SubspacesRun]) -> Iterator[Sequence[Any]]:
    for run in runs:
        for score in run.scores:
            interval = score.ci95 or (None, None)
            names = (run.name, score.name, score.protocol, score.model, run.setting("codec.kind"))
            losses = (score.perplexity, score.loss_nats_per_byte, score.bits_per_byte)
            trained = score.as_trained_loss_nats_per_token
            counts = (score.scored_targets, score.windows, score.step)
            yield (*names, score.loss_nats_per_token, *interval, *losses, trained, *counts)


def _byte_rows(runs: Sequence[SubspacesRun]) -> Iterator[Sequence[Any]]:
    for run in runs:
        for phase in run.phases:
            for tag in TAGS:
                yield run.name, phase.phase, phase.num_steps, tag, phase.per_update[tag], None
        for tag, count in run.wire_bytes.items():
            yield run.name, "all", run.last_step, tag, None, count


def _theta_rows(runs: Sequence[SubspacesRun]) -> Iterator[Sequence[Any]]:
    for run in runs:
        for theta in run.thetas:
            for side, sizes in theta.mean_abs_theta.items():
                rows = zip(sizes, theta.angle_degrees[side], theta.orthonormality_defect[side], strict=False)
                for layer, values in enumerate(rows):
                    yield (run.name, theta.step, layer, side, *values)


def _event_rows(runs: Sequence[SubspacesRun]) -> Iterator[Sequence[Any]]:
    for run in runs:
        for event in run.events:
            details = event.details
            members = details.get("members")
            listed = " ".join(map(str, members)) if isinstance(members, list) else None
            yield (
                run.name, event.step, event.what, details.get("phase"), details.get("ranks"), listed,
                details.get("reason"),
            )  # fmt: skip
