"""What are the laboratory's ensembles?  N experts of one total size, trained a little (Figs. 5, 10 and 11).

choice: they learn by backpropagation, each on its own disjoint part of the text, all from the same initial weights.
What is measured on them holds at any weights, and backpropagation reaches trained ones in seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.base.files import atomic_write
from thinwire.base.seeds import numpy_generator, stream_key
from thinwire.config.fingerprint import fingerprint
from thinwire.data.corpus import Corpus
from thinwire.data.windows import draw_training_windows, num_windows
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.reproduction.item import Scale
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.model import initial_expert
from thinwire.soma.stacked_gradients import StackedExperts, train_stacked
from thinwire.soma.updates import AdamState

ENSEMBLES = "ensembles"
Stage = Literal["initial", "early", "late"]
TRAINED: tuple[Stage, ...] = ("early", "late")
NUM_CHECKPOINTS, LEAST_UPDATES = 20, 10
"""Training keeps how far it is so many times, but not after fewer updates than these."""


@dataclass(frozen=True)
class Laboratory:
    """Sizes and training of the ensembles.

    Attributes:
        widths: number of experts -> width of each, so that the totals are about equal; the largest N last.
        embed_width: of every head.
        window_bytes: T.
        early, late: updates of the two stages.
        batch: windows of a training batch.
        learning_rate: Adam's, for bodies and heads.
        epsilon: perturbation radius of what is measured through the kernels that train.
        seed: of weights, batches and probes.
    """

    widths: tuple[tuple[int, int], ...]
    embed_width: int
    window_bytes: int
    early: int
    late: int
    batch: int
    learning_rate: float
    epsilon: float = 1e-3
    seed: int = 1

    def shape(self, num_experts: int) -> ExpertShape:
        return ExpertShape(width=dict(self.widths)[num_experts], depth=2, embed_width=self.embed_width)

    @property
    def sizes(self) -> list[int]:
        """Every N."""
        return [num_experts for num_experts, _ in self.widths]

    def total_parameters(self, num_experts: int) -> int:
        """Perturbed coordinates of all experts."""
        return num_experts * self.shape(num_experts).num_parameters

    def updates_of(self, stage: Stage) -> int:
        return {"initial": 0, "early": self.early, "late": self.late}[stage]

    def described(self) -> str:
        """For an item's notes."""
        total = self.total_parameters(self.sizes[0])
        widths = ", ".join(f"N={n} of width {width}" for n, width in self.widths)
        return (
            f"about {total:,} body parameters in total ({widths}), windows of {self.window_bytes} bytes, stages after "
            f"{self.early} and {self.late} updates of backpropagation"
        )


LABORATORIES: Mapping[Scale, Laboratory] = MappingProxyType(
    {
        "smoke": Laboratory(((1, 11), (2, 8), (8, 4)), 4, 16, early=5, late=20, batch=4, learning_rate=1e-2),
        "cpu": Laboratory(
            ((1, 128), (2, 91), (8, 45), (256, 8)), 8, 32, early=60, late=250, batch=4, learning_rate=5e-3
        ),
        "paper": Laboratory(
            ((1, 509), (2, 361), (8, 181), (256, 32)), 32, 1024, early=5000, late=10_000, batch=64, learning_rate=1e-3
        ),
    }
)


def ensemble(place: Workplace, *, num_experts: int, stage: Stage) -> StackedExperts:
    """The ensemble of N experts at a stage, float32; trained once for both stages, then read from ``out/ensembles``."""
    lab = LABORATORIES[place.scale]
    shape = lab.shape(num_experts)
    start = StackedExperts.all_alike(initial_expert(shape, seed=lab.seed), num_experts=num_experts)
    if stage == "initial":
        return start
    inputs = fingerprint(lab, num_experts, place.data_fingerprint)
    kept = _load(_path(place, num_experts, stage), inputs=inputs)
    if kept is None:
        _train(place, TrainingState(start, None, 0), num_experts=num_experts, inputs=inputs)
        kept = _load(_path(place, num_experts, stage), inputs=inputs)
    if kept is None:
        raise RuntimeError("an ensemble that was just written cannot be read")
    return kept


class TrainingState(NamedTuple):
    """Experts after ``done`` updates; Adam's moments of theta and of the heads, None before the first."""

    experts: StackedExperts
    moments: tuple[AdamState, AdamState] | None
    done: int


def _path(place: Workplace, num_experts: int, name: str) -> Path:
    return place.out / ENSEMBLES / f"n{num_experts}-{name}.safetensors"


