"""What is in this run folder?  Its configuration, data and router, and the jobs they define."""

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.base.errors import UserError
from thinwire.base.files import append_json_line
from thinwire.data.corpus import Corpus
from thinwire.data.reopen import reopen
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder, RunFolder
from thinwire.runs.settings import read_settings
from thinwire.soma.byte_counts import load_bigrams
from thinwire.soma.clusters import Members, split_members
from thinwire.soma.config import SomaConfig, TrainingConfig, gradient_parts
from thinwire.soma.expert_job import SEED_RUN, ExpertJob
from thinwire.soma.model import Expert, initial_expert, shape_of
from thinwire.soma.partitions import shard_of
from thinwire.soma.recorded_curve import SOMA
from thinwire.soma.router import Router

SEED_NAME = "seed"
ASSIGNMENT = "assignment.npy"
ROUTER_DONE = "done.json"
MIN_SEED_WINDOWS = 64


def job_label(name: str) -> str:
    """What people call a job: ``"seed"`` or an expert's number."""
    return "seed run" if name == SEED_NAME else f"expert {name}"


@dataclass(frozen=True)
class SomaRun:
    """An open run folder.

    Attributes:
        folder: where each file lies.
        preset: the preset it was started from.
        config: the whole configuration.
    """

    folder: RunFolder
    preset: str
    config: SomaConfig

    @classmethod
    def open(cls, root: Path) -> "SomaRun":
        """Raises UserError where ``root`` is no run folder, or one of another method."""
        folder = RunFolder(root)
        preset, config = read_settings(folder, SomaConfig, method=SOMA)
        return cls(folder, preset, config)

    @property
    def shape(self) -> ExpertShape:
        return shape_of(self.config.model)

    @property
    def num_experts(self) -> int:
        return self.config.clusters.num_clusters

    def open_corpus(self) -> Corpus:
        """The prepared data this run was started on; raises UserError where it is gone or has changed."""
        return reopen(self.folder.read_data_record())

    def bigrams(self) -> np.ndarray:
        """uint64 [256, 256], byte-bigram counts of the training split; the run keeps a copy, so that any text can be
        scored where the data folder is not at hand."""
        return load_bigrams(self.folder)

    def router(self) -> Router:
        return Router.load(self.folder.router)

    def assignment(self) -> np.ndarray:
        """int32 [windows], the cluster of every training window; raises UserError where it is missing or damaged."""
        path = self.folder.router / ASSIGNMENT
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (FileNotFoundError, ValueError, EOFError) as error:
            raise UserError(
                "the clusters of the training windows are missing or damaged",
                where=str(path),
                fix=f"remove {path.with_name(ROUTER_DONE)}, then give the training command again: it clusters anew",
            ) from error

    def log_event(self, **record: Any) -> None:
        """Add a line to the run's log, with the time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        append_json_line(self.folder.log, {"time": now, **record})

    def training_of(self, name: str) -> TrainingConfig:
        """A job's settings."""
        return self.config.seed_run if name == SEED_NAME else self.config.experts

    def job_folder(self, name: str) -> JobFolder:
        return self.folder.seed if name == SEED_NAME else self.folder.expert(int(name))

    def job(self, name: str, *, corpus: Corpus, start: Expert | None = None) -> ExpertJob:
        """The seed run (``"seed"``) or expert ``name`` = 0..N-1.

        Args:
            start: weights before its first update; None takes those that the configuration says.

        Raises:
            UserError: too little text, or an earlier stage is missing.
        """
        config = self.config
        if name == SEED_NAME:
            expert, parts = SEED_RUN, self.seed_members()
            first, summed_losses = start or initial_expert(self.shape, seed=config.seed), 1
        else:
            expert, parts = int(name), self.expert_members(int(name))
            first = start or self.expert_start()
            summed_losses = self.num_experts if config.losses == "summed" else 1
        return ExpertJob(
            expert=expert,
            seed=config.seed,
            config=self.training_of(name),
            shape=self.shape,
            start=first,
            shards=corpus.train,
            train=parts.train,
            validation=parts.validation,
            cluster_window_bytes=config.clusters.window_bytes,
            summed_losses=summed_losses,
            gradient_parts=gradient_parts(config),
        )

    def expert_start(self) -> Expert:
        """Weights before an expert's first update (Fig. 9).

        choice: the paper names warm and random starts and a frozen random head. A random start here is the seed run's
        own (all experts share it, as in appendix K); cold keeps the seed's trained E, since an expert's E is frozen.

        Raises:
            UserError: the seed run has no weights yet.
        """
        if self.config.start == "warm":
            return self.final_expert(SEED_NAME)
        initial = initial_expert(self.shape, seed=self.config.seed)
        if self.config.start == "frozen_random_head":
            return initial
        return Expert(initial.theta, self.final_expert(SEED_NAME).decoder)

    def expert_members(self, cluster: int) -> Members:
        """What an expert trains on, and the part of its windows that nothing trains on."""
        clusters, seed = self.config.clusters, self.config.seed
        shard, fraction = shard_of(cluster, config=clusters), clusters.validation_fraction
        return split_members(self.assignment(), cluster=shard, validation_fraction=fraction, seed=seed)

    def seed_members(self) -> Members:
        """A sample of the windows that no expert is validated on, divided likewise."""
        config, assignment = self.config, self.assignment()
        is_outside = np.zeros(len(assignment), np.int32)
        for cluster in range(self.num_experts):
            is_outside[self.expert_members(cluster).validation] = 1
        sample = is_outside
        # choice: a tenth of a small corpus may be too little to train on; below this many windows all are taken.
        if config.seed_sample * np.sum(is_outside == 0) >= MIN_SEED_WINDOWS and config.seed_sample < 1:
            drawn = split_members(
                is_outside, cluster=0, validation_fraction=config.seed_sample, seed=config.seed, purpose="seed-sample"
            ).validation
            sample = np.ones(len(assignment), np.int32)
            sample[drawn] = 0
        fraction = config.clusters.validation_fraction
        return split_members(
            sample, cluster=0, validation_fraction=fraction, seed=config.seed, purpose="seed-validation"
        )

    def last_update(self, name: str) -> int:
        """Of a job's newest checkpoint; 0 where it has none."""
        return max(checkpoint.list_updates(self.job_folder(name).checkpoints), default=0)

    def final_expert(self, name: str, *, update: int | None = None) -> Expert:
        """Weights of a job's newest checkpoint (or of ``update``); raises UserError where there is none."""
        folder = self.job_folder(name).checkpoints
        updates = checkpoint.list_updates(folder)
        if not updates:
            raise UserError(
                f"{job_label(name)} has no checkpoint yet",
                where=str(folder),
                fix="train the run first, or go on training it",
            )
        shapes = {
            "theta": (self.shape.num_parameters,),
            "decoder": (256, self.shape.embed_width),
        }
        tensors = checkpoint.load(folder, updates[-1] if update is None else update, shapes=shapes).tensors
        return Expert(tensors["theta"], tensors["decoder"])
