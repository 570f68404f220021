"""What is theta on average?  Sums over the chunks a rank has seen, and their mean over all ranks (section 3.5)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.comm.collectives import gather_json
from thinwire.comm.group import Group
from thinwire.subspaces.rotation import Side

Thetas = Mapping[tuple[int, int], Sequence[Tensor]]
"""(layer, stream) -> theta of each own chunk, [b, 2, k]; row 0 for keys, row 1 for values."""


class ThetaSums:
    """Sums by layer, float64 on the CPU: [2, k] and how many chunks of sequences."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Tensor, int]] = {}

    def add(self, thetas: Thetas) -> None:
        """Count the chunks of one pass."""
        for (layer, _), chunks in thetas.items():
            rows = torch.cat([theta.detach().double().cpu() for theta in chunks])
            self._add(layer, rows.sum(dim=0), len(rows))

    def take(self, other: "ThetaSums") -> None:
        """Count what another has counted."""
        for layer, (total, count) in other._sums.items():
            self._add(layer, total, count)

    def _add(self, layer: int, total: Tensor, count: int) -> None:
        before, number = self._sums.get(layer, (torch.zeros_like(total), 0))
        self._sums[layer] = (before + total, number + count)

    def mean(self, group: Group) -> dict[tuple[int, Side], Tensor]:
        """Over all ranks, float64 [k] of each layer and side, equal on all of them; empty where nothing was counted."""
        mine = {str(layer): [total.tolist(), count] for layer, (total, count) in self._sums.items()}
        everyone = gather_json(group, mine)
        found: dict[tuple[int, Side], Tensor] = {}
        for layer in sorted({int(name) for one in everyone for name in one}):
            parts = [one[str(layer)] for one in everyone if str(layer) in one]
            total = torch.stack([torch.tensor(part, dtype=torch.float64) for part, _ in parts]).sum(dim=0)
            key, value = total / sum(count for _, count in parts)
            found[layer, "key"], found[layer, "value"] = key, value
        return found

    def state(self) -> dict[str, Tensor]:
        """Named tensors for a checkpoint."""
        found: dict[str, Tensor] = {}
        for layer, (total, count) in self._sums.items():
            found |= {f"{layer}.total": total, f"{layer}.count": torch.tensor(count)}
        return found

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor]) -> "ThetaSums":
        """What ``state`` named."""
        made = cls()
        for name, total in tensors.items():
            if name.endswith(".total"):
                layer = name.removesuffix(".total")
                made._add(int(layer), total.clone(), int(tensors[f"{layer}.count"]))
        return made
