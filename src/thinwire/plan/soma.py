"""Which N, n_pert, B and difference fit a budget, a deadline and the memory?  (Eqs. 6, 17, 18 and 22; section M.1)

For every N the integers n_pert and B of least predicted variance are found at several numbers of updates, each spending
the budget. Closed forms give variance and updates, not loss: between different N only recorded curves can choose.
The seed run, clusters and scores are not counted (appendix H).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf, log10
from typing import Any, Literal, NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.units import format_bytes
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.plan.allocation import best_allocation_within
from thinwire.plan.noise import NoiseSource
from thinwire.plan.quantities import Budget
from thinwire.plan.update_cost import LANES, UpdateCost, expert_memory_bytes
from thinwire.soma.budget import Setting, most_updates
from thinwire.soma.config import Difference, SomaConfig
from thinwire.soma.equal_size import ensemble_size, width_for_size
from thinwire.soma.theory import FEWEST_DIRECTIONS, expected_cosine, relative_variance

DIFFERENCES: tuple[Difference, ...] = ("central", "one_sided")
AROUND = (0.1, 0.3, 1, 3, 10)
"""Parts of the wanted updates at which an allocation is looked for."""
PAPER_SIDES = 64
Role = Literal["best", "paper", "own"]
UNIT_WORDS = {"device_seconds": "s", "byte_forwards": " byte-forwards", "operations": " ops"}


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
        wanted_updates: of every expert, where the budget allows so many.
        most_experts: N goes up to this.
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

    def aimed_updates(self) -> list[int]:
        """Around the wanted ones, and tens of them downwards: a small budget is spent on what it can make."""
        wanted = self.wanted_updates
        below = (wanted // 10**power for power in range(len(str(wanted))))
        return sorted({max(1, round(part * wanted)) for part in AROUND} | {max(1, updates) for updates in below} | {1})

    def own_setting(self) -> Setting:
        """The configuration's own allocation."""
        job = self.config.experts
        count = self.config.clusters.num_clusters
        return Setting(count, job.directions, job.batch, job.accumulation, job.difference)

    def ensembles(self) -> list[Ensemble]:
        """N = 1, 2, 4, ... and the configuration's own, as far as wanted and as experts can be that narrow."""
        model, decoder = self.config.model, self.config.experts.decoder
        own = self.config.clusters.num_clusters
        shape = ExpertShape(width=model.width, depth=model.depth, embed_width=model.embed_width)
        total = ensemble_size(shape, num_experts=own, decoder=decoder)
        found = []
        for count in sorted({own, *(1 << power for power in range(self.most_experts.bit_length()))}):
            if self.fixed == "size" and count != own:
                try:
                    width = width_for_size(model, total=total, num_experts=count, decoder=decoder).width
                except ValueError:
                    break
                found.append(Ensemble(count, replace(shape, width=width)))
            else:
                found.append(Ensemble(count, shape))
        return found


class Step(NamedTuple):
    """One update of all experts.

    Attributes:
        device_seconds: u of Eq. (6), all experts.
        elapsed_seconds: tau.
        cost: u in the budget's unit.
    """

    device_seconds: float
    elapsed_seconds: float
    cost: float


class Limit(NamedTuple):
    """What one update may take at most, in the budget's unit and elapsed."""

    cost: float
    seconds: float


