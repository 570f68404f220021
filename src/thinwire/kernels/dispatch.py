"""Which implementation runs?  ``auto`` chooses and can say what it chose; a named one never falls back silently."""

from typing import Literal

import torch

from thinwire.base.errors import UserError

Implementation = Literal["auto", "numba", "reference"]
IMPLEMENTATIONS = ("numba", "reference")


def choose(name: str, *, like: torch.Tensor) -> Literal["numba", "reference"]:
    """The implementation for tensors like ``like``.

    Args:
        name: ``auto``, ``numba`` (fused, CPU, float32) or ``reference`` (PyTorch, any device and dtype).
        like: theta, whose device and dtype decide what is possible.

    Raises:
        UserError: where the name is unknown or the named implementation cannot run on such tensors.
    """
    fused = like.device.type == "cpu" and like.dtype == torch.float32
    if name == "auto":
        return "numba" if fused else "reference"
    if name == "numba" and not fused:
        raise UserError(
            f"the numba kernels compute in float32 on the CPU, not {like.dtype} on {like.device}",
            where="launch.implementation = numba",
            fix="use --launch.implementation reference, or auto",
        )
    if name == "numba":
        return "numba"
    if name == "reference":
        return "reference"
    raise UserError(
        f"there is no implementation '{name}'",
        where="launch.implementation",
        fix=f"one of auto, {', '.join(IMPLEMENTATIONS)}",
    )
