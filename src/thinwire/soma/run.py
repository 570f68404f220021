"""What is in this run folder?  Its configuration, data and router, and the jobs they define."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thinwire.base.errors import UserError
from thinwire.base.files import read_json
from thinwire.data.corpus import Corpus
from thinwire.data.windows import num_windows
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder, RunFolder
from thinwire.soma.clusters import split_members
from thinwire.soma.config import SomaConfig, from_record
from thinwire.soma.expert_job import SEED_RUN, ExpertJob
from thinwire.soma.model import Expert, initial_expert, shape_of
from thinwire.soma.router import Router

SEED_NAME = "seed"
ASSIGNMENT = "assignment.npy"


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
        record = folder.read_config()
        if record.get("kind") != "soma":
            raise UserError(
                f"this run is of kind '{record.get('kind')}', not soma", where=str(folder.config), fix="give a SOMA run"
            )
        return cls(folder, record["preset"], from_record(record["config"]))

    @property
    def shape(self) -> ExpertShape:
        return shape_of(self.config.model)

    @property
    def num_experts(self) -> int:
        return self.config.clusters.num_clusters

    def open_corpus(self) -> Corpus:
        """The prepared data this run was started on; raises UserError where it is gone or has changed."""
        recorded = read_json(self.folder.manifest)["data"]
        corpus = Corpus.open(Path(recorded["folder"]))
        if corpus.fingerprint != recorded["fingerprint"]:
            raise UserError(
                "the data folder has changed since this run began",
                where=recorded["folder"],
                fix="prepare the same data again, or start another run",
            )
        return corpus

    def router(self) -> Router:
        return Router.load(self.folder.router)

    def assignment(self) -> np.ndarray:
        """int32 [windows], the cluster of every training window."""
        return np.load(self.folder.router / ASSIGNMENT, mmap_mode="r", allow_pickle=False)

    def job_folder(self, name: str) -> JobFolder:
        return self.folder.seed if name == SEED_NAME else self.folder.expert(int(name))

    def job(self, name: str, *, corpus: Corpus) -> ExpertJob:
        """The seed run (``"seed"``) or expert ``name`` = 0..N-1, which starts from the seed's last weights."""
        config, clusters = self.config, self.config.clusters
        if name == SEED_NAME:
            windows = num_windows(corpus.train, window_bytes=clusters.window_bytes)
            if windows < 4:
                raise UserError(
                    f"the training text has {windows} windows of {clusters.window_bytes} bytes; 4 are needed",
                    where=str(corpus.folder),
                    fix="prepare more text, or use shorter windows (--clusters.window-bytes)",
                )
            everything = np.zeros(windows, np.int32)
            sampled = split_members(
                everything, cluster=0, validation_fraction=config.seed_sample, seed=config.seed
            ).validation
            if len(sampled) < 2:
                sampled = np.arange(windows)
            outside = np.full(windows, 1, np.int32)
            outside[sampled] = 0
            members, training = outside, config.seed_run
            expert, cluster, start = SEED_RUN, 0, initial_expert(self.shape, seed=config.seed)
        else:
            expert = cluster = int(name)
            members, training, start = self.assignment(), config.experts, self.final_expert(SEED_NAME)
        parts = split_members(
            members, cluster=cluster, validation_fraction=clusters.validation_fraction, seed=config.seed
        )
        return ExpertJob(
            expert=expert,
            seed=config.seed,
            config=training,
            shape=self.shape,
            start=start,
            shards=corpus.train,
            train=parts.train,
            validation=parts.validation,
            cluster_window_bytes=clusters.window_bytes,
        )

    def final_expert(self, name: str, *, update: int | None = None) -> Expert:
        """Weights of a job's newest checkpoint (or of ``update``); raises UserError where there is none."""
        folder = self.job_folder(name).checkpoints
        updates = checkpoint.list_updates(folder)
        if not updates:
            raise UserError(
                f"'{name}' has no checkpoint yet", where=str(folder), fix="train the run first, or go on training it"
            )
        shapes = {
            "theta": (self.shape.num_parameters,),
            "decoder": (256, self.shape.embed_width),
        }
        tensors = checkpoint.load(folder, updates[-1] if update is None else update, shapes=shapes).tensors
        return Expert(tensors["theta"], tensors["decoder"])
