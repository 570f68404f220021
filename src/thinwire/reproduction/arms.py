"""What is an arm of a comparison?  Experts of one prepared run, trained on under a rule, scored at set updates.

Arms of one base share its clusters, its test windows and, unless they say otherwise, their starting weights; a seed
changes the sampled batches and probes alone, as in the paper's tuning study (appendix I.2). They train in this process
on all threads, one after the other, through the jobs that a run's own experts train by.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from thinwire.base.files import sha256_text
from thinwire.base.progress import Silent
from thinwire.config.fingerprint import as_record
from thinwire.data.corpus import Corpus
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.reproduction.workplace import RUNS, Workplace
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder, exclusive
from thinwire.soma import recipe
from thinwire.soma.compute import Compute
from thinwire.soma.config import SomaConfig, TrainingConfig
from thinwire.soma.ensemble import Ensemble, score_windows
from thinwire.soma.expert_job import ExpertJob, byte_forwards_per_update
from thinwire.soma.expert_training import Member, train_together
from thinwire.soma.job_checkpoint import load_state
from thinwire.soma.model import Expert, initial_expert, stack_thetas
from thinwire.soma.run import SEED_NAME, SomaRun
from thinwire.soma.scoring import corpus_windows
from thinwire.soma.updates import AdamState

ARMS = "arms"


class Start(NamedTuple):
    """Weights before an arm's first update, one an expert, and Adam's moments of theta; None starts from zero."""

    experts: list[Expert]
    moments: list[AdamState] | None = None


@dataclass(frozen=True)
class Arm:
    """What distinguishes an arm.

    Attributes:
        name: a folder's name, one in its item.
        training: the experts' rule; ``updates`` is set by the stages.
        seed: of batches and probes.
        is_summed: whether every expert learns from the sum of all losses.
    """

    name: str
    training: TrainingConfig
    seed: int
    is_summed: bool = False


class Stage(NamedTuple):
    """An arm after so many updates; costs are of all experts together, since the arm's start.

    Attributes:
        loss: of the routed mixture on the base's test windows, nats per byte.
    """

    updates: int
    loss: float
    byte_forwards: int
    operations: int
    device_seconds: float


def clustered_run(place: Workplace, name: str, config: SomaConfig) -> SomaRun:
    """A run with its clusters fitted and nothing trained. Made once."""
    folder, corpus = place.out / RUNS / name, Corpus.open(place.data)
    with exclusive(folder):
        run = recipe.open_or_create(config, corpus=corpus, out=folder, preset=name, command=place.command)
        recipe.fit_clusters(run, corpus=corpus, voice=place.voice)
    return run


def prepared_run(place: Workplace, name: str, config: SomaConfig) -> SomaRun:
    """A run with its clusters fitted and its seed run trained, and no expert: the base of arms. Made once."""
    run = clustered_run(place, name, config)
    with exclusive(run.folder.root):
        recipe.train_seed(run, corpus=Corpus.open(place.data), voice=place.voice)
    return run


def warm_start(run: SomaRun) -> Start:
    """The seed run's weights for every expert."""
    return Start([run.final_expert(SEED_NAME)] * run.num_experts)


def cold_start(run: SomaRun) -> Start:
    """Random bodies, and the seed run's E (appendix D.1)."""
    initial, seed = initial_expert(run.shape, seed=run.config.seed), run.final_expert(SEED_NAME)
    return Start([Expert(initial.theta, seed.decoder)] * run.num_experts)


def random_start(run: SomaRun) -> Start:
    """Random bodies and a random E."""
    return Start([initial_expert(run.shape, seed=run.config.seed)] * run.num_experts)


def train_arm(place: Workplace, run: SomaRun, arm: Arm, *, start: Start, stages: Sequence[int]) -> list[Stage]:
    """Train an arm through its stages (numbers of updates, rising; 0 scores the start). Resumes; made once.

    Raises:
        UserError: the arm's folder is damaged, or was made from something else.
    """
    inputs = [as_record(arm.training), arm.seed, arm.is_summed, *identity(run, start)]
    found = []
    for updates in stages:

        def compute(updates: int = updates) -> dict[str, Any]:
            return _trained(place, run, arm, start=start, updates=updates)._asdict()

        found.append(Stage(**place.part(f"{arm.name}-{updates:06d}", inputs=[*inputs, updates], compute=compute)))
    return found


