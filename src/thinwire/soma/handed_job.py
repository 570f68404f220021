"""How does a rank come by the job that rank 0 trains?  Rank 0 hands it out; the others keep no run folder.

The first weights, which windows, and the state to go on from travel once a job; the settings and the text are each
rank's own, and must be the same.
"""

from typing import Any

import torch
from torch import Tensor

import thinwire
from thinwire.base.errors import UserError
from thinwire.comm.collectives import broadcast, gather_json
from thinwire.config.fingerprint import differing_keys
from thinwire.data.corpus import Corpus
from thinwire.kernels.dispatch import choose_for_this_machine
from thinwire.soma.config import SomaConfig, gradient_parts, result_record
from thinwire.soma.expert_job import SEED_RUN, ExpertJob, ExpertState
from thinwire.soma.job_checkpoint import numbers_of, state_of, tensors_of
from thinwire.soma.model import Expert, shape_of
from thinwire.soma.perturbation_parallel import HANDED, Crew


def compare_settings(crew: Crew, *, config: SomaConfig, corpus: Corpus) -> None:
    """Every rank calls this before the first job.

    Raises:
        UserError: settings, text, version or kernels of this rank, or of one of the others, are not those of rank 0.
        PeerLostError: a rank is lost.
    """
    chosen = choose_for_this_machine(config.launch.implementation)
    own = {
        "data": corpus.fingerprint,
        "version": thinwire.__version__,
        "implementation": chosen,
        "settings": result_record(config),
    }
    said = gather_json(crew.group, own)
    for rank, one in enumerate(said):
        if one != said[0]:
            differences = differing_keys(said[0], one)
            raise UserError(
                f"rank {rank} was started with other settings or text than rank 0:\n    " + "\n    ".join(differences),
                where=f"rank {rank}",
                fix="start every rank with the same command, on the same prepared data",
            )


def hand_out(crew: Crew, job: ExpertJob, state: ExpertState) -> None:
    """Rank 0 gives the others the job it trains and where it stands. Raises PeerLostError."""
    tensors = _tensors(job, state)
    meta = {
        "expert": job.expert,
        "fingerprint": job.fingerprint,
        "tensors": {name: [list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in tensors.items()},
        "update": state.update,
        **numbers_of(state),
    }
    crew.begin()
    crew.first_update = state.update
    gather_json(crew.group, meta, tag=HANDED)
    broadcast(crew.group, list(tensors.values()), root=0, tag=HANDED)


def dismiss(crew: Crew) -> None:
    """There are no more jobs. Raises PeerLostError."""
    gather_json(crew.group, None, tag=HANDED)


def take(crew: Crew, *, config: SomaConfig, corpus: Corpus) -> tuple[ExpertJob, ExpertState] | None:
    """The next job on another rank, or None where there are no more.

    Raises:
        PeerLostError: a rank is lost.
    """
    crew.begin()
    meta: dict[str, Any] | None = gather_json(crew.group, None, tag=HANDED)[0]
    if meta is None:
        return None
    empty = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in meta["tensors"].values()]
    tensors = dict(zip(meta["tensors"], broadcast(crew.group, empty, root=0, tag=HANDED), strict=True))
    is_seed = meta["expert"] == SEED_RUN
    job = ExpertJob(
        expert=meta["expert"],
        seed=config.seed,
        config=config.seed_run if is_seed else config.experts,
        shape=shape_of(config.model),
        start=Expert(tensors["start.theta"], tensors["start.decoder"]),
        shards=corpus.train,
        train=tensors["train"].numpy(),
        validation=tensors["validation"].numpy(),
        cluster_window_bytes=config.clusters.window_bytes,
        gradient_parts=gradient_parts(config),
    )
    assert job.fingerprint == meta["fingerprint"], "settings and text were compared when the ranks met"
    crew.first_update = meta["update"]
    return job, state_of(tensors, meta, update=meta["update"])


def _tensors(job: ExpertJob, state: ExpertState) -> dict[str, Tensor]:
    given = {
        "start.theta": job.start.theta,
        "start.decoder": job.start.decoder,
        "train": torch.from_numpy(job.train),
        "validation": torch.from_numpy(job.validation),
    }
    return given | tensors_of(state)
