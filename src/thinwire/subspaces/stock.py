"""What is left when the wires are gone?  The stock Llama of a run: no codec, no heads, no bases (section 3.5)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.runs.layout import RunFolder
from thinwire.subspaces import phases, saving
from thinwire.subspaces.config import SubspacesConfig, read_config
from thinwire.subspaces.llama import Llama
from thinwire.subspaces.replica import Replica
from thinwire.subspaces.rotation import Side
from thinwire.subspaces.schedule import Phase

THETA_PREFIX = "theta_mean."


@dataclass(frozen=True)
class Stock:
    """A trained model as anyone can use it.

    Attributes:
        llama: with keys' and values' projections folded where a subspace compressed them.
        config: of the run.
        phase: in which the checkpoint was made.
        step: updates that made it.
        meta: as in the checkpoint's description.
    """

    llama: Llama
    config: SubspacesConfig
    phase: Phase
    step: int
    meta: dict[str, Any]


def load_stock(run: Path, *, step: int | None = None) -> Stock:
    """The model of a checkpoint, the newest by default, float32 on the CPU.

    Raises:
        UserError: ``run`` is no run of this kind, has no checkpoint yet, or a file is damaged.
    """
    config = read_config(RunFolder(run))
    newest = saving.last_step(run)
    if newest == 0:
        fix = "train it first: thinwire train ... with the same --out"
        raise UserError("the run has no checkpoint yet", where=str(run), fix=fix)
    saved = saving.load_weights(run, step=newest if step is None else step)
    replica = Replica(config, vocab_size=int(saved.meta["vocab_size"]))
    mean = theta_means(saved.tensors)
    replica.load_weights({name: t for name, t in saved.tensors.items() if not name.startswith(THETA_PREFIX)})
    phase: Phase = saved.meta["phase"]
    turns = replica.needs_heads(phase) and any(codec.needs_theta for pair in replica.codecs(phase) for codec in pair)
    if turns and not mean:
        raise UserError(
            f"the checkpoint of update {saved.update} lacks theta's mean, so it cannot be folded",
            where=str(saving.weights_folder(run)),
            fix="go on training the run, or remove this checkpoint to use the one before",
        )
    if phase in ("compressed", "folded") and config.codec.kind == "subspace":
        with torch.no_grad():
            for (layer, side), weight in phases.folded_weights(replica, mean).items():
                replica.projection(layer, side).copy_(weight)
    return Stock(replica.llama.eval(), config, phase, saved.update, saved.meta)


def theta_means(tensors: dict[str, Tensor]) -> dict[tuple[int, Side], Tensor]:
    """theta's means among a checkpoint's tensors."""
    found: dict[tuple[int, Side], Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(THETA_PREFIX):
            layer, side = name.removeprefix(THETA_PREFIX).split(".")
            found[int(layer), "key" if side == "key" else "value"] = tensor
    return found


def named_theta_means(mean: phases.Mean) -> dict[str, Tensor]:
    """theta's means as a checkpoint keeps them."""
    return {f"{THETA_PREFIX}{layer}.{side}": theta for (layer, side), theta in mean.items()}
