"""Where can this job go on from?  Weights in safetensors, their description in JSON, written last: it is the commit."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as tensors_as_bytes

from thinwire.base.errors import UserError
from thinwire.base.files import TEMPORARY_SUFFIX, atomic_write, sha256_file, write_json


@dataclass(frozen=True)
class Checkpoint:
    """One saved state.

    Attributes:
        update: how many updates made it.
        tensors: name -> tensor.
        meta: what was saved beside them, plain JSON values.
    """

    update: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]


def _paths(folder: Path, update: int) -> tuple[Path, Path]:
    return folder / f"{update:08d}.safetensors", folder / f"{update:08d}.json"


def save(
    folder: Path, update: int, *, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any], keep: int | None = None
) -> None:
    """Write a checkpoint that is whole or absent; then drop all but the newest ``keep`` (the one at 0 always stays)."""
    weights, description = _paths(folder, update)
    # As bytes, because safetensors hides the operating system's error (disk full) when it writes the file itself.
    atomic_write(weights, tensors_as_bytes({name: tensor.contiguous() for name, tensor in tensors.items()}))
    write_json(description, {"update": update, "sha256": sha256_file(weights), "meta": dict(meta)})
    if keep is not None:
        for old in [number for number in list_updates(folder) if number > 0][:-keep]:
            for path in reversed(_paths(folder, old)):
                path.unlink(missing_ok=True)


def list_updates(folder: Path) -> list[int]:
    """Updates with a committed checkpoint, ascending; leftovers of an interrupted write are no checkpoint."""
    if not folder.is_dir():
        return []
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit())


def sweep(folder: Path) -> None:
    """Remove what an interrupted write left: temporary files and weights without a description."""
    if not folder.is_dir():
        return
    for path in folder.glob(f"*{TEMPORARY_SUFFIX}"):
        path.unlink()
    committed = set(list_updates(folder))
    for path in folder.glob("*.safetensors"):
        if path.stem.isdigit() and int(path.stem) not in committed:
            path.unlink()


def load(folder: Path, update: int, *, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Checkpoint:
    """Read one checkpoint.

    Args:
        shapes: what the caller expects, name -> shape.

    Raises:
        UserError: where it is missing, truncated, altered or of another shape.
    """
    weights, description = _paths(folder, update)
    record = _read_description(description, weights)
    if not weights.exists():
        raise _unreadable(weights, description, "is missing")
    if sha256_file(weights) != record["sha256"]:
        raise _unreadable(weights, description, "is truncated or altered: its SHA-256 is not the recorded one")
    try:
        tensors = load_file(weights)
    except (SafetensorError, struct.error, ValueError) as error:
        raise _unreadable(weights, description, f"cannot be read ({error})") from error
    for name, shape in (shapes or {}).items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != tuple(shape):
            raise UserError(
                f"a checkpoint has another shape: '{name}' is {found}, this run needs {tuple(shape)}",
                where=str(weights),
                fix="use the configuration it was trained with, or another run folder",
            )
    return Checkpoint(record["update"], tensors, record["meta"])


def _read_description(description: Path, weights: Path) -> dict[str, Any]:
    try:
        record = json.loads(description.read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            "there is no such checkpoint", where=str(description), fix="choose an update that has one"
        ) from error
    except ValueError as error:
        raise _unreadable(weights, description, f"is truncated or altered: {description.name} is not JSON") from error
    keys = {"update": int, "sha256": str, "meta": dict}
    if not isinstance(record, dict) or any(not isinstance(record.get(key), kind) for key, kind in keys.items()):
        raise _unreadable(weights, description, f"is altered: {description.name} is not a checkpoint's description")
    return record


def _unreadable(weights: Path, description: Path, problem: str) -> UserError:
    is_older = any(update < int(weights.stem) for update in list_updates(weights.parent))
    return UserError(
        f"a checkpoint {problem}",
        where=str(weights),
        fix=f"remove {description.name} and {weights.name}, then give the training command again: "
        + ("the job goes on from the checkpoint before and its log" if is_older else "the job begins anew"),
    )