def end_of(place: Workplace, run: SomaRun, arm: Arm, *, start: Start, updates: int) -> Start:
    """Weights and moments after ``updates``, a start for further arms; trained where it is not there."""
    members = _members(place, run, arm, start=start, updates=updates)
    _train(members, place=place)
    states = [load_state(job, folder=folder, update=updates) for job, folder in members]
    return Start([state.expert for state in states], [state.body for state in states])


def jobs_of(place: Workplace, run: SomaRun, arm: Arm, *, start: Start, updates: int) -> list[ExpertJob]:
    corpus = Corpus.open(place.data)
    return [
        replace(
            run.job(str(expert), corpus=corpus, start=start.experts[expert]),
            seed=arm.seed,
            config=replace(arm.training, updates=updates, checkpoint_every=max(updates, 1)),
            moments=None if start.moments is None else start.moments[expert],
            summed_losses=run.num_experts if arm.is_summed else 1,
        )
        for expert in range(run.num_experts)
    ]


def ensemble_of(run: SomaRun, experts: list[Expert]) -> Ensemble:
    """The experts behind the run's router."""
    decoders, routing = torch.stack([expert.decoder for expert in experts]), run.config.routing
    thetas, router = stack_thetas(experts), run.router()
    return Ensemble(thetas, decoders, run.shape, router, routing.active_experts, routing.prefix_bytes)


def score_experts(place: Workplace, run: SomaRun, experts: list[Expert]) -> float:
    """Loss of the routed mixture on the run's own test windows, nats per byte."""
    windows = corpus_windows(run.config, Corpus.open(place.data)).windows
    return float(score_windows(ensemble_of(run, experts), windows, threads=place.threads).mixture.mean())


def update_operations(shape: ExpertShape, training: TrainingConfig, *, num_experts: int) -> int:
    """Arithmetic operations of one update of all experts (Eq. 21); backpropagation as three forwards."""
    return num_experts * byte_forwards_per_update(training) * shape.operations_per_byte


def evenly(last: int, *, num_stages: int) -> list[int]:
    """Zero, and so many numbers of updates up to the last."""
    return sorted({0, *(last * (part + 1) // num_stages for part in range(num_stages))})


def identity(run: SomaRun, start: Start) -> list[Any]:
    """Plain values that change when a result of the base or any starting weight or moment does."""
    config = as_record(run.config)
    del config["launch"]
    tensors = [tensor for expert in start.experts for tensor in expert]
    tensors += [tensor for state in start.moments or [] for tensor in state[:2]]
    return [config, sha256_text("".join(tensor.numpy().tobytes().hex() for tensor in tensors))]


def _members(place: Workplace, run: SomaRun, arm: Arm, *, start: Start, updates: int) -> list[Member]:
    root = place.folder / ARMS / arm.name
    jobs = jobs_of(place, run, arm, start=start, updates=updates)
    members = [Member(job, JobFolder(root / job.fingerprint[:8] / f"{job.expert:03d}")) for job in jobs]
    forget_if_past([folder for _, folder in members], updates=updates)
    return members


def forget_if_past(folders: Sequence[JobFolder], *, updates: int) -> None:
    """Remove jobs that are past a stage whose score was lost, and no longer hold it: they are trained again."""
    for folder in folders:
        there = checkpoint.list_updates(folder.checkpoints)
        if updates not in there and max(there, default=0) > updates:
            shutil.rmtree(folder.root)


def _train(members: list[Member], *, place: Workplace) -> None:
    groups = [members] if members[0].job.summed_losses > 1 else [[member] for member in members]
    for group in groups:
        train_together(
            group,
            compute=Compute("auto", place.threads),
            task=Silent().task("experts", None),
            say=place.voice.say,
            should_stop=lambda: False,
        )


def _trained(place: Workplace, run: SomaRun, arm: Arm, *, start: Start, updates: int) -> Stage:
    experts, seconds = start.experts, 0.0
    if updates:
        members = _members(place, run, arm, start=start, updates=updates)
        _train(members, place=place)
        states = [load_state(job, folder=folder, update=updates) for job, folder in members]
        experts, seconds = [state.expert for state in states], sum(state.device_seconds for state in states)
    forwards = updates * run.num_experts * byte_forwards_per_update(arm.training)
    operations = updates * update_operations(run.shape, arm.training, num_experts=run.num_experts)
    return Stage(updates, score_experts(place, run, experts), forwards, operations, seconds)
