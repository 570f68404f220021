"""Where are the numbers behind the page?  Tidy CSV files, one observation a row, units in the column names."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from thinwire.base.files import atomic_write
from thinwire.base.units import bits_per_byte
from thinwire.report.records import Job, Run, Score
from thinwire.report.subspaces.records import SubspacesRun
from thinwire.report.subspaces.tables import Table, tables_of

CURVE_COLUMNS = (
    "run",
    "job",
    "expert",
    "split",
    "update",
    "loss_nats_per_byte",
    "learning_rate",
    "epsilon",
    "derivative_rms",
    "byte_forwards",
    "device_seconds",
)
RESULT_COLUMNS = (
    "run",
    "evaluation",
    "protocol",
    "system",
    "source",
    "loss_nats_per_byte",
    "bits_per_byte",
    "ci95_low_nats_per_byte",
    "ci95_high_nats_per_byte",
    "num_scored_targets",
    "num_windows",
    "num_experts",
    "num_active_experts",
)
CLUSTER_COLUMNS = ("run", "cluster", "num_train_windows", "fraction_of_train_windows", "top_terms")
MATRIX_COLUMNS = (
    "run",
    "expert",
    "cluster",
    "loss_nats_per_byte",
    "num_windows",
    "is_own_cluster",
    "is_best_on_cluster",
)
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_tables(runs: Sequence[Run | SubspacesRun], *, folder: Path) -> tuple[Path, ...]:
    """Write curves.csv, results.csv, clusters.csv and matrix.csv of SOMA runs, and subspaces-*.csv of context-parallel
    ones; a table without rows keeps its header.

    Raises:
        OSError: the folder cannot be written.
    """
    soma = [run for run in runs if isinstance(run, Run)]
    llamas = [run for run in runs if isinstance(run, SubspacesRun)]
    tables = [
        Table("curves.csv", CURVE_COLUMNS, _curve_rows(soma)),
        Table("results.csv", RESULT_COLUMNS, _result_rows(soma)),
        Table("clusters.csv", CLUSTER_COLUMNS, _cluster_rows(soma)),
        Table("matrix.csv", MATRIX_COLUMNS, _matrix_rows(soma)),
    ]
    paths = []
    for name, columns, rows in [*(tables if soma else ()), *(tables_of(llamas) if llamas else ())]:
        path = folder / name
        atomic_write(path, _as_csv(columns, rows))
        paths.append(path)
    return tuple(paths)


def _as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula is quoted: a run folder may come from a stranger."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _curve_rows(runs: Sequence[Run]) -> Iterator[Sequence[Any]]:
    for run in runs:
        for job in (run.seed_run, *run.experts):
            yield from _job_rows(run.name, job)


def _job_rows(name: str, job: Job) -> Iterator[Sequence[Any]]:
    start = (name, "seed" if job.expert < 0 else "expert", None if job.expert < 0 else job.expert)
    for u in job.training:
        losses = (u.train_loss_nats_per_byte, u.learning_rate, u.epsilon, u.derivative_rms)
        yield (*start, "train", u.update, *losses, u.byte_forwards, u.device_seconds)
    for v in job.validation:
        yield (*start, "valid", v.update, v.loss_nats_per_byte, None, None, None, v.byte_forwards, v.device_seconds)


def _result_rows(runs: Sequence[Run]) -> Iterator[Sequence[Any]]:
    for run in runs:
        for score in run.scores:
            for system, source, loss in _systems(score):
                interval = score.ci95 if (system, source) == (score.system, "all") and score.ci95 else (None, None)
                counts = (score.scored_targets, score.windows) if source == "all" else (None, None)
                experts = (score.num_experts, score.active_experts) if system == score.system else (None, None)
                names = (run.name, score.name, score.protocol, system, source)
                yield (*names, loss, bits_per_byte(loss), *interval, *counts, *experts)


def _systems(score: Score) -> Iterator[tuple[str, str, float]]:
    """(system, source, nats per byte) of everything one evaluation scored."""
    yield score.system, "all", score.loss_nats_per_byte
    for source, loss in score.by_source.items():
        yield score.system, source, loss
    if score.seed_loss_nats_per_byte is not None:
        yield "seed", "all", score.seed_loss_nats_per_byte
    for expert, loss in enumerate(score.single_expert_loss_nats_per_byte):
        yield f"expert {expert}", "all", loss
    for name, loss in score.baselines.items():
        yield name, "all", loss


def _cluster_rows(runs: Sequence[Run]) -> Iterator[Sequence[Any]]:
    for run in runs:
        if run.clusters is not None:
            parts = zip(run.clusters.sizes, run.clusters.fractions, run.clusters.top_terms, strict=True)
            for cluster, (size, fraction, terms) in enumerate(parts):
                yield run.name, cluster, size, fraction, "; ".join(terms)


def _matrix_rows(runs: Sequence[Run]) -> Iterator[Sequence[Any]]:
    for run in runs:
        if run.matrix is None:
            continue
        best, windows = run.matrix.best_experts(), run.matrix.windows_per_cluster
        for expert, row in enumerate(run.matrix.losses):
            for cluster, loss in enumerate(row):
                count = windows[cluster] if windows else None
                yield run.name, expert, cluster, loss, count, int(expert == cluster), int(best[cluster] == expert)
