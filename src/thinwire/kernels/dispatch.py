"""Which implementation runs?  ``auto`` chooses and can say what it chose; a named one never falls back silently."""

import importlib.util
from typing import Literal, get_args

import torch

from thinwire.base.errors import UserError, missing_extra

Implementation = Literal["auto", "numba", "triton", "reference"]
Chosen = Literal["numba", "triton", "reference"]
IMPLEMENTATIONS: tuple[str, ...] = get_args(Chosen)
Precision = Literal["ieee", "tf32", "tf32x3", "fp16x3"]
"""How Triton multiplies float32 matrices; ``kernels/triton_parts.py`` says what each does to a derivative."""
PRECISIONS: tuple[str, ...] = get_args(Precision)


def choose(name: str, *, like: torch.Tensor) -> Chosen:
    """The implementation for tensors like ``like``.

    Args:
        name: ``auto``, ``numba`` (fused, CPU, float32), ``triton`` (fused, CUDA, float32) or ``reference`` (PyTorch,
            any device and dtype).
        like: theta, whose device and dtype decide what is possible.

    Raises:
        UserError: where the name is unknown or the named implementation cannot run on such tensors.
    """
    on_cpu = like.device.type == "cpu" and like.dtype == torch.float32
    on_gpu = like.device.type == "cuda" and like.dtype == torch.float32
    if name == "auto":
        if on_cpu:
            return "numba"
        return "triton" if on_gpu and has_triton() else "reference"
    if name == "numba":
        if not on_cpu:
            raise _refusal("numba", "on the CPU", like=like)
        return "numba"
    if name == "triton":
        if not has_triton():
            raise missing_extra("triton", extra="gpu", needed_for="launch.implementation = triton")
        if not (on_gpu or (on_cpu and interprets_triton())):
            raise _refusal("triton", "on a CUDA GPU", like=like)
        return "triton"
    if name == "reference":
        return "reference"
    raise UserError(
        f"there is no implementation '{name}'",
        where="launch.implementation",
        fix=f"one of auto, {', '.join(IMPLEMENTATIONS)}",
    )


def _refusal(name: str, place: str, *, like: torch.Tensor) -> UserError:
    return UserError(
        f"the {name} kernels compute in float32 {place}, not {like.dtype} on {like.device}",
        where=f"launch.implementation = {name}",
        fix="use --launch.implementation reference, or auto",
    )


def has_triton() -> bool:
    """Whether the optional package is installed; it is imported only where it is used."""
    return importlib.util.find_spec("triton") is not None


def device_for(name: str) -> torch.device:
    """Where weights must lie for an implementation: the GPU for ``triton``, unless it is interpreted; else the CPU.

    Raises:
        UserError: ``triton`` is named, and there is no GPU or no package.
    """
    if name != "triton":
        return torch.device("cpu")
    if not has_triton():
        raise missing_extra("triton", extra="gpu", needed_for="launch.implementation = triton")
    if interprets_triton():
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "the triton kernels need a CUDA GPU, and PyTorch sees none here",
            where="launch.implementation = triton",
            fix="use --launch.implementation auto",
        )
    return torch.device("cuda")


def choose_for_this_machine(name: str) -> Chosen:
    """As ``choose``, for float32 tensors where ``name`` wants them.

    Raises:
        UserError: as ``choose`` and ``device_for``.
    """
    return choose(name, like=torch.empty(0, device=device_for(name)))


def interprets_triton() -> bool:
    """Whether Triton was told to run kernels on CPU tensors, one operation at a time: for tests, very slow."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def check_precision(precision: Precision, *, chosen: Chosen) -> None:
    """Raises UserError where a precision is named that the implementation does not have, or that there is none of."""
    if precision not in PRECISIONS:
        raise UserError(
            f"there is no precision '{precision}'",
            where=f"precision = {precision}",
            fix=f"one of {', '.join(PRECISIONS)}",
        )
    if precision != "ieee" and chosen != "triton":
        raise UserError(
            f"the {chosen} kernels have no precision '{precision}'",
            where=f"precision = {precision}",
            fix="name the implementation triton, or the precision ieee",
        )
