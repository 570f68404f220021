"""Which recorded setting had the lowest loss at a budget?  Eq. (22) over the curves of given runs (section M.1)."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.base.errors import UserError
from thinwire.plan.quantities import Budget
from thinwire.runs.layout import RunFolder
from thinwire.soma.budget import Setting, lowest_loss
from thinwire.soma.config import SomaConfig
from thinwire.soma.interpolated_loss import LossRange, loss_at
from thinwire.soma.recorded_curve import CurvePoint, read_soma_config, validation_curve


class Recorded(NamedTuple):
    """One run's curve.

    Attributes:
        run: its folder.
        setting: of its experts.
        width: of its experts.
        points: of ``validation_curve``.
    """

    run: Path
    setting: Setting
    width: int
    points: tuple[CurvePoint, ...]


def read_curves(runs: Sequence[Path]) -> list[Recorded]:
    """Raises UserError where a run has no curve, or losses do not compare: another text, windows of another size."""
    found, measures = [], {}
    for run in runs:
        config = read_soma_config(RunFolder(run))
        found.append(Recorded(run, _setting(config), config.model.width, validation_curve(run)))
        measures[run] = _measured_on(run, config)
    for run, measured in measures.items():
        first = measures[runs[0]]
        different = [name for name, value in measured.items() if value != first[name]]
        if different:
            raise UserError(
                f"the losses of {runs[0]} and {run} do not compare: they differ in {', '.join(different)}",
                where="--curves",
                fix="give runs on the same text with windows of the same size",
            )
    return found


def _setting(config: SomaConfig) -> Setting:
    job = config.experts
    return Setting(config.clusters.num_clusters, job.directions, job.batch, job.accumulation, job.difference)


def _measured_on(run: Path, config: SomaConfig) -> dict[str, Any]:
    return {
        "text": RunFolder(run).read_data_record()["fingerprint"],
        "experts.window-bytes": config.experts.window_bytes,
        "clusters.window-bytes": config.clusters.window_bytes,
    }


def choose_recorded(
    curves: Sequence[Recorded], *, budget: Budget, deadline_seconds: float, devices: int
) -> dict[str, Any]:
    """Losses at the budget and the choice, as plain values; ``chosen`` is None where no curve covers it.

    Where the deadline ends a recorded run before the budget does, its loss there counts (Eq. 6). Runs of one
    setting and width (seeds) are averaged.
    """
    rows, by_setting = [], defaultdict(list)
    for curve in curves:
        in_time = [p for p in curve.points if _elapsed(p, curve.setting, devices=devices) <= deadline_seconds]
        ends_early = 0 < len(in_time) < len(curve.points)
        cost = min(budget.amount, in_time[-1].cost(budget.unit)) if ends_early else budget.amount
        loss = loss_at(in_time, cost=cost, unit=budget.unit)
        rows.append(_row(curve, loss))
        if loss is not None:
            by_setting[curve.setting, curve.width].append(loss.middle)
    means = {key: sum(losses) / len(losses) for key, losses in by_setting.items()}
    chosen = None
    if means:
        of_setting: dict[Setting, float] = {}
        for (setting, _), loss_of in means.items():
            of_setting[setting] = min(loss_of, of_setting.get(setting, loss_of))
        setting = lowest_loss(of_setting, loss=of_setting.get)
        chosen = setting._asdict() | {"loss_nats_per_byte": of_setting[setting]}
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
