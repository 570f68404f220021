"""What does a context-parallel run keep, and where does it go on?  One copy of the weights, every rank's own state.

Ranks write theirs first; rank 0's description, written last, makes the checkpoint count. Where a person stops a run
between two averages, every rank's own weights are kept with its state, and the one copy is their mean.
"""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.runs import checkpoint
from thinwire.runs.layout import RunFolder

KEEP = 2


def weights_folder(run: Path) -> Path:
    return RunFolder(run).root / "checkpoints"


def rank_folder(run: Path, rank: int) -> Path:
    return run / "ranks" / f"{rank:03d}"


def save_rank(run: Path, *, rank: int, step: int, tensors: dict[str, Tensor]) -> None:
    """A rank's part; counts only once the weights are saved."""
    checkpoint.save(rank_folder(run, rank), step, tensors=tensors, meta={}, keep=KEEP)


def save_weights(run: Path, *, step: int, weights: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """The commit."""
    checkpoint.save(weights_folder(run), step, tensors=weights, meta=meta, keep=KEEP)


def last_step(run: Path) -> int:
    """Of the newest checkpoint; 0 without one."""
    return max(checkpoint.list_updates(weights_folder(run)), default=0)


def load_weights(run: Path, *, step: int) -> checkpoint.Checkpoint:
    """The one copy of the weights; ``tensors`` and ``meta``.

    Raises:
        UserError: a file is missing, truncated or altered.
    """
    return checkpoint.load(weights_folder(run), step)


def load_rank(run: Path, *, rank: int, step: int, ranks_then: int) -> dict[str, Tensor] | None:
    """A rank's own part of a checkpoint; that of rank ``rank % ranks_then`` where it had none because there were fewer
    ranks; None where this machine has neither.

    Raises:
        UserError: the file is truncated or altered.
    """
    folder = rank_folder(run, rank % ranks_then)
    if step not in checkpoint.list_updates(folder):
        return None
    try:
        return checkpoint.load(folder, step).tensors
    except UserError as error:
        names = f"{step:08d}.json and {step:08d}.safetensors"
        raise UserError(
            error.what,
            where=error.where,
            fix=f"restore the file from a copy; or remove {names} in the folder 'checkpoints', then give the training "
            "command again: all ranks go on from the checkpoint before, or begin anew where there is none; or remove "
            f"{names} in '{folder.parent.name}/{folder.name}': this rank then goes on from update {step} with the "
            "moments of another one",
        ) from error


def rank_steps(run: Path, *, rank: int) -> list[int]:
    """The checkpoints of which this machine has a rank's own part."""
    return checkpoint.list_updates(rank_folder(run, rank))


def forget_rank_after(run: Path, *, rank: int, step: int) -> None:
    """Remove a rank's parts of checkpoints that were never committed: they must not pass for the newest."""
    folder = rank_folder(run, rank)
    for later in [found for found in checkpoint.list_updates(folder) if found > step]:
        (folder / f"{later:08d}.json").unlink()
    checkpoint.sweep(folder)


def sweep(run: Path) -> None:
    """Remove leftovers of interrupted writes of the weights."""
    checkpoint.sweep(weights_folder(run))


def cut_log(log: Path, *, size: int) -> None:
    """Drop what was written after a checkpoint: the updates are made, and written down, again."""
    if log.exists() and log.stat().st_size > size:
        os.truncate(log, size)
