"""Shared cases of ``expert_losses``: evaluated by one implementation, and in FP64 at the rounded endpoints."""

import numpy as np
import torch
from torch import Tensor

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_losses.cases import LossCase, inputs_for
from thinwire.kernels.sign_probe.api import ProbeAddress, sign_probe

ADDRESS = ProbeAddress(stream_key(3, "probe", 1), 5, 1)
UNIT_ROUNDOFF = 2.0**-24


def evaluate(case: LossCase, *, implementation: str, dtype: torch.dtype = torch.float32, **changes: object) -> Tensor:
    """float64 [n, 2]; ``changes`` replace arguments of ``expert_losses``."""
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    arguments = {
        "shape": case.shape,
        "windows": windows,
        "address": ADDRESS,
        "directions": range(case.num_directions),
        "epsilon": case.epsilon,
    } | changes
    return expert_losses(theta.to(dtype), decoder=decoder.to(dtype), implementation=implementation, **arguments)


def exact_losses(case: LossCase) -> Tensor:
    """float64 [n, 2] by definition, in FP64."""
    return evaluate(case, implementation="reference", dtype=torch.float64)


def endpoint_losses(case: LossCase) -> Tensor:
    """float64 [n, 2] in FP64 at theta +- eps z rounded to float32, plus sign first."""
    theta, decoder, windows = (torch.from_numpy(array) for array in inputs_for(case))
    step = float(np.float32(case.epsilon))
    endpoints = []
    for direction in range(case.num_directions):
        probe = sign_probe(ADDRESS, shape=case.shape, direction=direction, implementation="reference")
        z = torch.from_numpy(probe).double()
        endpoints += [(theta + sign * step * z).float().double() for sign in (1, -1)]
    with torch.no_grad():
        losses = reference.mean_loss(torch.stack(endpoints), shape=case.shape, decoder=decoder, windows=windows)
    return losses.reshape(-1, 2)
