"""Which recorded setting had the lowest loss at a budget?  Eq. (22) over the curves of given runs (section M.1).

Losses are compared only where they measure the same thing: the same text, cut and divided the same way. They are
averaged only over runs that differ in nothing but the seed.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.files import canonical_json
from thinwire.config.fingerprint import flatten
from thinwire.plan.quantities import Budget
from thinwire.plan.soma_question import Question
from thinwire.runs.layout import RunFolder
from thinwire.soma.budget import Setting, lowest_loss
from thinwire.soma.config import SomaConfig, result_record
from thinwire.soma.interpolated_loss import LossRange, loss_at
from thinwire.soma.recorded_curve import CurvePoint, read_soma_config, validation_curve

WHERE = "--curves"
NOT_RECIPE = ("seed", *(f"{job}.{key}" for job in ("experts", "seed_run") for key in ("checkpoint_every", "log_every")))
"""Settings that change no validation loss, or only as another seed does; so do all of routing and of scoring."""


class Recorded(NamedTuple):
    """One run's curve.

    Attributes:
        run: its folder.
        setting: of its experts.
        width: of its experts.
        recipe: everything else that decides its losses, apart from the seed; equal for runs that may be averaged.
        points: of ``validation_curve``.
    """

    run: Path
    setting: Setting
    width: int
    recipe: str
    points: tuple[CurvePoint, ...]


def read_curves(runs: Sequence[Path], *, question: Question) -> list[Recorded]:
    """Every run once.

    Raises:
        UserError: a run has no curve; two do not compare: another text, windows of another size, another partition; or
            one is of experts that are not planned for.
    """
    found, measures = [], {}
    for run in dict.fromkeys(runs):
        config = read_soma_config(RunFolder(run))
        measures[run] = _measured_on(run, config)
        _refuse_unplanned(run, config, question=question)
        found.append(Recorded(run, _setting(config), config.model.width, _recipe(config), validation_curve(run)))
    for run, measured in measures.items():
        first = measures[runs[0]]
        different = [name for name, value in measured.items() if value != first[name]]
        if different:
            raise UserError(
                f"the losses of {runs[0]} and {run} do not compare: they differ in {', '.join(different)}",
                where=WHERE,
                fix="give runs on the same text, divided the same way, with windows of the same size",
            )
    return found


def _refuse_unplanned(run: Path, config: SomaConfig, *, question: Question) -> None:
    planned = question.config
    model, width = planned.model, config.model.width
    is_candidate = width in {ensemble.shape.width for ensemble in question.ensembles()}
    pairs = {
        "experts.window-bytes": (config.experts.window_bytes, planned.experts.window_bytes),
        "clusters.window-bytes": (config.clusters.window_bytes, planned.clusters.window_bytes),
        "model.depth": (config.model.depth, model.depth),
        "model.embed-width": (config.model.embed_width, model.embed_width),
        "model.width": (width, width if is_candidate else model.width),
    }
    different = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if different:
        listed = ", ".join(f"{name} {theirs:,} there, {ours:,} planned" for name, (theirs, ours) in different.items())
        flags = " ".join(f"--{name} {theirs}" for name, (theirs, _) in different.items())
        raise UserError(f"{run} is of experts that are not planned: {listed}", where=WHERE, fix=f"plan with {flags}")


def _setting(config: SomaConfig) -> Setting:
    job = config.experts
    return Setting(config.clusters.num_clusters, job.directions, job.batch, job.accumulation, job.difference)


def _recipe(config: SomaConfig) -> str:
    """choice: the number of updates is no part of it, for a curve is read where the budget ends; that of the seed run
    is, for experts start from its end; and so is how often a run validates, which the plateau rule counts by."""
    record = result_record(config)
    del record["routing"], record["scoring"], record["experts"]["updates"]
    return canonical_json({key: value for key, value in flatten(record).items() if key not in NOT_RECIPE})


def _measured_on(run: Path, config: SomaConfig) -> dict[str, Any]:
    return {
        "text": RunFolder(run).read_data_record()["fingerprint"],
        "experts.window-bytes": config.experts.window_bytes,
        "clusters.window-bytes": config.clusters.window_bytes,
        "clusters.partition": config.clusters.partition,
    }


def choose_recorded(
    curves: Sequence[Recorded], *, budget: Budget, deadline_seconds: float, devices: int
) -> dict[str, Any]:
    """Losses at the budget and the choice, as plain values; ``chosen`` is None where no curve covers it.

    Where the deadline ends a recorded run before the budget does, its loss there counts (Eq. 6). Runs that differ in
    the seed alone are averaged, those of other recipes never; ``chosen`` names the runs of the lowest mean.
    """
    rows, alike = [], defaultdict(list)
    for curve in curves:
        in_time = [p for p in curve.points if _elapsed(p, curve.setting, devices=devices) <= deadline_seconds]
        ends_early = 0 < len(in_time) < len(curve.points)
        cost = min(budget.amount, in_time[-1].cost(budget.unit)) if ends_early else budget.amount
        loss = loss_at(in_time, cost=cost, unit=budget.unit)
        rows.append(_row(curve, loss))
        if loss is not None:
            alike[curve.recipe].append((curve, loss.middle))
    means = {recipe: sum(loss for _, loss in runs) / len(runs) for recipe, runs in alike.items()}
    best_of: dict[Setting, str] = {}  # the lowest of each setting's recipes
    for recipe in sorted(means, key=lambda recipe: means[recipe]):
        best_of.setdefault(alike[recipe][0][0].setting, recipe)
    chosen = None
    if best_of:
        setting = lowest_loss(best_of, loss=lambda setting: means[best_of[setting]])
        runs = [curve for curve, _ in alike[best_of[setting]]]
        chosen = {
            **setting._asdict(),
            "width": runs[0].width,
            "runs": [str(curve.run) for curve in runs],
            "loss_nats_per_byte": means[best_of[setting]],
        }
    return {"curves": rows, "chosen": chosen}


def _elapsed(point: CurvePoint, setting: Setting, *, devices: int) -> float:
    """Until every expert is there: the slowest alone, or all experts' time divided among fewer devices."""
    return max(point.slowest_seconds, point.device_seconds / min(devices, setting.num_experts))


def _row(curve: Recorded, loss: LossRange | None) -> dict[str, Any]:
    last = curve.points[-1]
    return {
        "run": str(curve.run),
        **curve.setting._asdict(),
        "width": curve.width,
        "loss_low": None if loss is None else loss.low,
        "loss_high": None if loss is None else loss.high,
        "last_update": last.update,
        "recorded": {unit: last.cost(unit) for unit in ("device_seconds", "byte_forwards", "operations")},
    }
