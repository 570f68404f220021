"""How noisy are a run's own estimates, and what would suit it better?  Its experts at their newest checkpoints.

The text is what the experts train on; reference and estimates use different windows of it (appendix K).
"""

from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Silent, Task
from thinwire.base.seeds import numpy_generator, stream_key
from thinwire.data.windows import draw_training_windows
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.soma.config import Difference
from thinwire.soma.curvature import NoiseCurvature, noise_curvature
from thinwire.soma.exact_gradients import gradient_moments
from thinwire.soma.expert_job import ExpertJob
from thinwire.soma.job_checkpoint import load_state
from thinwire.soma.model import Expert
from thinwire.soma.plateau import rates
from thinwire.soma.run import SomaRun
from thinwire.soma.theory import Block
from thinwire.soma.variance import (
    DirectionSample,
    EstimateError,
    Reference,
    Spread,
    Subject,
    central_spread,
    coordinate_groups,
    error_of,
    one_sided_spread,
    sample_directions,
    small_epsilon_spread,
)
from thinwire.soma.variance_record import DIFFERENCES, ExpertFindings, variance_record

FEWEST_REFERENCE_WINDOWS = 4
REFERENCE_BYTES, USUAL_REFERENCE_WINDOWS = 32_768, 64
CURVED_BYTES, USUAL_CURVED_WINDOWS, NOISY_WINDOWS = 4096, 16, 8
"""Of curvature: the text whose loss is curved, and the windows whose gradients are noise."""


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        experts: at most so many of the run's experts, evenly spread.
        repeats: estimates of each, every one with batches and directions of its own.
        reference_windows: of each expert's reference gradient, half of them in each of its two sets; 0 takes
            ``REFERENCE_BYTES`` of text, at least 64 windows.
        arithmetic: ``training``, the kernels that train, in float32; ``float64``, the reference implementation, slow.
        threads: for the losses.
    """

    experts: int = 2
    repeats: int = 2
    reference_windows: int = 0
    arithmetic: Literal["training", "float64"] = "training"
    threads: int = 1


def measure_variance(run: Path, *, effort: Effort | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """nu, a, R_g and R of a run's own setting, measured and predicted, and what Eq. (18) would choose; writes nothing.

    Raises:
        UserError: no SOMA run, no expert with a checkpoint, data that are gone, or too little text.
    """
    effort = effort or Effort()
    opened = SomaRun.open(run)
    setting = opened.config.experts
    names = _measurable(opened)
    count = min(effort.experts, len(names))
    chosen = [names[place * len(names) // count] for place in range(count)]
    corpus = opened.open_corpus()
    task = (progress or Silent()).task("variance", len(chosen) * (2 + effort.repeats * setting.accumulation))
    findings = [
        _measure_expert(opened, opened.job(name, corpus=corpus), name=name, effort=effort, task=task) for name in chosen
    ]
    task.close()
    record = variance_record(findings, setting=setting, num_parameters=opened.shape.num_parameters)
    return {"kind": "measure-variance", **record, "repeats": effort.repeats, "arithmetic": effort.arithmetic}


def _measurable(run: SomaRun) -> list[str]:
    names = [str(expert) for expert in range(run.num_experts) if run.last_update(str(expert))]
    if not names:
        raise UserError(
            "no expert of this run has a checkpoint yet",
            where=str(run.folder.root / "experts"),
            fix="train the run first, or go on training it",
        )
    return names


def _measure_expert(run: SomaRun, job: ExpertJob, *, name: str, effort: Effort, task: Task) -> ExpertFindings:
    folder, config, shape = run.job_folder(name), job.config, job.shape
    state = load_state(job, folder=folder, update=run.last_update(name))
    epsilon = rates(state.plateau, config=config).epsilon
    exact = Expert(state.expert.theta.double(), state.expert.decoder.double())
    first, second, rest = _divided_windows(job, effort=effort, where=str(folder.root))
    reference = Reference(*(gradient_moments(exact, shape=shape, windows=part) for part in (first, second)))
    if reference.squared_gradient <= 0:
        raise UserError(
            f"{reference.both.num_windows} windows are too few to see the gradient of expert {name}",
            where=str(folder.root),
            fix="ask for several times as many --reference-windows, or measure a run with more text",
        )
    task.advance()
    weights, implementation = (
        (exact, "reference") if effort.arithmetic == "float64" else (state.expert, run.config.launch.implementation)
    )
    subject = Subject(weights, shape, epsilon, implementation, effort.threads)
    batches: list[Block] = []
    spreads = []
    errors: dict[Difference, list[EstimateError]] = {difference: [] for difference in DIFFERENCES}
    for repeat in range(effort.repeats):
        samples = []
        for accumulation in range(config.accumulation):
            windows = _batch(job, rest, repeat=repeat, accumulation=accumulation)
            moments = gradient_moments(exact, shape=shape, windows=windows)
            address = ProbeAddress(stream_key(job.seed, "variance-probe", job.expert), repeat, accumulation)
            samples.append(
                sample_directions(
                    subject, windows=windows, address=address, directions=config.directions, gradient=moments.mean
                )
            )
            batches.append(coordinate_groups(moments, shape=shape, is_population=False))
            task.advance()
        spreads += [_spreads(sample, directions=config.directions) for sample in samples]
        for difference, found in errors.items():
            if difference == "central" or config.directions > 1:
                mean = np.mean([sample.estimate(difference) for sample in samples], axis=0)
                found.append(error_of(mean, reference=reference))
    population = coordinate_groups(reference.both, shape=shape, is_population=True)
    curvature = _curvature(exact, job, reference=reference, noisy=first, curved=second)
    task.advance()
    return ExpertFindings(job.expert, state.update, epsilon, reference, population, curvature, batches, spreads, errors)


def _curvature(
    exact: Expert, job: ExpertJob, *, reference: Reference, noisy: torch.Tensor, curved: torch.Tensor
) -> NoiseCurvature:
    """From some of the two sets of reference windows."""
    count = max(CURVED_BYTES // job.config.window_bytes, USUAL_CURVED_WINDOWS)
    return noise_curvature(
        exact,
        shape=job.shape,
        noisy=noisy[:NOISY_WINDOWS],
        windows=curved[:count],
        halves=(reference.first.mean, reference.second.mean),
        generator=numpy_generator(job.seed, "variance-curvature", job.expert),
    )


def _spreads(sample: DirectionSample, *, directions: int) -> tuple[Spread, Spread, Spread]:
    if directions < 2:
        unknown = Spread(nan, nan)
        return unknown, unknown, unknown
    return (
        central_spread(sample, directions=directions),
        one_sided_spread(sample, directions=directions),
        small_epsilon_spread(sample, directions=directions),
    )


def _divided_windows(job: ExpertJob, *, effort: Effort, where: str) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Two disjoint sets for the reference, and the windows left for the estimates.

    choice: at most two thirds of an expert's windows become reference, so that small shards can be measured too.
    """
    members = np.asarray(job.train)
    usual = max(REFERENCE_BYTES // job.config.window_bytes, USUAL_REFERENCE_WINDOWS)
    half = min((effort.reference_windows or usual) // 2, len(members) // 3)
    if 2 * half < FEWEST_REFERENCE_WINDOWS:
        raise UserError(
            f"an expert with {len(members)} windows, of which {2 * half} for a reference gradient, is too little",
            where=where,
            fix=f"use at least {FEWEST_REFERENCE_WINDOWS} --reference-windows, and a run with more text",
        )
    generator = numpy_generator(job.seed, "variance-reference", job.expert)
    order = generator.permutation(members)
    drawn, length = order[: 2 * half].astype(np.int64), job.config.window_bytes
    offsets = generator.integers(0, job.cluster_window_bytes - length + 1, len(drawn))
    windows = torch.from_numpy(job.shards.gather(drawn * job.cluster_window_bytes + offsets, length=length + 1))
    return windows[:half], windows[half:], np.sort(order[2 * half :])


def _batch(job: ExpertJob, members: np.ndarray, *, repeat: int, accumulation: int) -> torch.Tensor:
    windows = draw_training_windows(
        job.shards,
        members,
        key=stream_key(job.seed, "variance-batch", job.expert),
        update=repeat,
        accumulation=accumulation,
        batch=job.config.batch,
        input_bytes=job.config.window_bytes,
        window_bytes=job.cluster_window_bytes,
    )
    return torch.from_numpy(windows)