def _train(place: Workplace, start: TrainingState, *, num_experts: int, inputs: str) -> None:
    """Both stages, going on where an earlier call was stopped; a batch depends on the number of its update alone."""
    lab, batch_of = LABORATORIES[place.scale], _batches(place, num_experts=num_experts)
    unfinished = _path(place, num_experts, "unfinished")
    state = _load_state(unfinished, inputs=inputs) or start
    if state.done >= lab.early and _load(_path(place, num_experts, "early"), inputs=inputs) is None:
        state = start
    task = place.voice.progress.task(f"laboratory, N={num_experts}", lab.late)
    task.advance(state.done)

    def counted(update: int) -> Tensor:
        task.advance()
        return batch_of(update)

    every = max(lab.late // NUM_CHECKPOINTS, LEAST_UPDATES)
    for end in sorted({lab.early, lab.late, *range(every, lab.late, every)}):
        if end <= state.done:
            continue
        experts, moments = train_stacked(
            state.experts,
            shape=lab.shape(num_experts),
            batch_of=counted,
            updates=range(state.done + 1, end + 1),
            learning_rate=lab.learning_rate,
            states=state.moments,
        )
        state = TrainingState(experts, moments, end)
        for stage in TRAINED:
            if end == lab.updates_of(stage):
                _save(_path(place, num_experts, stage), experts, inputs=inputs)
        _save_state(unfinished, state, inputs=inputs)
    unfinished.unlink(missing_ok=True)
    task.close()


def _batches(place: Workplace, *, num_experts: int) -> Callable[[int], Tensor]:
    """Update -> the windows of every expert, each from its own part of the training text."""
    lab, corpus = LABORATORIES[place.scale], Corpus.open(place.data)
    size = lab.window_bytes
    parts = [np.arange(part, num_windows(corpus.train, window_bytes=size), num_experts) for part in range(num_experts)]
    if not all(len(part) for part in parts):
        raise _too_little(place, split="training")

    def batch_of(update: int) -> Tensor:
        drawn = [
            draw_training_windows(
                corpus.train,
                part,
                key=stream_key(lab.seed, "laboratory-batch", expert),
                update=update,
                accumulation=0,
                batch=lab.batch,
                input_bytes=size,
                window_bytes=size,
            )
            for expert, part in enumerate(parts)
        ]
        return torch.from_numpy(np.stack(drawn))

    return batch_of


def _save(path: Path, experts: StackedExperts, *, inputs: str) -> None:
    tensors = {"theta": experts.theta, "decoder": experts.decoder}
    atomic_write(path, lambda temporary: save_file(tensors, temporary, metadata={"inputs": inputs}))


def _load(path: Path, *, inputs: str) -> StackedExperts | None:
    """None where it is missing, made from other inputs, or damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("inputs") != inputs:
                return None
            return StackedExperts(file.get_tensor("theta"), file.get_tensor("decoder"))
    except SafetensorError:
        return None


def _save_state(path: Path, state: TrainingState, *, inputs: str) -> None:
    tensors = {"theta": state.experts.theta, "decoder": state.experts.decoder}
    for name, moments in zip(tuple(tensors), state.moments or (), strict=True):
        tensors |= {f"{name}-first": moments.first, f"{name}-second": moments.second}
    metadata = {"inputs": inputs, "done": str(state.done)}
    atomic_write(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))


def _load_state(path: Path, *, inputs: str) -> TrainingState | None:
    """None where it is missing, made from other inputs, or damaged."""
    experts = _load(path, inputs=inputs)
    if experts is None:
        return None
    with safe_open(path, framework="pt") as file:
        done = int(file.metadata()["done"])
        body, head = (
            AdamState(file.get_tensor(f"{name}-first"), file.get_tensor(f"{name}-second"), done)
            for name in ("theta", "decoder")
        )
    return TrainingState(experts, (body, head), done)


def held_out_windows(place: Workplace, *, sets: Mapping[str, int]) -> dict[str, UInt8[Tensor, "_ T1"]]:
    """Disjoint sets of windows of text that no ensemble trains on, drawn at random.

    Args:
        sets: name -> number of windows.

    Raises:
        UserError: the validation split is too short.
    """
    lab, shards = LABORATORIES[place.scale], Corpus.open(place.data).valid
    size = lab.window_bytes
    order = numpy_generator(lab.seed, "laboratory-held-out").permutation(num_windows(shards, window_bytes=size))
    if len(order) < sum(sets.values()):
        raise _too_little(place, split="validation")
    found, first = {}, 0
    for name, count in sets.items():
        chosen = order[first : first + count].astype(np.int64) * size
        found[name] = torch.from_numpy(shards.gather(chosen, length=size + 1))
        first += count
    return found


def _too_little(place: Workplace, *, split: str) -> UserError:
    return UserError(
        f"the {split} text is too short for the laboratory's windows",
        where=str(place.data),
        fix="prepare more text, or raise --valid-fraction",
    )
