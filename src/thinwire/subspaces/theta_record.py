"""How far do the bases turn?  theta, angles and orthonormality in this rank's last forward pass."""

from typing import Any

import torch

from thinwire.subspaces.codecs.subspace import SubspaceCodec
from thinwire.subspaces.replica import SIDES
from thinwire.subspaces.rotation import orthonormality_defect, principal_angles
from thinwire.subspaces.trainer import Trainer


def theta_record(trainer: Trainer) -> dict[str, Any]:
    """Of each layer, for keys and values: mean |theta|, the mean principal angle to the basis in degrees, and the
    largest entry of U^T U - I; empty where no theta is at work."""
    attend = trainer.last_attend
    if attend is None or not attend.thetas or trainer.phase != "compressed":
        return {}
    record: dict[str, Any] = {"mean_abs_theta": [], "angle_degrees": [], "orthonormality_defect": []}
    for layer, pair in enumerate(trainer.codecs):
        rows = torch.cat([torch.cat(thetas) for (of, _), thetas in attend.thetas.items() if of == layer])
        sizes, angles, defects = {}, {}, {}
        for index, (side, codec) in enumerate(zip(SIDES, pair, strict=True)):
            if not isinstance(codec, SubspaceCodec) or codec.basis is None:
                continue
            theta = rows[:, index]
            frames = codec.frame(theta)
            sizes[side] = float(theta.abs().mean())
            angles[side] = float(torch.rad2deg(principal_angles(frames, codec.basis.expand_as(frames)).mean()))
            defects[side] = float(orthonormality_defect(frames).max())
        record["mean_abs_theta"].append(sizes)
        record["angle_degrees"].append(angles)
        record["orthonormality_defect"].append(defects)
    return record
