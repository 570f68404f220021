"""Losses of an expert at theta +- eps z_j: all that zero-order training ever asks of a model (Eqs. 2 and 8)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor

from thinwire.kernels import arguments
from thinwire.kernels.dispatch import Precision, check_precision, choose
from thinwire.kernels.expert_losses import cpu_impl, reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress


def expert_losses(
    theta: Float[Tensor, " M"],
    *,
    shape: ExpertShape,
    decoder: Float[Tensor, "256 dE"],
    windows: UInt8[Tensor, "B T1"],
    address: ProbeAddress,
    directions: range,
    epsilon: float,
    signs: Sequence[int] = (1, -1),
    implementation: str = "auto",
    threads: int = 1,
    precision: Precision = "ieee",
) -> Float64[Tensor, "n S"]:
    """Mean cross entropy, nats per byte, of every direction and sign on one batch.

    Args:
        theta: the body's M weights, flat (``ExpertShape.slots``).
        decoder: the tied matrix E, never perturbed.
        windows: B windows of T + 1 bytes; bytes 1..T are the targets.
        address: which probes (rebuilt, never stored).
        directions: which directions of the address, each in 0..2^32-1.
        epsilon: perturbation radius; ``theta + sign eps z`` is rounded once to theta's dtype.
        signs: the columns of the result, e.g. (1, -1) for central differences, (1,) for one-sided ones.
        implementation: ``auto``, ``numba``, ``triton`` or ``reference``.
        threads: the result is the same bits for any number.
        precision: of Triton's matrix products (``kernels/triton_parts.py``); the others have ``ieee`` alone.

    A diverged expert's loss is NaN, also where a layer norm's variance exceeds float32 (activations near 1e19). There
    PyTorch's own layer norm gives zeros or NaN, so the loss of ``reference`` in float32, and of ``triton`` for experts
    too wide for the fused kernel, may be a finite ln 256 instead.

    Raises:
        UserError: where the named implementation cannot run on such tensors.
        ValueError: where shapes or dtypes do not fit each other, there is no window, target or sign, or a number is
            no 32-bit word.
    """
    arguments.check_theta(theta, num_parameters=shape.num_parameters)
    arguments.check_decoder(decoder, shape=shape, like=theta)
    arguments.check_windows(windows)
    arguments.check_address(**address._asdict())
    arguments.check_range(directions, name="directions")
    arguments.check_signs(signs)
    chosen = choose(implementation, like=theta)
    check_precision(precision, chosen=chosen)
    if not directions:
        return torch.empty(0, len(signs), dtype=torch.float64)
    common: dict[str, Any] = {"shape": shape, "directions": directions, "epsilon": epsilon, "signs": signs}
    common |= address._asdict()
    if chosen == "triton":
        from thinwire.kernels.expert_losses import triton_impl

        return triton_impl.expert_losses(theta, decoder=decoder, windows=windows, precision=precision, **common)
    if chosen == "reference":
        return reference.expert_losses(theta, decoder=decoder, windows=windows, **common)
    losses = cpu_impl.expert_losses(
        theta.detach().numpy(), decoder=decoder.detach().numpy(), windows=windows.numpy(), threads=threads, **common
    )
    return torch.from_numpy(losses)
