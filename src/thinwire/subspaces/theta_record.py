"""How far do the bases turn?  theta, angles and orthonormality over all chunks of the last update's last pass."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinwire.comm.collectives import gather_json
from thinwire.subspaces.codecs.subspace import SubspaceCodec
from thinwire.subspaces.replica import SIDES
from thinwire.subspaces.rotation import orthonormality_defect, principal_angles
from thinwire.subspaces.trainer import Trainer


class _Turned(NamedTuple):
    """What one rank's chunks add to a layer's keys or values."""

    num_thetas: int
    sum_abs_theta: float
    num_angles: int
    sum_degrees: float
    largest_defect: float


def theta_record(trainer: Trainer) -> dict[str, Any]:
    """Of each layer, for keys and values: mean |theta|, the mean principal angle to the basis in degrees, and the
    largest entry of U^T U - I. All ranks call this.

    The numbers are those of every chunk of the sequence, whichever rank holds it: up to rounding they are the same on
    any number of ranks whose gradients are summed. A random theta counts as it was drawn. A layer that travels plain
    has an empty record. All is empty where no theta is at work, where no update was made since the plug-in, and where
    a rank that took part in the last update is gone, and what it held with it.
    """
    codec = trainer.replica.codec_config(trainer.phase)
    if codec.kind != "subspace" or codec.theta_source == "none":
        return {}
    parts = gather_json(trainer.team.main, [_own_chunks(trainer), _own_layers(trainer)])
    if sorted(chunk for chunks, _ in parts for chunk in chunks) != list(range(trainer.config.sequence.chunks)):
        return {}
    record: dict[str, Any] = {"mean_abs_theta": [], "angle_degrees": [], "orthonormality_defect": []}
    for layer in range(trainer.config.model.layers):
        everyone = [layers[layer] for _, layers in parts]
        sizes, angles, defects = {}, {}, {}
        for side in SIDES:
            ranks = [_Turned(*one[side]) for one in everyone if side in one]
            if not ranks:
                continue
            sizes[side] = math.fsum(one.sum_abs_theta for one in ranks) / sum(one.num_thetas for one in ranks)
            angles[side] = math.fsum(one.sum_degrees for one in ranks) / sum(one.num_angles for one in ranks)
            defects[side] = max(one.largest_defect for one in ranks)
        record["mean_abs_theta"].append(sizes)
        record["angle_degrees"].append(angles)
        record["orthonormality_defect"].append(defects)
    return record if any(record["mean_abs_theta"]) else {}


def _own_chunks(trainer: Trainer) -> list[int]:
    """Which chunks this rank held in the last pass."""
    attend = trainer.last_attend
    return [] if attend is None else [s.chunk for s in attend.place.layout.slices(attend.place.group.rank)]


def _own_layers(trainer: Trainer) -> list[dict[str, _Turned]]:
    """What this rank's chunks did in each layer, by side; nothing where a layer takes no theta."""
    thetas = {} if trainer.last_attend is None else trainer.last_attend.thetas
    found: list[dict[str, _Turned]] = []
    for layer, pair in enumerate(trainer.codecs):
        rows = [theta for (of, _), chunks in thetas.items() if of == layer for theta in chunks]
        found.append(
            {
                side: _turned(codec, torch.cat(rows)[:, index])
                for index, (side, codec) in enumerate(zip(SIDES, pair, strict=True))
                if rows and isinstance(codec, SubspaceCodec)
            }
        )
    return found


def _turned(codec: SubspaceCodec, theta: Tensor) -> _Turned:
    """Of thetas [n, k]."""
    frames, basis = codec.frame(theta), codec.frame(None)
    angles = torch.rad2deg(principal_angles(frames, basis.expand_as(frames))).double()
    return _Turned(
        theta.numel(),
        float(theta.double().abs().sum()),
        angles.numel(),
        float(angles.sum()),
        float(orthonormality_defect(frames).max()),
    )
