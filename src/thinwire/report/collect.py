"""What lies in this run folder?  Reads the configuration, logs, clusters and results of runs, SOMA's here.

A run still in progress is a normal thing to read: absent parts stay absent, and torn log records are passed over.
A part that is damaged is left out and named in ``Run.damage``. Only a folder that is no run at all is an error.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from thinwire.base.errors import UserError
from thinwire.base.files import read_json_lines
from thinwire.report.measurements import read_measurements
from thinwire.report.parts import (
    MALFORMED,
    build_record,
    build_sample,
    finite,
    optional,
    read_config,
    read_part,
    unique_names,
)
from thinwire.report.records import (
    PRESET_NOT_NAMED,
    SEED_RUN,
    Clusters,
    Interval,
    Job,
    LossMatrix,
    Method,
    Run,
    Score,
    UpdateRecord,
    ValidationRecord,
)
from thinwire.report.subspaces.collect import read_subspaces_run
from thinwire.report.subspaces.records import SubspacesRun

NOT_SCORES = ("matrix", "sample", "variance", "active-experts", "complementarity", "throughput")
"""Files of ``results`` of other shapes, each read by its own name."""


def collect_runs(folders: Sequence[Path]) -> tuple[Run | SubspacesRun, ...]:
    """Read every folder, of any method.

    Raises:
        UserError: no folder was given, one is absent, holds no run, holds a run of another kind, or was given twice.
    """
    if not folders:
        raise UserError(
            "no run folder was given", where="report", fix="name at least one: thinwire report RUN --out DIR"
        )
    resolved = [folder.resolve() for folder in folders]
    for index, folder in enumerate(resolved):
        if folder in resolved[:index]:
            raise UserError("a run folder was given twice", where=str(folders[index]), fix="name each run once")
    return tuple(_read_any(folder, name) for folder, name in zip(folders, unique_names(resolved), strict=True))


def _read_any(folder: Path, name: str) -> Run | SubspacesRun:
    record = read_config(folder)
    if record["kind"] == "subspaces":
        return read_subspaces_run(folder, name=name, record=record)
    return _read_run(folder, name=name, record=record)


def _read_run(folder: Path, *, name: str, record: dict[str, Any]) -> Run:
    config = record["config"]
    damage: list[str] = []
    clusters = read_part(folder, "router/router.json", _build_clusters, damage)
    seed_run = _read_job(folder, "seed", SEED_RUN, _planned_updates(config, "seed_run"), damage)
    method: Method = "eggroll" if record["kind"] == "eggroll" else "soma"
    planned = _planned_updates(config, "experts" if method == "soma" else "training")
    experts = tuple(
        _read_job(folder, f"experts/{entry.name}", int(entry.name), planned, damage)
        for entry in _expert_folders(folder)
    )
    configured = config.get("clusters", {}) if isinstance(config.get("clusters"), dict) else {}
    num_experts = configured.get("num_clusters") if method == "soma" else 1
    return Run(
        folder=folder,
        name=name,
        preset=str(record.get("preset") or PRESET_NOT_NAMED),
        config=config,
        manifest=read_part(folder, "manifest.json", build_record, damage) or {},
        seed_run=seed_run,
        experts=experts,
        num_experts=num_experts if isinstance(num_experts, int) else len(experts),
        clusters=clusters,
        scores=_read_scores(folder, damage, system="ensemble" if method == "soma" else "model"),
        matrix=read_part(folder, "results/matrix.json", _build_matrix, damage),
        sample=read_part(folder, "results/sample.json", build_sample, damage),
        measurements=read_measurements(folder, damage),
        damage=tuple(damage),
        method=method,
    )


def _planned_updates(config: dict[str, Any], section: str) -> int | None:
    job = config.get(section)
    updates = job.get("updates") if isinstance(job, dict) else None
    return updates if isinstance(updates, int) else None


def _expert_folders(folder: Path) -> list[Path]:
    experts = folder / "experts"
    entries = experts.iterdir() if experts.is_dir() else iter(())
    return sorted((entry for entry in entries if entry.is_dir() and entry.name.isdecimal()), key=lambda e: int(e.name))


def _read_job(folder: Path, relative: str, expert: int, planned: int | None, damage: list[str]) -> Job:
    """The job's log; where an update was logged twice (a resumed run) the later record counts."""
    training: dict[int, UpdateRecord] = {}
    validation: dict[int, ValidationRecord] = {}
    num_read, where = 0, f"{relative}/log.jsonl"
    try:
        for record in read_json_lines(folder / where):
            if record["kind"] == "update":
                training[int(record["update"])] = _build_update(record)
            elif record["kind"] == "validation":
                validation[int(record["update"])] = _build_validation(record)
            num_read += 1
    except (*MALFORMED, OSError) as error:
        damage.append(
            f"{where} cannot be read after {num_read} records ({type(error).__name__}); its curve stops there."
        )
    infinite = [u for u, record in validation.items() if not math.isfinite(record.loss_nats_per_byte)]
    if infinite:
        damage.append(
            f"{where}: the validation loss is not finite at update {min(infinite):,}; such records are left out."
        )
    return Job(
        expert=expert,
        planned_updates=planned,
        training=tuple(training[update] for update in sorted(training)),
        validation=tuple(validation[update] for update in sorted(validation) if update not in infinite),
    )


