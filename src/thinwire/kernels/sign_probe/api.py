"""Probes by address: one of them, or a weighted sum of many (Eqs. 2 and 8, appendix E)."""

from typing import Any, NamedTuple

import numpy as np

from thinwire.base.seeds import StreamKey
from thinwire.kernels import arguments
from thinwire.kernels.dispatch import choose_for_this_machine
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe import cpu_impl, reference


class ProbeAddress(NamedTuple):
    """Which probes: the stream's key (seed, "probe", expert), the update and the accumulation batch."""

    key: StreamKey
    update: int
    accumulation: int = 0


def sign_probe(
    address: ProbeAddress,
    *,
    shape: ExpertShape,
    direction: int,
    implementation: str = "auto",
) -> np.ndarray:
    """int8 [M]: z_direction. Ordinary weights 0 (1/2), +1 or -1 (1/4 each); gains +1 or -1 (1/2 each).

    ``auto`` is ``numba``: no tensor says that the sign is wanted on a GPU.

    Raises:
        UserError: where the implementation is unknown or cannot run here.
        ValueError: where the direction or a part of the address is no 32-bit word.
    """
    key, update, accumulation = address
    arguments.check_address(**address._asdict(), direction=direction)
    implementation = choose_for_this_machine(implementation)
    if implementation == "triton":
        from thinwire.kernels.sign_probe import triton_impl

        return triton_impl.sign_probe(key, shape=shape, direction=direction, update=update, accumulation=accumulation)
    chosen = cpu_impl.sign_probe if implementation == "numba" else reference.sign_probe
    return chosen(key, shape=shape, direction=direction, update=update, accumulation=accumulation)


def weighted_probe_sum(
    weights: np.ndarray,
    *,
    address: ProbeAddress,
    shape: ExpertShape,
    first_direction: int = 0,
    threads: int = 1,
    implementation: str = "auto",
) -> np.ndarray:
    """float64 [M]: sum_j w_j z_j with probes rebuilt from their address, added in the order of the directions.

    Args:
        weights: float64 [n], one a direction from ``first_direction`` on.

    The result is the same bits for every implementation and number of threads. ``triton`` runs on the GPU and needs no
    tensor there; ``auto`` is ``numba``.

    Raises:
        UserError: where the implementation is unknown or cannot run here.
        ValueError: where the weights are not [n], or a direction or a part of the address is no 32-bit word.
    """
    weights = np.asarray(weights, np.float64)
    arguments.check_numbers_of(weights, name="weights", first=first_direction)
    arguments.check_address(**address._asdict())
    implementation = choose_for_this_machine(implementation)
    common: dict[str, Any] = {"shape": shape, "first_direction": first_direction} | address._asdict()
    if implementation == "reference":
        return reference.weighted_sum(weights, **common)
    if implementation == "triton":
        from thinwire.kernels.sign_probe import triton_impl

        return triton_impl.weighted_sum(weights, **common)
    return cpu_impl.weighted_sum(weights, threads=threads, **common)
