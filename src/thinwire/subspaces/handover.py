"""How does one rank give the others what only it has?  Named tensors; and the check of equal settings."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.comm.collectives import broadcast, gather_json
from thinwire.comm.group import Group
from thinwire.config.fingerprint import differing_keys

TAG = "bases"
T = TypeVar("T")


def hand_over(
    group: Group, mine: tuple[dict[str, Tensor], dict[str, Any]] | None, *, root: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The root's named tensors and description, on every rank.

    Args:
        mine: the root's; others give anything.
    """
    shapes: Any = None
    if group.rank == root:
        assert mine is not None
        named = {name: tensor.cpu() for name, tensor in mine[0].items()}
        shapes = [[[name, list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in named.items()], mine[1]]
    described, meta = gather_json(group, shapes)[root]
    if group.rank == root:
        tensors = [named[name] for name, _, _ in described]
    else:
        tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for _, shape, dtype in described]
    received = broadcast(group, tensors, root=root, tag=TAG)
    return {name: tensor for (name, _, _), tensor in zip(described, received, strict=True)}, meta


def together(group: Group, act: Callable[[], T]) -> T:
    """Do something on every rank that a person's mistake may prevent on one; then all raise its UserError."""
    error, result = None, None
    try:
        result = act()
    except UserError as raised:
        error = {"what": raised.what, "where": raised.where, "fix": raised.fix}
    for found in gather_json(group, error):
        if found is not None:
            raise UserError(**found)
    return result  # type: ignore[return-value]


def refuse_differences(group: Group, identity: dict[str, Any], *, reference: int = 0) -> None:
    """Raises UserError where a rank's settings or data differ from those of the rank ``reference``, naming them.

    Every rank raises; where some train already, ``reference`` is one of them.
    """
    everyone = gather_json(group, identity)
    for rank, other in enumerate(everyone):
        if other != everyone[reference]:
            listed = "\n    ".join(["", *differing_keys(everyone[reference], other)])
            raise UserError(
                f"rank {rank} differs from rank {reference} ('there' is rank {reference}):{listed}",
                where=f"rank {rank}",
                fix="start every rank with the same settings, the same data and the same version",
            )


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
