"""What does a rank beside rank 0 do?  Its share of every update, on jobs that it is given; it writes nothing."""

import torch

from thinwire.base.progress import Voice
from thinwire.data.corpus import Corpus
from thinwire.runs.loop import run_loop
from thinwire.soma.compute import Compute
from thinwire.soma.config import SomaConfig
from thinwire.soma.expert_job import ExpertJob, ExpertState, validates
from thinwire.soma.expert_update import apply_record, evaluate_update
from thinwire.soma.handed_job import take
from thinwire.soma.perturbation_parallel import Crew
from thinwire.soma.scalar_log import ValidationRecord
from thinwire.soma.warm_kernels import warm_kernels


def follow(crew: Crew, *, config: SomaConfig, corpus: Corpus, compute: Compute) -> None:
    """Help rank 0 with every job it trains, until it has no more.

    Raises:
        InterruptedRunError: somebody asked one of the ranks to stop; rank 0 kept every update.
        RunFailedError: training has diverged, or the ranks' weights differ.
        PeerLostError: a rank is lost.
    """
    torch.set_num_threads(1)  # as on rank 0: the same bits
    while (taken := take(crew, config=config, corpus=corpus)) is not None:
        _follow_job(*taken, crew=crew, compute=compute)


def _follow_job(job: ExpertJob, state: ExpertState, *, crew: Crew, compute: Compute) -> None:
    warm_kernels(job.start, config=job.config, shape=job.shape, implementation=compute.implementation, voice=Voice())

    def step(state: ExpertState, _: int) -> ExpertState:
        return evaluate_update(job, state, compute=compute, crew=crew).state

    def validate(state: ExpertState, *, update: int) -> ExpertState:
        if not validates(job, update):
            return state
        record = ValidationRecord(update, crew.agree(state, loss=None).loss)
        return apply_record(job, state, record, compute=compute)

    run_loop(
        state,
        step,
        first_update=state.update + 1,
        last_update=job.config.updates,
        hooks=[validate],
        should_stop=lambda: crew.stops,
    )
