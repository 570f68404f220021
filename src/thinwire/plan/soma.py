"""Which N, n_pert, B and difference fit a budget, a deadline and the memory?  (Eqs. 6, 17, 18 and 22; section M.1)

For every N the integers n_pert and B whose noise costs least (decision 0016) are found at several numbers of updates,
each spending the budget. Closed forms give variance and updates, not loss: between different N only recorded curves
can choose. The seed run, clusters and scores are not counted (appendix H).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf, log10
from typing import Any, Literal, NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.units import format_bytes
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.plan.allocation import best_allocation_within
from thinwire.plan.noise import NoiseSource
from thinwire.plan.soma_question import Ensemble, Question
from thinwire.plan.update_cost import LANES, UpdateCost, expert_memory_bytes
from thinwire.soma.budget import Setting, most_updates
from thinwire.soma.config import Difference
from thinwire.soma.equal_size import ensemble_size
from thinwire.soma.theory import FEWEST_DIRECTIONS, expected_cosine, noiseless_share, relative_variance

DIFFERENCES: tuple[Difference, ...] = ("central", "one_sided")
PAPER_SIDES = 64
Role = Literal["least", "paper", "own"]
UNIT_WORDS = {"device_seconds": "s", "byte_forwards": " byte-forwards", "operations": " ops"}


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


def smallest_update(num_experts: int, difference: Difference) -> Setting:
    """On one window, with as few directions as the difference can do with."""
    return Setting(num_experts, FEWEST_DIRECTIONS[difference], 1, 1, difference)


def smallest_tried(num_experts: int) -> Setting:
    """As many forwards as an expert's update in our recipe; a quarter of it trained no better (decision 0016)."""
    return Setting(num_experts, 64, 16, 1, "one_sided")


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
            least = list(self._least(ensemble))
            chosen = self._chosen(least)
            options += [option | {"chosen": option is chosen} for option in least]
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
        """Names the flags that bind the update which comes nearest to fitting, and what it takes of them."""
        steps = [
            self._step(ensemble, smallest_update(ensemble.num_experts, difference))
            for ensemble in ensembles
            for difference in DIFFERENCES
        ]
        if any(updates_of(self.question, step) for step in steps):
            return
        budget, deadline = self.question.budget, self.question.deadline_seconds

        def excess(step: Step) -> tuple[float, float]:
            """Of what the budget and the deadline allow; above 1 where they bind."""
            return step.cost / (inf if budget is None else budget.amount), step.elapsed_seconds / deadline

        nearest = min(steps, key=lambda step: (sum(part > 1 for part in excess(step)), max(excess(step))))
        of_budget, of_deadline = excess(nearest)
        needs = []
        if budget is not None and of_budget > 1:
            needs.append(f'--budget "{_rounded_up(nearest.cost)}{UNIT_WORDS[budget.unit]}"')
        if of_deadline > 1:
            needs.append(f"--deadline {_rounded_up(nearest.elapsed_seconds)}s")
        raise UserError(
            "this does not suffice for a single update, however small",
            where=" ".join(need.split()[0] for need in needs),
            fix=f"the least that fits is {' and '.join(needs)}; useful runs take thousands of updates",
        )

    def _least(self, ensemble: Ensemble) -> Iterator[dict[str, Any]]:
        """The least noise at every number of updates, of both differences.

        choice: no more updates than of the smallest that was tried, where one of those fits: by the closed form
        forwards are worth the more the smaller an update.
        """
        smallest = [smallest_update(ensemble.num_experts, difference) for difference in DIFFERENCES]
        most = {one.difference: updates_of(self.question, self._step(ensemble, one)) for one in smallest}
        tried = updates_of(self.question, self._step(ensemble, smallest_tried(ensemble.num_experts)))
        for updates in self.question.aimed_updates(tried or max(most.values())):
            for one in smallest:
                if updates <= most[one.difference]:
                    setting = self._least_noisy(ensemble, updates, one.difference) or one
                    yield self._option(ensemble, setting, role="least", aimed_updates=updates)

    def _least_noisy(self, ensemble: Ensemble, updates: int, difference: Difference) -> Setting | None:
        """None where rounding leaves no room for the smallest update, which fits exactly."""
        question = self.question
        budget = inf if question.budget is None else question.budget.amount
        limit = Limit(budget / updates, question.deadline_seconds / updates)

        def share(batch: int) -> float:
            """The part of what an update may take that one direction takes."""
            step = self._step(ensemble, Setting(ensemble.num_experts, 1, batch, 1, difference))
            return max(step.cost / limit.cost, step.elapsed_seconds / limit.seconds)

        found = best_allocation_within(
            self.noise.terms_of(ensemble.shape),
            direction_cost=share,
            limit=1.0,
            difference=difference,
            batch_weight=self.noise.costs.batch,
        )
        return found and Setting(ensemble.num_experts, int(found.directions), int(found.batch), 1, difference)

    def _chosen(self, options: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The one that is worth most."""
        fitting = (option for option in options if option["fits"])
        return max(fitting, key=lambda option: option["noiseless_updates"], default=None)

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
        terms, updates, costs = self.noise.terms_of(shape), updates_of(question, step), self.noise.costs
        sides = setting._asdict()
        del sides["num_experts"]
        variance = relative_variance(terms, **sides)
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
            "noiseless_updates": updates * noiseless_share(terms, costs=costs, **sides),
            "expected_cosine": expected_cosine(terms, variance=variance),
            "memory_bytes": memory,
            "fits": question.memory_bytes is None or memory <= question.memory_bytes,
        }


def _rounded_up(value: int | float) -> str:
    """Three digits, never less than ``value``."""
    unit = 10.0 ** (floor(log10(value)) - 2)
    return f"{ceil(value / unit - 1e-9) * unit:.3g}"