def step_of(question: Question, setting: Setting, *, operations_per_byte: int, cost: UpdateCost) -> Step:
    """choice: experts that outnumber the devices train one after the other; devices that outnumber the experts are
    divided evenly among them, what is left over stays idle and is not counted."""
    one = cost.seconds(setting, window_bytes=question.window_bytes)
    waves = ceil(setting.num_experts / question.devices)
    each = max(1, question.devices // setting.num_experts)
    seconds = setting.num_experts * one
    forwards = float(setting.window_forwards * question.window_bytes)
    unit = "device_seconds" if question.budget is None else question.budget.unit
    spent = {
        "device_seconds": seconds,
        "byte_forwards": forwards,
        "operations": operations_per_byte * forwards,
    }
    return Step(seconds, waves * one / each, spent[unit])


def updates_of(question: Question, step: Step) -> int:
    """s_max (Eq. 6)."""
    return most_updates(
        budget=inf if question.budget is None else question.budget.amount,
        update_cost=step.cost,
        deadline_seconds=question.deadline_seconds,
        update_seconds=step.elapsed_seconds,
    )


class Planner:
    """Candidates of one question, from costs and noise that were measured before: nothing here takes a clock."""

    def __init__(self, question: Question, *, costs: Mapping[ExpertShape, UpdateCost], noise: NoiseSource) -> None:
        self.question, self.costs, self.noise = question, costs, noise
        self._operations_per_byte = {shape: shape.operations_per_byte for shape in costs}

    def plan(self) -> list[dict[str, Any]]:
        """Every candidate that makes at least one update; of each N one is ``chosen``.

        Raises:
            UserError: no update fits the budget and the deadline, or no expert the memory; the message has the least
                that fits.
        """
        ensembles = self._that_fit_memory()
        self._refuse_too_little(ensembles)
        options = []
        for ensemble in ensembles:
            best = list(self._best(ensemble))
            chosen = self._chosen(best)
            options += [option | {"chosen": option is chosen} for option in best]
            options += [option | {"chosen": False} for option in self._given(ensemble)]
        return options

    def _that_fit_memory(self) -> list[Ensemble]:
        ensembles, limit = self.question.ensembles(), self.question.memory_bytes
        needed = {ensemble: self._memory(ensemble, batch=LANES) for ensemble in ensembles}  # least there
        fitting = [e for e in ensembles if limit is None or needed[e] <= limit]
        if not fitting:
            raise UserError(
                "no expert fits the memory of a device",
                where=f"--memory {format_bytes(limit or 0)}",
                fix=f"the smallest needs --memory {ceil(min(needed.values()) / 1e6)}MB; or plan for less width",
            )
        return fitting

    def _refuse_too_little(self, ensembles: Sequence[Ensemble]) -> None:
        steps = [
            self._step(ensemble, Setting(ensemble.num_experts, FEWEST_DIRECTIONS[difference], 1, 1, difference))
            for ensemble in ensembles
            for difference in DIFFERENCES
        ]
        if any(updates_of(self.question, step) for step in steps):
            return
        least_cost = min(steps, key=lambda step: step.cost)
        least_time = min(steps, key=lambda step: step.elapsed_seconds)
        budget, deadline = self.question.budget, self.question.deadline_seconds
        needs = []
        if budget is not None:
            needs.append(f'--budget "{_rounded_up(least_cost.cost)}{UNIT_WORDS[budget.unit]}"')
        if deadline < inf:
            needs.append(f"--deadline {_rounded_up(least_time.elapsed_seconds)}s")
        raise UserError(
            "this does not suffice for a single update, however small",
            where=" ".join(need.split()[0] for need in needs),
            fix=f"the least that fits is {' and '.join(needs)}; useful runs take thousands of updates",
        )

    def _best(self, ensemble: Ensemble) -> Iterator[dict[str, Any]]:
        """The least variance at every number of updates, of both differences."""
        terms = self.noise.terms_of(ensemble.shape.num_parameters)
        question = self.question
        for updates in question.aimed_updates():
            budget = inf if question.budget is None else question.budget.amount
            limit = Limit(budget / updates, question.deadline_seconds / updates)
            for difference in DIFFERENCES:

                def share(batch: int, difference: Difference = difference, limit: Limit = limit) -> float:
                    """The part of what an update may take that one direction takes."""
                    step = self._step(ensemble, Setting(ensemble.num_experts, 1, batch, 1, difference))
                    return max(step.cost / limit.cost, step.elapsed_seconds / limit.seconds)

                found = best_allocation_within(terms, direction_cost=share, limit=1.0, difference=difference)
                if found is not None:
                    setting = Setting(ensemble.num_experts, int(found.directions), int(found.batch), 1, difference)
                    yield self._option(ensemble, setting, role="best", aimed_updates=updates)

    def _chosen(self, options: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """choice: as many updates as wanted, or else the most below that, then the least variance. The closed form does
        not know how many small steps are worth a better one."""
        fitting = [option for option in options if option["fits"]]
        reached = [o for o in fitting if o["aimed_updates"] <= self.question.wanted_updates]
        most = max((option["aimed_updates"] for option in reached), default=None)
        same = [option for option in reached if option["aimed_updates"] == most]
        return min(same, key=lambda option: option["relative_variance"], default=None)

    def _given(self, ensemble: Ensemble) -> Iterator[dict[str, Any]]:
        """The paper's allocation for every N, and the configuration's own."""
        yield from self._where_possible(
            ensemble, Setting(ensemble.num_experts, PAPER_SIDES, PAPER_SIDES, 1, "central"), role="paper"
        )
        own = self.question.own_setting()
        if own.num_experts == ensemble.num_experts:
            yield from self._where_possible(ensemble, own, role="own")

    def _where_possible(self, ensemble: Ensemble, setting: Setting, *, role: Role) -> Iterator[dict[str, Any]]:
        if updates_of(self.question, self._step(ensemble, setting)):
            yield self._option(ensemble, setting, role=role, aimed_updates=None)

    def _step(self, ensemble: Ensemble, setting: Setting) -> Step:
        return step_of(
            self.question,
            setting,
            operations_per_byte=self._operations_per_byte[ensemble.shape],
            cost=self.costs[ensemble.shape],
        )

    def _memory(self, ensemble: Ensemble, *, batch: int) -> int:
        return expert_memory_bytes(ensemble.shape, batch=batch, window_bytes=self.question.window_bytes)

    def _option(self, ensemble: Ensemble, setting: Setting, *, role: Role, aimed_updates: int | None) -> dict[str, Any]:
        question, shape, step = self.question, ensemble.shape, self._step(ensemble, setting)
        terms, updates = self.noise.terms_of(shape.num_parameters), updates_of(question, step)
        variance = relative_variance(
            terms,
            directions=setting.directions,
            batch=setting.batch,
            difference=setting.difference,
            accumulation=setting.accumulation,
        )
        memory = self._memory(ensemble, batch=setting.batch)
        decoder = question.config.experts.decoder
        return {
            "role": role,
            **setting._asdict(),
            "width": shape.width,
            "expert_parameters": shape.num_parameters,
            "total_parameters": ensemble_size(shape, num_experts=setting.num_experts, decoder=decoder),
            "aimed_updates": aimed_updates,
            "updates": updates,
            "update_device_seconds": step.device_seconds,
            "update_elapsed_seconds": step.elapsed_seconds,
            "elapsed_seconds": updates * step.elapsed_seconds,
            "device_seconds": updates * step.device_seconds,
            "byte_forwards": updates * setting.window_forwards * question.window_bytes,
            "operations": updates * setting.window_forwards * question.window_bytes * shape.operations_per_byte,
            "relative_variance": variance,
            "expected_cosine": expected_cosine(terms, variance=variance),
            "memory_bytes": memory,
            "fits": question.memory_bytes is None or memory <= question.memory_bytes,
        }


def _rounded_up(value: int | float) -> str:
    """Three digits, never less than ``value``."""
    unit = 10.0 ** (floor(log10(value)) - 2)
    return f"{ceil(value / unit - 1e-9) * unit:.3g}"
