"""What is in this EGGROLL run's folder?  Its configuration, data and counts, and the weights of its one model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.data.corpus import Corpus
from thinwire.data.reopen import reopen
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder, RunFolder
from thinwire.runs.settings import Method, read_settings
from thinwire.soma.byte_counts import load_bigrams
from thinwire.soma.eggroll_config import EggrollConfig

KIND = "eggroll"
EGGROLL = Method(KIND, "an EGGROLL")


@dataclass(frozen=True)
class EggrollRun:
    """An open run folder.

    Attributes:
        folder: where each file lies.
        preset: the preset it was started from.
        config: the whole configuration.
    """

    folder: RunFolder
    preset: str
    config: EggrollConfig

    @classmethod
    def open(cls, root: Path) -> "EggrollRun":
        """Raises UserError where ``root`` is no run folder, or one of another method."""
        folder = RunFolder(root)
        preset, config = read_settings(folder, EggrollConfig, method=EGGROLL)
        return cls(folder, preset, config)

    @property
    def job_folder(self) -> JobFolder:
        """The one model is expert 0 of one."""
        return self.folder.expert(0)

    def open_corpus(self) -> Corpus:
        """The prepared data this run was started on; raises UserError where it is gone or has changed."""
        return reopen(self.folder.read_data_record())

    def bigrams(self) -> np.ndarray:
        """uint64 [256, 256], byte-bigram counts of the training split, from the run's own copy."""
        return load_bigrams(self.folder)

    @property
    def last_update(self) -> int:
        """Of the newest checkpoint; 0 where there is none."""
        return max(checkpoint.list_updates(self.job_folder.checkpoints), default=0)

    def weights(self) -> Float[Tensor, " M"]:
        """Theta of the newest checkpoint; raises UserError where there is none, or it is damaged."""
        folder = self.job_folder.checkpoints
        if not checkpoint.list_updates(folder):
            raise UserError(
                "the run has no checkpoint yet", where=str(folder), fix="train the run first, or go on training it"
            )
        shapes = {"theta": (self.config.shape.num_parameters,)}
        return checkpoint.load(folder, self.last_update, shapes=shapes).tensors["theta"]
