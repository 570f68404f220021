"""What does every rank tell the others after a step?  Its loss, its bytes, and whether anyone wants to stop.

One message of 80 bytes to each other rank, read one step later, so that nobody waits for it. All ranks read the same
numbers at the same step, so they take the same decision there.
"""

from dataclasses import dataclass

import torch

from thinwire.comm.group import Group, Pending, TensorSpec

TAG = "control"
SLOT = 1 << 19
"""Above the slots of any layer, below those of the collectives."""
COUNTED_TAGS = ("kv-forward", "kv-backward", "theta", "sync", "control")


@dataclass(frozen=True)
class Beat:
    """One rank after one step.

    Attributes:
        step: the update.
        loss: summed over the rank's targets, nats.
        wants_stop: somebody asked this process to stop.
        is_broken: its loss or gradient was not finite, and the update was left out.
        has_joiner: a rank waits to join.
        wire_bytes: sent by the rank so far, in the order of ``COUNTED_TAGS``.
    """

    step: int
    loss: float
    wants_stop: bool = False
    is_broken: bool = False
    has_joiner: bool = False
    wire_bytes: tuple[int, ...] = (0,) * len(COUNTED_TAGS)

    def as_tensor(self) -> torch.Tensor:
        flags = (float(self.wants_stop), float(self.is_broken), float(self.has_joiner))
        return torch.tensor([float(self.step), self.loss, *flags, *map(float, self.wire_bytes)], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, numbers: torch.Tensor) -> "Beat":
        step, loss, stop, broken, joiner, *counts = numbers.tolist()
        return cls(int(step), loss, bool(stop), bool(broken), bool(joiner), tuple(map(int, counts)))


class Heartbeat:
    """Sends this rank's beat, and later gives everyone's."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._own: Beat | None = None
        self._arriving: dict[int, Pending] = {}

    def send(self, beat: Beat) -> None:
        others = [rank for rank in range(self.group.size) if rank != self.group.rank]
        numbers = beat.as_tensor()
        spec = TensorSpec(tuple(numbers.shape), numbers.dtype)
        self._arriving = {r: self.group.receive([spec], source=r, slot=SLOT, tag=TAG) for r in others}
        for rank in others:
            self.group.send([numbers], to=rank, slot=SLOT, tag=TAG)
        self._own = beat

    def collect(self) -> list[Beat] | None:
        """Everyone's beat of the last ``send``, in the order of the ranks; None where it was collected before."""
        if self._own is None:
            return None
        beats = {self.group.rank: self._own}
        for rank, pending in self._arriving.items():
            (numbers,) = pending.wait()
            beats[rank] = Beat.from_tensor(numbers)
        self._own, self._arriving = None, {}
        return [beats[rank] for rank in sorted(beats)]
