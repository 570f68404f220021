"""Log-probabilities under the experts a router chose (Eq. 1), and what the decoder's rule needs (Eq. 7)."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int, UInt8
from torch import Tensor

from thinwire.kernels import arguments
from thinwire.kernels.dispatch import Precision, check_precision, choose
from thinwire.kernels.expert_losses import reference as expert_reference
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores import cpu_impl, reference
from thinwire.kernels.routed_scores.resident import ResidentExperts


def routed_scores(
    thetas: Float[Tensor, "N M"],
    *,
    shape: ExpertShape,
    decoder: Float[Tensor, "... 256 dE"],
    windows: UInt8[Tensor, "n T1"],
    experts: Int[Tensor, "n k"],
    first_target: int,
    implementation: str = "auto",
    threads: int = 1,
    precision: Precision = "ieee",
    resident: ResidentExperts | None = None,
    finished: Callable[[int], None] | None = None,
) -> Float64[Tensor, "n k S"]:
    """log p_e(byte t + 1 | bytes 0..t) for window i under each of its k experts, t from ``first_target`` on.

    Args:
        thetas: the bodies of all N experts.
        decoder: E [256, d_E], shared, or [N, 256, d_E], one per expert.
        windows: n windows of T + 1 bytes; the state starts from zero in each.
        experts: which experts, 0..N-1, read which window.
        first_target: positions before it are read but not returned; S = T - first_target.
        precision: of Triton's matrix products (``kernels/triton_parts.py``).
        resident: the same experts, kept packed on the CPU from call to call; without it they are packed anew.
        finished: told how many requests (a window under one expert) are done, from any thread (numba alone tells).

    Raises:
        UserError: where the named implementation cannot run on such tensors.
        ValueError: where shapes or dtypes do not fit each other, an expert or the first target is out of range, or
            ``resident`` holds experts of another shape or number.
    """
    arguments.check_thetas(thetas, shape=shape)
    arguments.check_decoder(decoder, shape=shape, like=thetas, num_experts=len(thetas))
    arguments.check_windows(windows, least=0)
    arguments.check_experts(experts, num_windows=len(windows), num_experts=len(thetas))
    arguments.check_first_target(first_target, windows=windows)
    if resident is not None:
        resident.check_holds(len(thetas), shape=shape, num_decoders=len(thetas) if decoder.dim() == 3 else 1)
    chosen = choose(implementation, like=thetas)
    check_precision(precision, chosen=chosen)
    if not experts.numel():
        return torch.empty(*experts.shape, windows.shape[1] - 1 - first_target, dtype=torch.float64)
    if chosen == "triton":
        from thinwire.kernels.routed_scores import triton_impl

        return triton_impl.routed_scores(
            thetas,
            shape=shape,
            decoder=decoder,
            windows=windows,
            experts=experts,
            first_target=first_target,
            precision=precision,
        )
    if chosen == "reference":
        return reference.routed_scores(
            thetas, shape=shape, decoder=decoder, windows=windows, experts=experts, first_target=first_target
        )
    scores = cpu_impl.routed_scores(
        thetas.detach().numpy(),
        shape=shape,
        decoder=decoder.detach().numpy(),
        windows=windows.numpy(),
        experts=experts.numpy(),
        first_target=first_target,
        threads=threads,
        resident=resident,
        finished=finished,
    )
    return torch.from_numpy(scores)


def decoder_inputs(
    theta: Float[Tensor, " M"],
    *,
    shape: ExpertShape,
    decoder: Float[Tensor, "256 dE"],
    windows: UInt8[Tensor, "B T1"],
    implementation: str = "auto",
    threads: int = 1,
    precision: Precision = "ieee",
) -> Float[Tensor, "B T dE"]:
    """h, the decoder's input at every position of one unperturbed forward pass.

    Raises:
        UserError: where the named implementation cannot run on such tensors.
        ValueError: where shapes or dtypes do not fit each other, or there is no window or target.
    """
    arguments.check_theta(theta, num_parameters=shape.num_parameters)
    arguments.check_decoder(decoder, shape=shape, like=theta)
    arguments.check_windows(windows)
    chosen = choose(implementation, like=theta)
    check_precision(precision, chosen=chosen)
    if chosen == "triton":
        from thinwire.kernels.routed_scores import triton_impl

        return triton_impl.decoder_inputs(theta, shape=shape, decoder=decoder, windows=windows, precision=precision)
    if chosen == "reference":
        with torch.no_grad():
            inputs = windows[:, :-1]
            return expert_reference.decoder_inputs(theta[None], shape=shape, decoder=decoder, inputs=inputs)[0]
    hidden = cpu_impl.decoder_inputs(
        theta.detach().numpy(),
        shape=shape,
        decoder=decoder.detach().numpy(),
        windows=windows.numpy(),
        threads=threads,
    )
    return torch.from_numpy(hidden)
