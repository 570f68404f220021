"""What does one rank do in a test of training?  A few updates of a tiny model on drawn text, phases included."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from dense_reference import DenseAttention
from torch import Tensor

from thinwire.base.seeds import numpy_generator
from thinwire.comm.group import Group
from thinwire.data.tokens import TokenStream
from thinwire.subspaces.config import (
    CodecConfig,
    LlamaConfig,
    OptimizerConfig,
    PhasesConfig,
    SequenceConfig,
    SubspacesConfig,
    SyncConfig,
)
from thinwire.subspaces.replica import SIDES, Replica
from thinwire.subspaces.schedule import is_settling_step, phase_of
from thinwire.subspaces.team import Team
from thinwire.subspaces.trainer import Compute, Texts, Trainer


class DrawnStream(TokenStream):
    """Tokens 0..15 in which each is often followed by the next, so that there is something to learn."""

    def __init__(self, *, num_tokens: int = 3000) -> None:
        steps = numpy_generator(0, "drawn stream").choice([1, 2, 7], num_tokens, p=[0.7, 0.2, 0.1])
        self.tokens = np.cumsum(steps).astype(np.int64) % 16
        self.vocab_size, self.num_tokens = 16, num_tokens
        self.document_starts = np.zeros(1, np.int64)
        self.document_lengths = np.full(1, num_tokens - 1, np.int64)
        self.token_bytes = np.ones(16, np.int64)
        self.where = "drawn"

    def gather(self, starts: np.ndarray, *, length: int) -> np.ndarray:
        return self.tokens[starts[:, None] + np.arange(length)]


CODEC = CodecConfig(key_rate=0.5, value_rate=0.5, generators=2, wire="float64")
SYNC = SyncConfig(wire="float64")


def config(*, codec: CodecConfig = CODEC, sync: SyncConfig = SYNC, steps: int = 20) -> SubspacesConfig:
    """Warm-up to step 6, compressed to 15, folded to 20."""
    return SubspacesConfig(
        seed=5,
        model=LlamaConfig(layers=2, width=16, heads=2, kv_heads=2, head_width=8, hidden=24, rope_base=100.0),
        sequence=SequenceConfig(tokens=26, chunks=5, batch=2, accumulation=2),
        codec=codec,
        optimizer=OptimizerConfig(steps=steps, learning_rate=1e-2, ramp_steps=3, weight_decay=0.1),
        phases=PhasesConfig(warmup_steps=6, warmup_tokens=13, unplug_fraction=0.25),
        sync=sync,
        checkpoint_every=10 * sync.every,
        validation_sequences=3,
    )


@dataclass(frozen=True)
class Trained:
    """What a rank saw.

    Attributes:
        losses: this rank's part of each update, nats.
        phases: of each update.
        weights: after each update that makes one model of the replicas (every update where gradients are summed).
        drifted: after the update before the first of these.
        validation: loss in nats per token after the last update.
        around_change: the same before and after a phase begins, by its name.
    """

    losses: list[float]
    phases: list[str]
    weights: dict[int, dict[str, Tensor]]
    drifted: dict[str, Tensor]
    validation: float
    around_change: dict[str, tuple[float, float]]


def new_trainer(group: Group, settings: SubspacesConfig, *, dtype: torch.dtype = torch.float64) -> Trainer:
    """Before the first update. One group serves both purposes: nothing in these updates uses both at once."""
    torch.set_num_threads(1)
    stream, compute = DrawnStream(), Compute(torch.device("cpu"), dtype=dtype)
    team = Team(group, group, tuple(range(group.size)))
    return Trainer(settings, team=team, texts=Texts(stream, stream), compute=compute)


def trainer_after(group: Group, settings: SubspacesConfig, *, step: int) -> Trainer:
    """After so many updates."""
    trainer = new_trainer(group, settings)
    for done in range(1, step + 1):
        if phase_of(done, settings) != trainer.phase:
            trainer.change_phase(phase_of(done, settings))
        trainer.train_step()
    return trainer


class _ThetaRecorder(DenseAttention):
    """Keeps theta of every chunk and the frame it names."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.seen: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    def _thetas(self, pieces: list[Tensor], *, layer: int, side: str, first: int) -> list[Tensor]:
        found = super()._thetas(pieces, layer=layer, side=side, first=first)
        rows = torch.cat(found).detach()
        self.seen[layer, side] = rows, self._frames(rows, layer=layer, side=side)
        return found

    def frame(self, theta: Tensor, *, layer: int, side: str) -> Tensor:
        """Of one theta [k]: [w, r]."""
        return self._frames(theta[None], layer=layer, side=side)[0]


def dense_thetas(
    replica: Replica, settings: SubspacesConfig, sequences: np.ndarray, *, step: int = 0, first_sequence: int = 0
) -> _ThetaRecorder:
    """One dense pass over whole sequences [n, tokens + 1]; ``seen`` has (layer, side) -> thetas [chunks * n, k] and
    frames [chunks * n, w, r]."""
    psi: dict[tuple[int, str], Any] = {}
    for layer, heads in enumerate(replica.heads.layers if replica.heads is not None else ()):
        psi |= {(layer, side): tuple(getattr(heads, side).parameters()) for side in SIDES}
    size = settings.sequence
    attend = _ThetaRecorder(
        settings.model,
        codec=settings.codec,
        bounds=[size.tokens * index // size.chunks for index in range(size.chunks + 1)],
        bases=replica.bases,
        psi=psi,
        seed=settings.seed,
        step=step,
        first_sequence=first_sequence,
    )
    with torch.no_grad():
        replica.llama.hidden([torch.from_numpy(sequences[:, :-1].copy())], attend)
    return attend


def train(group: Group, settings: SubspacesConfig, *, dtype: torch.dtype = torch.float64) -> Trained:
    """All updates of a run."""
    trainer = new_trainer(group, settings, dtype=dtype)
    found = Trained([], [], {}, {}, 0.0, {})
    drifted: dict[str, Tensor] = {}
    for step in range(1, settings.optimizer.steps + 1):
        phase = phase_of(step, settings)
        if phase != trainer.phase:
            before = trainer.validate().loss
            trainer.change_phase(phase)
            found.around_change[phase] = before, trainer.validate().loss
        found.losses.append(trainer.train_step().loss)
        found.phases.append(phase)
        if settings.sync.every == 1 or is_settling_step(step, settings):
            found.weights[step] = {name: weight.clone() for name, weight in trainer.replica.weights().items()}
        elif not found.weights:
            drifted = {name: weight.clone() for name, weight in trainer.replica.weights().items()}
    validation = trainer.validate().loss
    if trainer.averaging is not None:
        trainer.averaging.close()
    return Trained(found.losses, found.phases, found.weights, drifted, validation, found.around_change)
