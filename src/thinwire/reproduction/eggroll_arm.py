"""How does EGGROLL fare on the text and the test windows of the other arms?  From its own random start (Fig. 1)."""

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from thinwire.base.progress import Silent
from thinwire.config.fingerprint import as_record
from thinwire.data.corpus import Corpus
from thinwire.experiments.eggroll import eggroll_paper, eggroll_small
from thinwire.reproduction.arms import ARMS, Stage, evenly, forget_if_past
from thinwire.reproduction.item import Scale
from thinwire.reproduction.workplace import Workplace
from thinwire.runs.layout import JobFolder
from thinwire.soma.compute import Compute
from thinwire.soma.eggroll_config import EggrollConfig, EggrollModel
from thinwire.soma.eggroll_job import (
    EggrollState,
    byte_forwards_per_update,
    initial_state,
    open_job,
    scored_losses,
)
from thinwire.soma.eggroll_training import load_state, train
from thinwire.soma.run import SomaRun
from thinwire.soma.scoring import corpus_windows

WIDTHS: dict[Scale, int] = {"smoke": 8, "cpu": 29, "paper": 339}
"""So that all parameters together are about the other arms' (72 d^2 + 537 d)."""
POPULATION: dict[Scale, int] = {"smoke": 64, "cpu": eggroll_small().training.population, "paper": 2**20}


class EndOfEggroll(NamedTuple):
    """A trained model: its settings and float32 theta [M]."""

    config: EggrollConfig
    theta: Tensor


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
    found = []
    for updates in _stages(config, budget=budget, num_stages=num_stages):

        def compute(updates: int = updates) -> dict[str, Any]:
            return _scored(place, config, base=base, updates=updates)._asdict()

        inputs = [as_record(config), as_record(base.config.scoring), base.config.seed, updates]
        found.append(Stage(**place.part(f"eggroll-s{seed}-{updates:06d}", inputs=inputs, compute=compute)))
    return found


def eggroll_end(place: Workplace, base: SomaRun, *, seed: int, budget: float, num_stages: int) -> EndOfEggroll:
    """The weights at the end of the same stages."""
    config = eggroll_config(place.scale, base=base, seed=seed)
    last = _stages(config, budget=budget, num_stages=num_stages)[-1]
    return EndOfEggroll(config, _state_after(place, config, updates=last).theta)


def _stages(config: EggrollConfig, *, budget: float, num_stages: int) -> list[int]:
    cost = byte_forwards_per_update(config.training) * config.shape.operations_per_byte
    return evenly(max(num_stages, int(budget // cost)), num_stages=num_stages)


def _state_after(place: Workplace, config: EggrollConfig, *, updates: int) -> EggrollState:
    training = replace(config.training, updates=max(updates, 1))
    job = open_job(replace(config, training=training), corpus=Corpus.open(place.data))
    if not updates:
        return initial_state(job)
    folder = JobFolder(place.folder / ARMS / f"eggroll-s{config.seed}" / job.fingerprint[:8])
    forget_if_past([folder], updates=updates)
    train(
        job,
        folder=folder,
        compute=Compute("auto", place.threads),
        task=Silent().task("EGGROLL", None),
        say=place.voice.say,
        should_stop=lambda: False,
    )
    return load_state(job, folder=folder, update=updates)


def _scored(place: Workplace, config: EggrollConfig, *, base: SomaRun, updates: int) -> Stage:
    state = _state_after(place, config, updates=updates)
    windows = corpus_windows(base.config, Corpus.open(place.data)).windows
    compute = Compute("auto", place.threads)
    loss = float(scored_losses(state.theta, windows, config=config, compute=compute).mean())
    forwards = updates * byte_forwards_per_update(config.training)
    return Stage(updates, loss, forwards, forwards * config.shape.operations_per_byte, state.device_seconds)
