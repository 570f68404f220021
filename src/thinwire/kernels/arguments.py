"""Do a kernel's arguments fit each other?  Looked at before any of them is read: compiled code checks no index.

Shapes, dtypes and ranges alone, so a check costs microseconds, and every implementation refuses the same.  All raise
ValueError: what these functions are given is made by code, never by a flag.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire.base.seeds import StreamKey
from thinwire.kernels.expert_shape import VOCABULARY, ExpertShape

WORDS = 2**32
"""Philox counters and keys are made of 32-bit words."""
INDEX_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)


def check_theta(theta: Tensor, *, num_parameters: int) -> None:
    """theta is [M], floating point."""
    _check_floats(theta, name="theta")
    if theta.shape != (num_parameters,):
        raise ValueError(f"theta is [{num_parameters}] for this shape, not {_sizes(theta)}")


def check_thetas(thetas: Tensor, *, shape: ExpertShape) -> None:
    """thetas are [N, M], floating point, N >= 1."""
    _check_floats(thetas, name="thetas")
    if thetas.dim() != 2 or len(thetas) < 1 or thetas.shape[1] != shape.num_parameters:
        raise ValueError(f"thetas are [N, {shape.num_parameters}] for this shape, N at least 1, not {_sizes(thetas)}")


def check_decoder(decoder: Tensor, *, shape: ExpertShape, like: Tensor, num_experts: int | None = None) -> None:
    """E is [256, d_E] or, where there are ``num_experts``, one for each; of theta's dtype and on its device."""
    one = (VOCABULARY, shape.embed_width)
    allowed = [one] if num_experts is None else [one, (num_experts, *one)]
    if tuple(decoder.shape) not in allowed:
        named = " or ".join(str(list(sizes)) for sizes in allowed)
        raise ValueError(f"the decoder is {named} for this shape, not {_sizes(decoder)}")
    if decoder.dtype != like.dtype or decoder.device != like.device:
        raise ValueError(
            f"theta and the decoder are alike in dtype and device, not {like.dtype} on {like.device} and "
            f"{decoder.dtype} on {decoder.device}"
        )


def check_windows(windows: Tensor, *, least: int = 1) -> None:
    """windows are uint8 [B, T + 1] with B >= ``least`` and T >= 1."""
    if windows.dtype != torch.uint8 or windows.dim() != 2:
        raise ValueError(f"windows are uint8 [B, T + 1], not {windows.dtype} {_sizes(windows)}")
    if windows.shape[0] < least or windows.shape[1] < 2:
        raise ValueError(f"windows are at least {least} of at least 2 bytes, input and target, not {_sizes(windows)}")


def check_experts(experts: Tensor, *, num_windows: int, num_experts: int) -> None:
    """experts are integers [n, k], a row a window, each in 0..N-1."""
    if experts.dtype not in INDEX_DTYPES or experts.dim() != 2 or len(experts) != num_windows:
        raise ValueError(
            f"experts are signed integers [{num_windows}, k], a row a window, not {experts.dtype} {_sizes(experts)}"
        )
    if experts.numel():
        check_expert_indices((int(experts.min()), int(experts.max())), num_experts=num_experts)


def check_expert_indices(experts: Sequence[int], *, num_experts: int) -> None:
    """Each is in 0..N-1."""
    for expert in experts:
        if not 0 <= expert < num_experts:
            raise ValueError(f"experts are counted 0..{num_experts - 1}, and there is no expert {expert}")


def check_first_target(first_target: int, *, windows: Tensor) -> None:
    """first_target is in 0..T-1."""
    last = windows.shape[1] - 2
    if not 0 <= first_target <= last:
        raise ValueError(f"first_target is in 0..{last} for windows of {last + 2} bytes, not {first_target}")


def check_address(key: StreamKey, **words: int) -> None:
    """The key's halves and every word of a counter are in 0..2^32-1."""
    for name, word in ({"key.low": key.low, "key.high": key.high} | words).items():
        if not 0 <= word < WORDS:
            raise ValueError(f"{name} is in 0..2^32-1, not {word}")


def check_range(numbers: range, *, name: str) -> None:
    """Each is in 0..2^32-1; an empty range is none."""
    if any(not 0 <= number < WORDS for number in (*numbers[:1], *numbers[-1:])):
        raise ValueError(f"{name} are in 0..2^32-1, not {numbers}")


def check_signs(signs: Sequence[int]) -> None:
    """At least one column."""
    if not len(signs):
        raise ValueError("signs are the columns of the result, at least one, such as (1, -1)")


def check_numbers_of(values: np.ndarray, *, name: str, first: int) -> None:
    """values are [n], one a number from ``first`` on, all in 0..2^32-1."""
    if values.ndim != 1:
        raise ValueError(f"{name} are [n], one after the other, not {list(values.shape)}")
    check_range(range(first, first + max(len(values), 1)), name=f"the numbers of {name}")


def check_state(state: Tensor, *, sizes: tuple[int, int, int]) -> None:
    """A recurrent state is [S, L, d], floating point."""
    _check_floats(state, name="state")
    if tuple(state.shape) != sizes:
        raise ValueError(f"state is {list(sizes)} for these windows and this shape, not {_sizes(state)}")


def check_packable(thetas: np.ndarray, decoder: np.ndarray, *, shape: ExpertShape) -> None:
    """float32 [N, M], N >= 1, and E [256, d_E] or [N, 256, d_E]."""
    one = (VOCABULARY, shape.embed_width)
    if thetas.ndim != 2 or len(thetas) < 1 or thetas.shape[1] != shape.num_parameters:
        raise ValueError(f"thetas are [N, {shape.num_parameters}] for this shape, not {list(thetas.shape)}")
    if decoder.shape not in (one, (len(thetas), *one)):
        raise ValueError(f"the decoder is {list(one)}, or one for each expert, not {list(decoder.shape)}")
    if thetas.dtype != np.float32 or decoder.dtype != np.float32:
        raise ValueError(f"packed experts are float32, not {thetas.dtype} and {decoder.dtype}")


def _check_floats(tensor: Tensor, *, name: str) -> None:
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating point, not {tensor.dtype}")


def _sizes(tensor: Tensor) -> str:
    return str(list(tensor.shape))
