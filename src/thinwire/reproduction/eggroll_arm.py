"""How does EGGROLL fare on the text and the test windows of the other arms?  From its own random start (Fig. 1)."""

import shutil
from dataclasses import replace
from typing import Any

from thinwire.base.progress import Silent
from thinwire.config.fingerprint import as_record
from thinwire.data.corpus import Corpus
from thinwire.experiments.eggroll import eggroll_paper, eggroll_small
from thinwire.reproduction.arms import ARMS, Stage
from thinwire.reproduction.item import Scale
from thinwire.reproduction.workplace import Workplace
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma.eggroll_config import EggrollConfig, EggrollModel
from thinwire.soma.eggroll_job import EggrollJob, byte_forwards_per_update, initial_state, open_job, scored_losses
from thinwire.soma.eggroll_training import load_state, train
from thinwire.soma.expert_training import Compute
from thinwire.soma.run import SomaRun
from thinwire.soma.scoring import corpus_windows

WIDTHS: dict[Scale, int] = {"smoke": 8, "cpu": 29, "paper": 339}
"""So that all parameters together are about the other arms' (72 d^2 + 537 d)."""
POPULATION: dict[Scale, int] = {"smoke": 64, "cpu": eggroll_small().training.population, "paper": 2**20}


def eggroll_config(scale: Scale, *, base: SomaRun, seed: int) -> EggrollConfig:
    """Scored as the base; the rules of our small preset, or of the paper."""
    config = eggroll_paper(WIDTHS[scale]) if scale == "paper" else eggroll_small()
    streams = 16 if scale == "smoke" else config.training.streams
    return replace(
        config,
        seed=seed,
        model=EggrollModel(width=WIDTHS[scale]),
        training=replace(
            config.training,
            population=POPULATION[scale],
            streams=streams,
            validate_every=10**9,
            validation_windows=16,
            checkpoint_every=10**9,
        ),
        prefix_bytes=base.config.routing.prefix_bytes,
        scoring=base.config.scoring,
    )


def eggroll_curve(place: Workplace, base: SomaRun, *, seed: int, budget: float, num_stages: int) -> list[Stage]:
    """Stages up to a budget of arithmetic operations; made once, resumes."""
    config = eggroll_config(place.scale, base=base, seed=seed)
    forwards = byte_forwards_per_update(config.training)
    last = max(num_stages, int(budget // (forwards * config.shape.operations_per_byte)))
    found = []
    for updates in sorted({0, *(last * (part + 1) // num_stages for part in range(num_stages))}):

        def compute(updates: int = updates) -> dict[str, Any]:
            training = replace(config.training, updates=max(updates, 1))
            job = open_job(replace(config, training=training), corpus=Corpus.open(place.data))
            return _trained(place, job, base=base, name=f"eggroll-s{seed}", updates=updates)._asdict()

        inputs = [as_record(config), as_record(base.config.scoring), base.config.seed, updates]
        found.append(Stage(**place.part(f"eggroll-s{seed}-{updates:06d}", inputs=inputs, compute=compute)))
    return found


def _trained(place: Workplace, job: EggrollJob, *, base: SomaRun, name: str, updates: int) -> Stage:
    compute, folder = Compute("auto", place.threads), JobFolder(place.folder / ARMS / name / job.fingerprint[:8])
    state = initial_state(job)
    if updates:
        there = checkpoint.list_updates(folder.checkpoints)
        if updates not in there and max(there, default=0) > updates:
            shutil.rmtree(folder.root)  # past this stage, whose score was lost: made again from the start
        train(
            job,
            folder=folder,
            compute=compute,
            task=Silent().task("EGGROLL", None),
            say=place.voice.say,
            should_stop=lambda: False,
        )
        state = load_state(job, folder=folder, update=updates)
    windows = corpus_windows(base.config, Corpus.open(place.data)).windows
    loss = float(scored_losses(state.theta, windows, config=job.config, compute=compute).mean())
    forwards = updates * byte_forwards_per_update(job.config.training)
    return Stage(updates, loss, forwards, forwards * job.config.shape.operations_per_byte, state.device_seconds)
