"""EGGROLL, pure: weights, an address and bytes give losses of a population; losses give weights that moved.

One update of the control: ``eggroll_losses`` over ranges of pairs, ``fitness_signs``, ``sign_update`` (or, over ranks,
``perturbation_sum`` of each range, added in order, then ``move``), and ``next_state``.
"""

import numpy as np
import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.base.seeds import numpy_generator
from thinwire.kernels import arguments
from thinwire.kernels.dispatch import choose
from thinwire.kernels.eggroll import cpu_impl, reference
from thinwire.kernels.eggroll.noise import NoiseAddress
from thinwire.kernels.eggroll.shape import EggrollRules, EggrollShape
from thinwire.kernels.eggroll.sign_update import Moved, move, perturbation_sum

__all__ = [
    "EggrollRules",
    "EggrollShape",
    "Moved",
    "NoiseAddress",
    "eggroll_losses",
    "fitness_signs",
    "initial_theta",
    "move",
    "next_state",
    "perturbation_sum",
    "sign_update",
    "window_losses",
    "zero_state",
]


def initial_theta(shape: EggrollShape, *, seed: int) -> Float[Tensor, " M"]:
    """Matrices from N(0, 1), gains 1, biases 0; float32."""
    generator, theta = numpy_generator(seed, "eggroll-start"), np.empty(shape.num_parameters, np.float32)
    for slot in shape.slots:
        if len(slot.shape) == 2:
            theta[slot.start : slot.stop] = generator.standard_normal(slot.size, dtype=np.float32)
        else:
            theta[slot.start : slot.stop] = float("norm" in slot.name)
    return torch.from_numpy(theta)


def zero_state(shape: EggrollShape, *, streams: int) -> Float[Tensor, "S L d"]:
    return torch.zeros(streams, shape.depth, shape.width)


def eggroll_losses(
    theta: Float[Tensor, " M"],
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    windows: UInt8[Tensor, "S T1"],
    address: NoiseAddress,
    pairs: range,
    state: Float[Tensor, "S L d"],
    implementation: str = "auto",
    threads: int = 1,
) -> Float64[Tensor, "n 2"]:
    """Mean cross entropy, nats per byte, of both members (+, then -) of every pair; a score is minus the loss.

    Pair p reads stream p % S, both its members the same bytes.
    choice: one stream a member. 2^20 members at 100 bytes each cost about 2e15 operations at the largest size, which
    fits the 63 GPU-seconds an update that the paper records; 256 streams for each member would be 256 times that.

    Args:
        theta: M weights, flat (``EggrollShape.slots``).
        windows: the next T + 1 bytes of S streams; bytes 1..T are the targets.
        address: which normals (drawn again, never stored).
        pairs: which pairs of the address; ranges may be split anywhere.
        state: of each stream before its first byte; every member of the stream starts from it.
        implementation: ``auto``, ``numba`` or ``reference``.
        threads: the result is the same bits for any number.

    Raises:
        UserError: where the named implementation cannot run on such tensors, or ``pairs`` is no plain range.
        ValueError: where shapes or dtypes do not fit each other, there is no window or target, or a number is no
            32-bit word.
    """
    _check(theta, shape=shape, windows=windows, state=state)
    arguments.check_address(**address._asdict())
    if pairs.step != 1 or pairs.start < 0:
        raise UserError(f"pairs are counted up one by one, not {pairs}", where="pairs", fix="give range(first, last)")
    arguments.check_range(pairs, name="pairs")
    chosen = _chosen(implementation, like=theta)
    if not pairs:
        return torch.empty(0, 2, dtype=torch.float64)
    if chosen == "reference":
        return reference.losses(
            theta, shape=shape, rules=rules, windows=windows, address=address, pairs=pairs, state=state
        )
    found = cpu_impl.losses(
        theta.detach().numpy(),
        shape=shape,
        rules=rules,
        windows=windows.numpy(),
        address=address,
        pairs=pairs,
        state=state.detach().numpy(),
        threads=threads,
    )
    return torch.from_numpy(found)


def _check(theta: Tensor, *, shape: EggrollShape, windows: Tensor, state: Tensor) -> None:
    arguments.check_theta(theta, num_parameters=shape.num_parameters)
    arguments.check_windows(windows)
    arguments.check_state(state, sizes=(len(windows), shape.depth, shape.width))


def _chosen(implementation: str, *, like: Tensor) -> str:
    chosen = choose(implementation, like=like)
    if chosen != "triton":
        return chosen
    if implementation == "auto":
        return "reference"
    raise UserError(
        "EGGROLL has no Triton kernels", where="launch.implementation = triton", fix="use auto, numba or reference"
    )


def window_losses(
    theta: Float[Tensor, " M"],
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    windows: UInt8[Tensor, "S T1"],
    state: Float[Tensor, "S L d"],
    implementation: str = "auto",
    threads: int = 1,
) -> cpu_impl.Unperturbed:
    """Mean losses [S] of the unperturbed network and its states [S, L, d] after the last input byte.

    Raises:
        UserError: where the named implementation cannot run on such tensors.
        ValueError: where shapes or dtypes do not fit each other, or there is no window or target.
    """
    _check(theta, shape=shape, windows=windows, state=state)
    if _chosen(implementation, like=theta) == "reference":
        network = reference.plain_network(theta, shape=shape)
        losses, after = reference.run(network, windows.long(), state.to(theta.dtype), shape=shape, rules=rules)
        return cpu_impl.Unperturbed(losses.numpy(), after.float().numpy())
    return cpu_impl.unperturbed(
        theta.detach().numpy(),
        shape=shape,
        rules=rules,
        windows=windows.numpy(),
        state=state.detach().numpy(),
        threads=threads,
    )


def next_state(
    theta: Float[Tensor, " M"],
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    windows: UInt8[Tensor, "S T1"],
    state: Float[Tensor, "S L d"],
    implementation: str = "auto",
    threads: int = 1,
) -> Float[Tensor, "S L d"]:
    """Where the streams' next update starts: zeros where ``rules.state`` is ``reset``. Raises as ``window_losses``."""
    if rules.state == "reset":
        return torch.zeros_like(state)
    # choice: a stream carries the state of the unperturbed weights; one a member would grow with the population.
    after = window_losses(
        theta, shape=shape, rules=rules, windows=windows, state=state, implementation=implementation, threads=threads
    )
    return torch.from_numpy(after.state)


def fitness_signs(losses: Float64[Tensor, "n 2"]) -> np.ndarray:
    """int8 [n]: sign(score+ - score-), the scores being minus the losses; 0 where both are alike."""
    return np.sign(losses[:, 1].numpy() - losses[:, 0].numpy()).astype(np.int8)


def sign_update(
    theta: Float[Tensor, " M"],
    signs: np.ndarray,
    *,
    shape: EggrollShape,
    rules: EggrollRules,
    address: NoiseAddress,
    threads: int = 1,
) -> Moved:
    """The weights after one update from the signs of all pairs 0..n-1; nothing is changed in place.

    Raises:
        ValueError: where theta does not fit the shape, there is no sign, or a number is no 32-bit word.
    """
    arguments.check_theta(theta, num_parameters=shape.num_parameters)
    total = perturbation_sum(signs, shape=shape, address=address, threads=threads)
    return move(theta, total, num_pairs=len(signs), rules=rules)
