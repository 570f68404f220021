"""Is everything an update calls compiled before the workers start, and is a long wait told?"""

from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from thinwire.base.progress import Silent, Task, Voice
from thinwire.data.corpus import Corpus
from thinwire.kernels.expert_losses import cpu_impl
from thinwire.kernels.lane_forward import forward_lanes
from thinwire.soma import warm_kernels as module
from thinwire.soma.compute import Compute
from thinwire.soma.expert_job import initial_state
from thinwire.soma.expert_update import evaluate_update, validation_loss
from thinwire.soma.model import initial_expert, shape_of
from thinwire.soma.run import SomaRun
from thinwire.soma.warm_kernels import warm_kernels

SHAPE = shape_of(tiny_runs.CONFIG.model)
EXPERT = initial_expert(SHAPE, seed=0)
NUMBA = Compute("numba")


class Opened(Silent):
    """Remembers the names of the bars."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task(self, name: str, total: int | None) -> Task:
        self.names.append(name)
        return super().task(name, total)


@pytest.mark.parametrize("name", ["seed", "0"])
def test_an_update_after_it_compiles_nothing_more(name: str, tiny_run: Path, tiny_data: Path) -> None:
    job = SomaRun.open(tiny_run).job(name, corpus=Corpus.open(tiny_data))
    job = replace(job, config=replace(job.config, batch=1 if name == "seed" else 2))
    warm_kernels(job.start, config=job.config, shape=job.shape, implementation="numba", voice=Voice())
    known = [len(function.signatures) for function in (cpu_impl._mean_losses, forward_lanes)]
    assert all(known)
    state = evaluate_update(job, initial_state(job), compute=NUMBA).state
    validation_loss(job, state.expert, compute=NUMBA)
    assert [len(function.signatures) for function in (cpu_impl._mean_losses, forward_lanes)] == known


@pytest.mark.parametrize(("noticeable", "lines"), [(0.0, 1), (1e9, 0)])
def test_only_a_long_wait_is_told(noticeable: float, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICEABLE_SECONDS", noticeable)
    said, bars = list[str](), Opened()
    voice = Voice(bars, said.append)
    seconds = warm_kernels(EXPERT, config=tiny_runs.JOB, shape=SHAPE, implementation="auto", voice=voice)
    assert seconds > 0
    assert bars.names == ["kernels"]
    assert [line.startswith("kernels: compiled in ") for line in said] == [True] * lines


def test_the_reference_has_nothing_to_compile() -> None:
    bars = Opened()
    voice = Voice(bars)
    assert warm_kernels(EXPERT, config=tiny_runs.JOB, shape=SHAPE, implementation="reference", voice=voice) == 0.0
    assert bars.names == []
