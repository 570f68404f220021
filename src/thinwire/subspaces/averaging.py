"""How do drifted replicas become one model?  Gradients summed each step, or weights averaged every c (section 3.4).

The paper averages attention weights every c = 200 steps; here all weights are averaged, or the replicas would never be
one model. The weights are cut into fragments that travel one after the other behind the training (Streaming DiLoCo,
Douillard et al., 2025), each used a fixed number of steps after it left, so that the result depends on no clock. A
Nesterov step on the averages' change is DiLoCo's (Douillard et al., 2023); with rate 1 and momentum 0 it is plain
averaging.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.comm.collectives import sum_in_rank_order
from thinwire.comm.group import Group
from thinwire.subspaces.codecs.make import WIRE_DTYPES
from thinwire.subspaces.config import SyncConfig

TAG = "sync"


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten_into(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a vector's parts back."""
    with torch.no_grad():
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


def sum_gradients(parameters: Sequence[nn.Parameter], group: Group, *, config: SyncConfig) -> None:
    """Replace every gradient by the sum over the ranks, equal to the bit on all of them."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    total = sum_in_rank_order(group, flatten(gradients), wire=WIRE_DTYPES[config.wire], tag=TAG)
    for parameter, part in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def average_now(tensors: Sequence[Tensor], group: Group, *, config: SyncConfig) -> None:
    """All weights' mean over the ranks, in place; every rank waits."""
    total = sum_in_rank_order(group, flatten(tensors), wire=WIRE_DTYPES[config.wire], tag=TAG)
    unflatten_into(total / group.size, tensors)


@dataclass
class _InFlight:
    """A fragment on its way."""

    index: int
    use_at: int
    left: Tensor
    """This rank's weights when the fragment left."""
    total: Future[Tensor]


class WeightAveraging:
    """Averages the weights fragment by fragment; every rank calls it at the same steps.

    Args:
        parameters: all that is trained.
        group: of its own: its messages must not wait for those of the forward pass.
        config: how often, in how many fragments, with or without an outer step.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: Group, *, config: SyncConfig) -> None:
        self.group, self.config = group, config
        self.fragments = cut(parameters, config.fragments)
        self.settled_at = 0
        self._flying: list[_InFlight] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="averaging")
        nesterov = config.outer == "nesterov"
        self.anchors = [flatten(part) for part in self.fragments] if nesterov else []
        self.momenta = [torch.zeros_like(anchor) for anchor in self.anchors]

    def after_step(self, step: int) -> None:
        """Use what was due, then send the fragment that leaves at this step."""
        self._use_due(step)
        index = leaving_fragment(step, config=self.config, settled_at=self.settled_at)
        if index is not None and index < len(self.fragments):
            left = flatten(self.fragments[index])
            wire = WIRE_DTYPES[self.config.wire]
            total = self._worker.submit(sum_in_rank_order, self.group, left, wire=wire, tag=TAG)
            self._flying.append(_InFlight(index, step + self.config.delay, left, total))
            self._use_due(step)

    def settle(self, step: int) -> None:
        """Use everything that flies, then average all weights: one model on all ranks. No fragment leaves any more in
        this round of ``every`` steps."""
        self._use_due(None)
        for index, part in enumerate(self.fragments):
            total = sum_in_rank_order(self.group, flatten(part), wire=WIRE_DTYPES[self.config.wire], tag=TAG)
            unflatten_into(self._outer_step(index, total / self.group.size), part)
        self.settled_at = step

    def _use_due(self, step: int | None) -> None:
        due = [one for one in self._flying if step is None or one.use_at <= step]
        self._flying = [one for one in self._flying if one not in due]
        for one in due:
            new = self._outer_step(one.index, one.total.result() / self.group.size)
            # What this rank learned while the fragment travelled is kept.
            unflatten_into(new + (flatten(self.fragments[one.index]) - one.left), self.fragments[one.index])

    def _outer_step(self, index: int, average: Tensor) -> Tensor:
        if not self.anchors:
            return average
        rate, momentum = self.config.outer_learning_rate, self.config.outer_momentum
        change = self.anchors[index] - average
        self.momenta[index] = momentum * self.momenta[index] + change
        self.anchors[index] = self.anchors[index] - rate * (change + momentum * self.momenta[index])
        return self.anchors[index].clone()

    def state(self) -> dict[str, Tensor]:
        """What an outer step remembers, and the fragments in flight (waits until they have arrived)."""
        named = {f"anchor.{i}": anchor for i, anchor in enumerate(self.anchors)}
        named |= {f"momentum.{i}": momentum for i, momentum in enumerate(self.momenta)}
        for one in self._flying:
            name = f"flying.{one.index}.{one.use_at}"
            named |= {f"{name}.left": one.left, f"{name}.total": one.total.result()}
        return named | {"settled_at": torch.tensor(self.settled_at)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over ``state()`` of another time."""
        device = self.fragments[0][0].device
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.anchors = [tensors[f"anchor.{i}"] for i in range(len(self.anchors))]
        self.momenta = [tensors[f"momentum.{i}"] for i in range(len(self.momenta))]
        self.settled_at = int(tensors["settled_at"])
        for name in sorted(name for name in tensors if name.startswith("flying.") and name.endswith(".left")):
            _, index, use_at, _ = name.split(".")
            total: Future[Tensor] = Future()
            total.set_result(tensors[name.removesuffix("left") + "total"])
            self._flying.append(_InFlight(int(index), int(use_at), tensors[name], total))
        self._flying.sort(key=lambda one: one.use_at)

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)


def leaving_fragment(step: int, *, config: SyncConfig, settled_at: int) -> int | None:
    """Which fragment leaves after an update that does not settle; it may be past the last. None: no fragment's turn, or
    the weights were settled in this round of ``every`` steps already."""
    index, rest = divmod(step % config.every, max(1, config.delay))
    is_settled = step // config.every == settled_at // config.every
    return None if rest or is_settled else index


def cut(parameters: Sequence[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """``count`` groups of neighbours of about equal size."""
    total, seen = sum(p.numel() for p in parameters), 0
    groups: list[list[nn.Parameter]] = [[] for _ in range(count)]
    for parameter in parameters:
        groups[min(count - 1, seen * count // max(1, total))].append(parameter)
        seen += parameter.numel()
    return [group for group in groups if group]
