"""On what does a rank, or a score, compute?  The CPU, unless the run asked for an accelerator by name."""

import torch

from thinwire.base.errors import UserError
from thinwire.subspaces.config import LaunchConfig


def refuse_missing_device(launch: LaunchConfig) -> None:
    """Raises UserError where the run asks for a device that is not there."""
    if launch.device == "cuda" and not torch.cuda.is_available():
        fix = "use --launch.device cpu, or install a torch build for this accelerator"
        raise UserError("no CUDA device was found", where="launch.device = cuda", fix=fix)


def training_device(launch: LaunchConfig, *, member: int) -> torch.device:
    """Of one rank; ranks of a machine share its accelerators out.

    ``auto`` is the CPU: nothing here has been run on an accelerator yet, so one must be asked for by name.

    Raises:
        UserError: a device that is asked for by name is not there.
    """
    refuse_missing_device(launch)
    return torch.device("cuda", member % torch.cuda.device_count()) if launch.device == "cuda" else torch.device("cpu")


def scoring_device(launch: LaunchConfig) -> torch.device:
    """As in training; the CPU where a run that was trained on an accelerator is scored on a machine without one."""
    return torch.device("cuda" if launch.device == "cuda" and torch.cuda.is_available() else "cpu")