def _build_update(record: dict[str, Any]) -> UpdateRecord:
    return UpdateRecord(
        update=int(record["update"]),
        train_loss_nats_per_byte=float(record["train_loss_nats_per_byte"]),
        learning_rate=float(record["learning_rate"]),
        epsilon=float(record["epsilon"]),
        derivative_rms=float(record["derivative_rms"]),
        byte_forwards=int(record["byte_forwards"]),
        device_seconds=float(record["device_seconds"]),
    )


def _build_validation(record: dict[str, Any]) -> ValidationRecord:
    return ValidationRecord(
        update=int(record["update"]),
        loss_nats_per_byte=float(record["loss_nats_per_byte"]),
        byte_forwards=int(record["byte_forwards"]),
        device_seconds=float(record["device_seconds"]),
    )


def _build_clusters(record: Any) -> Clusters:
    sizes = tuple(int(size) for size in record["cluster_sizes"])
    terms = tuple(tuple(str(term) for term in row) for row in record.get("top_terms", ()))
    return Clusters(sizes=sizes, top_terms=terms + ((),) * (len(sizes) - len(terms)))


def _read_scores(folder: Path, damage: list[str], *, system: str) -> tuple[Score, ...]:
    """Every file of ``results`` that holds one loss; "test" first, the others by name."""
    paths = sorted((folder / "results").glob("*.json"), key=lambda path: (path.stem != "test", path.stem))
    scores = [
        read_part(folder, f"results/{path.name}", partial(_build_score, stem=path.stem, system=system), damage)
        for path in paths
        if path.stem not in NOT_SCORES
    ]
    return tuple(score for score in scores if score is not None)


def _build_score(record: Any, *, stem: str, system: str) -> Score | None:
    if not isinstance(record.get("loss_nats_per_byte"), int | float):
        return None  # a result of another shape, e.g. a measurement: not for this page
    interval = record.get("ci95")
    return Score(
        name=str(record.get("name") or stem),
        protocol=str(record.get("protocol") or ""),
        loss_nats_per_byte=finite(record["loss_nats_per_byte"]),
        ci95=Interval(finite(interval[0]), finite(interval[1])) if interval else None,
        scored_targets=optional(record.get("scored_targets"), int),
        windows=optional(record.get("windows"), int),
        num_experts=optional(record.get("num_experts"), int),
        active_experts=optional(record.get("active_experts"), int),
        expert_updates=tuple(int(update) for update in record.get("expert_updates") or ()),
        planned_updates=optional(record.get("planned_updates"), int),
        seed_loss_nats_per_byte=optional(record.get("seed_loss_nats_per_byte"), finite),
        single_expert_loss_nats_per_byte=_floats(record.get("single_expert_loss_nats_per_byte") or ()),
        baselines=_named_floats(record.get("baselines") or {}),
        by_source=_named_floats(record.get("by_source") or {}),
        system=system,
        windows_digest=optional(record.get("windows_digest"), str),
    )


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(finite(value) for value in values)


def _named_floats(values: dict[str, Any]) -> dict[str, float]:
    return {str(name): finite(value) for name, value in values.items() if value is not None}


def _build_matrix(record: Any) -> LossMatrix:
    losses = tuple(_floats(row) for row in record["loss_nats_per_byte"])
    if not losses or not losses[0] or len({len(row) for row in losses}) != 1:
        raise ValueError("the rows of the matrix differ in length or are empty")
    windows = tuple(int(count) for count in record.get("windows_per_cluster") or ())
    if windows and len(windows) != len(losses[0]):
        raise ValueError("windows_per_cluster does not match the matrix")
    return LossMatrix(losses=losses, windows_per_cluster=windows)
