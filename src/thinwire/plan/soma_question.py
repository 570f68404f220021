"""What is asked of a SOMA plan?  The budget, the deadline and the devices, and the ensembles that are compared."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.plan.quantities import Budget
from thinwire.soma.budget import Setting
from thinwire.soma.config import SomaConfig
from thinwire.soma.equal_size import ensemble_size, width_for_size

AROUND = (0.001, 0.01, 0.1, 0.3, 1, 3, 10)
"""Parts of the wanted updates at which an allocation is looked for."""


class Ensemble(NamedTuple):
    """N experts of one shape."""

    num_experts: int
    shape: ExpertShape


@dataclass(frozen=True)
class Question:
    """What is planned.

    Attributes:
        config: what is fixed: depth, d_E, T, the decoder's mode, and the run's own allocation.
        budget: C, of all experts together; None where only a deadline binds.
        deadline_seconds: D, elapsed; infinite where only a budget binds.
        devices: that train at once: cores, where the kernels run on the CPU.
        memory_bytes: of one device; None does not ask.
        fixed: whether every expert keeps the configuration's width, or the ensemble its total size.
        wanted_updates: of every expert; allocations are looked for around it.
        most_experts: no N is above this, the configuration's own neither.
    """

    config: SomaConfig
    budget: Budget | None
    deadline_seconds: float
    devices: int
    memory_bytes: int | None
    fixed: Literal["width", "size"]
    wanted_updates: int
    most_experts: int

    @property
    def window_bytes(self) -> int:
        return self.config.experts.window_bytes

    def aimed_updates(self, most: int) -> list[int]:
        """Around the wanted ones as far as ``most``, and ``most``.

        Args:
            most: s_max of the smallest update.
        """
        around = {max(1, round(part * self.wanted_updates)) for part in AROUND} | {most}
        return sorted(updates for updates in around if 0 < updates <= most)

    def own_setting(self) -> Setting:
        """The configuration's own allocation."""
        job = self.config.experts
        count = self.config.clusters.num_clusters
        return Setting(count, job.directions, job.batch, job.accumulation, job.difference)

    def ensembles(self) -> list[Ensemble]:
        """N = 1, 2, 4, ... and the configuration's own up to ``most_experts``, as far as experts can be that narrow."""
        model, decoder = self.config.model, self.config.experts.decoder
        own = self.config.clusters.num_clusters
        shape = ExpertShape(width=model.width, depth=model.depth, embed_width=model.embed_width)
        total = ensemble_size(shape, num_experts=own, decoder=decoder)
        found = []
        counts = {own, *(1 << power for power in range(self.most_experts.bit_length()))}
        for count in sorted(count for count in counts if count <= self.most_experts):
            if self.fixed == "size" and count != own:
                try:
                    width = width_for_size(model, total=total, num_experts=count, decoder=decoder).width
                except ValueError:
                    break
                found.append(Ensemble(count, replace(shape, width=width)))
            else:
                found.append(Ensemble(count, shape))
        return found
