"""How did a run's loss fall, and at what cost?  Its configuration and its experts' logs, read without any tensor.

Costs leave the seed run out, as the paper does (appendix H).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.files import read_json, read_json_lines
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.runs.layout import JobFolder, RunFolder
from thinwire.runs.settings import Method, read_settings
from thinwire.soma.config import SomaConfig

SOMA = Method("soma", "a SOMA")
CostUnit = Literal["device_seconds", "byte_forwards", "operations"]


class CurvePoint(NamedTuple):
    """All experts at one update; costs are the experts' together.

    Attributes:
        loss_nats_per_byte: the experts' validation losses, each on its own cluster, weighted by the clusters' sizes.
        slowest_seconds: device-seconds of the expert that took longest.
    """

    update: int
    byte_forwards: int
    operations: int
    device_seconds: float
    slowest_seconds: float
    loss_nats_per_byte: float

    def cost(self, unit: CostUnit) -> float:
        return float(getattr(self, unit))


def read_soma_config(folder: RunFolder) -> SomaConfig:
    """Raises UserError where the folder is no SOMA run of this version."""
    return read_settings(folder, SomaConfig, method=SOMA)[1]


def shape_of_run(config: SomaConfig) -> ExpertShape:
    model = config.model
    return ExpertShape(width=model.width, depth=model.depth, embed_width=model.embed_width)


def validation_curve(root: Path) -> tuple[CurvePoint, ...]:
    """Loss against cost, at the updates where every expert was validated, from update 1 on.

    Raises:
        UserError: this is no SOMA run, or an expert of it was never validated.
    """
    folder = RunFolder(root)
    config = read_soma_config(folder)
    per_byte = shape_of_run(config).operations_per_byte
    jobs = [
        {line["update"]: line for line in job_lines(folder.expert(index)) if line["kind"] == "validation"}
        for index in range(config.clusters.num_clusters)
    ]
    shared = sorted(set.intersection(*(set(job) for job in jobs)) - {0})
    if not shared:
        raise untrained(root)
    weights = _cluster_weights(folder, len(jobs))
    points = []
    for update in shared:
        lines = [job[update] for job in jobs]
        forwards, seconds = sum(line["byte_forwards"] for line in lines), [line["device_seconds"] for line in lines]
        loss = sum(w * line["loss_nats_per_byte"] for w, line in zip(weights, lines, strict=True))
        points.append(CurvePoint(update, forwards, forwards * per_byte, sum(seconds), max(seconds), loss))
    return tuple(points)


def untrained(root: Path) -> UserError:
    what = "the experts of this run have not got far enough: nothing of their cost or loss is logged"
    return UserError(what, where=str(root / "experts"), fix="go on training it: give its command again")


def job_lines(folder: JobFolder) -> list[dict[str, Any]]:
    return list(read_json_lines(folder.log)) if folder.log.is_file() else []


def _cluster_weights(folder: RunFolder, count: int) -> Sequence[float]:
    """Parts of the training windows; equal where they are not known."""
    path = folder.router / "router.json"
    found = read_json(path) if path.is_file() else {}
    sizes = found.get("cluster_sizes", [])
    total = sum(sizes)
    return [size / total for size in sizes] if len(sizes) == count and total else [1 / count] * count
