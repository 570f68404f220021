"""What did a run cost?  Byte-forwards, arithmetic operations (Eq. 21) and device-seconds, by job and in all.

From ``config.json`` and the logs alone. The experts' totals leave the seed run out, as the paper does (appendix H);
it stands beside them. A device is one core where the kernels run on the CPU, else a GPU.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from thinwire.base.files import read_json_lines
from thinwire.runs.layout import JobFolder, RunFolder
from thinwire.soma.recorded_curve import job_lines, read_soma_config, shape_of_run, untrained

SEED = "seed"


class JobCost(NamedTuple):
    """One training job, up to the last line of its log.

    Attributes:
        name: ``seed`` or an expert's number.
        updates: made.
        byte_forwards: input bytes read by all forwards.
        operations: byte-forwards times F_N: Eq. (21) for this expert alone.
        device_seconds: spent on updates; on a CPU the CPU-seconds of the process (``expert_update.device_clock``).
        update_seconds: device-seconds of one update on average, between the first and the last line of the log.
    """

    name: str
    updates: int
    byte_forwards: int
    operations: int
    device_seconds: float
    update_seconds: float


class Conventions(NamedTuple):
    """Four totals of the same experts in device-seconds, as in Table 3.

    Attributes:
        recorded_means: sum over experts of U_e t_e, each expert's updates times its recorded mean update.
        physical: what was allocated to the experts while they trained, idle and validating devices too, from the
            run's log; None where it has no such stage, or a start in it has no end.
        reference_rate: all updates at one rate, by default the slowest expert's mean.
        normalised_rate: all updates at another, by default the fastest expert's mean.
    """

    recorded_means: float
    physical: float | None
    reference_rate: float
    normalised_rate: float


@dataclass(frozen=True)
class RunCost:
    """A whole run.

    Attributes:
        seed: the seed run; None where it has no log yet.
        experts: in order, those that have a log.
        physical_seconds: see ``Conventions``.
    """

    seed: JobCost | None
    experts: tuple[JobCost, ...]
    physical_seconds: float | None

    @property
    def byte_forwards(self) -> int:
        """Of all experts together."""
        return sum(job.byte_forwards for job in self.experts)

    @property
    def operations(self) -> int:
        """C_train of Eq. (21), with every expert's own number of updates."""
        return sum(job.operations for job in self.experts)

    @property
    def device_seconds(self) -> float:
        """Aggregate: summed over experts."""
        return sum(job.device_seconds for job in self.experts)

    @property
    def slowest_expert_seconds(self) -> float:
        """The longest expert's device-seconds: the elapsed training time with one device an expert (appendix I)."""
        return max(job.device_seconds for job in self.experts)

    def conventions(
        self, *, reference_seconds: float | None = None, normalised_seconds: float | None = None
    ) -> Conventions:
        """The totals of Table 3; rates are in device-seconds an update.

        choice: the paper's fixed rates are 0.168 s, a little above its slowest expert's mean (0.165 s), and 0.140 s, a
        little below its experts' mean (0.142 s), without a reason. Ours are the slowest and the fastest expert's means,
        so that the two enclose the recorded total.
        """
        updates = sum(job.updates for job in self.experts)
        means = [job.update_seconds for job in self.experts]
        return Conventions(
            recorded_means=sum(job.updates * job.update_seconds for job in self.experts),
            physical=self.physical_seconds,
            reference_rate=updates * (max(means) if reference_seconds is None else reference_seconds),
            normalised_rate=updates * (min(means) if normalised_seconds is None else normalised_seconds),
        )

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "byte_forwards": self.byte_forwards,
            "operations": self.operations,
            "device_seconds": self.device_seconds,
            "slowest_expert_seconds": self.slowest_expert_seconds,
            "conventions": self.conventions()._asdict(),
            "seed": None if self.seed is None else self.seed._asdict(),
            "experts": [job._asdict() for job in self.experts],
        }


def run_cost(root: Path) -> RunCost:
    """Read a run folder, finished or in progress.

    Raises:
        UserError: this is no SOMA run, or no expert of it has a log yet.
    """
    folder = RunFolder(root)
    config = read_soma_config(folder)
    per_byte = shape_of_run(config).operations_per_byte
    numbered = [(str(index), folder.expert(index)) for index in range(config.clusters.num_clusters)]
    experts = [job for name, where in numbered if (job := _job_cost(name, where, per_byte=per_byte)) is not None]
    if not experts:
        raise untrained(root)
    seed = _job_cost(SEED, folder.seed, per_byte=per_byte)
    return RunCost(seed, tuple(experts), _physical_seconds(folder))


def _job_cost(name: str, folder: JobFolder, *, per_byte: int) -> JobCost | None:
    lines = [line for line in job_lines(folder) if line["update"] > 0]
    if not lines:
        return None
    first, last = lines[0], lines[-1]
    spread = last["update"] - first["update"]
    if spread:
        mean = (last["device_seconds"] - first["device_seconds"]) / spread
    else:
        mean = last["device_seconds"] / last["update"]
    forwards = last["byte_forwards"]
    return JobCost(name, last["update"], forwards, forwards * per_byte, last["device_seconds"], mean)


def _physical_seconds(folder: RunFolder) -> float | None:
    """Devices times elapsed time of the stages that trained experts; seconds are whole in the log."""
    stages, total = list(_stages(folder)), 0.0
    if not stages:
        return None
    for started, ended in stages:
        if ended is None:
            return None
        begin, end = (datetime.datetime.fromisoformat(event["time"]) for event in (started, ended))
        total += started["processes"] * started["threads"] * (end - begin).total_seconds()
    return total


def _stages(folder: RunFolder) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Start and end of every stage that trained experts."""
    if not folder.log.is_file():
        return
    open_stage: dict[str, Any] | None = None
    for event in read_json_lines(folder.log):
        if event.get("stage") != "train" or SEED in event.get("jobs", []):
            continue
        if event["state"] == "started":
            if open_stage is not None:
                yield open_stage, None
            open_stage = event
        elif open_stage is not None:
            yield open_stage, event
            open_stage = None
    if open_stage is not None:
        yield open_stage, None
