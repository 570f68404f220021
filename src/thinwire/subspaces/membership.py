"""How does a rank come to a team, lose a part of it, and take newcomers in?  One model on all of them, each time.

Where gradients are summed every step the replicas are equal, and the rank that is furthest gives its state to those
behind. Where replicas drift, their weights are averaged as well; moments stay each rank's own, and the outer step
starts again from the average. # choice: its momentum is dropped, since the ranks may have used different fragments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from thinwire.base.errors import RunFailedError
from thinwire.comm.collectives import gather_json
from thinwire.comm.group import PeerLostError
from thinwire.subspaces.averaging import average_now
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.handover import hand_over, part
from thinwire.subspaces.schedule import Phase
from thinwire.subspaces.team import LeftBehindError, Meeting, Team
from thinwire.subspaces.trainer import Trainer

JOIN_TIMEOUTS = 60
"""How many time-outs a rank that came back waits to be let in."""
ATTEMPTS = 8
"""How often survivors meet again when one more is lost on the way."""
PHASES: tuple[Phase, ...] = ("warm-up", "compressed", "folded", "plain")


class Standing(NamedTuple):
    """What a rank says of itself when a team has met."""

    is_at_work: bool
    """It trained until now; else it comes from nowhere."""
    step: int
    phase: Phase
    is_step_done: bool
    """Nothing is left to do after its last update."""
    seconds: float
    totals: tuple[int, ...]
    pid: int


@dataclass
class Membership:
    """One process's way through the teams.

    Args:
        meeting: the store and this process's name.
        ranks: how many the run wants.
    """

    meeting: Meeting
    ranks: int

    def first(self) -> Team:
        """Meet the others at the start."""
        members = self.meeting.first(tuple(range(self.ranks)))
        return self._connect(members, generation=0)

    def join(self) -> Team | None:
        """Come to a run that is under way: wait until the ranks at work let this one in. None: the run has ended."""
        while True:
            invitation = self.meeting.ask_to_join(seconds=JOIN_TIMEOUTS * self.meeting.timeout_seconds)
            if invitation is None:
                return None
            try:
                members = self.meeting.again(invitation.expected, generation=invitation.generation)
                return self._connect(members, generation=invitation.generation)
            except LeftBehindError:
                continue

    def without(self, old: Team, lost: PeerLostError) -> Team:
        """Meet the survivors again.

        Raises:
            LeftBehindError: they went on without this process.
            RunFailedError: they do not come together.
        """
        verdict = old.main.fail(lost.rank, silent_seconds=None)  # one answer for both groups, on all ranks
        old.abandon(rank=verdict.rank)
        if verdict.rank == old.main.rank:
            raise LeftBehindError
        expected = [member for member in old.members if member != old.members[verdict.rank]]
        members = self.meeting.again(expected, generation=old.generation + 1)
        return self._connect(members, generation=old.generation + 1)

    def with_new(self, old: Team, new: Sequence[int]) -> Team:
        """Meet newcomers; all ranks of ``old`` call this at the same step."""
        generation, expected = old.generation + 1, sorted({*old.members, *new})
        if old.main.rank == 0:
            for member in new:
                self.meeting.invite(member, generation=generation, expected=expected)
        old.close()
        members = self.meeting.again(expected, generation=generation)
        return self._connect(members, generation=generation)

    def waiting(self, team: Team) -> tuple[int, ...]:
        """Who waits to be let in."""
        return self.meeting.joiners(candidates=sorted(set(range(self.ranks)) - set(team.members)))

    def _connect(self, members: Sequence[int], *, generation: int) -> Team:
        """Where one more was lost between the agreement and the connection, the others agree again."""
        for _ in range(ATTEMPTS):
            try:
                return self.meeting.connect(members, generation=generation)
            except RunFailedError as error:
                failed = error
            generation += 1
            members = self.meeting.again(members, generation=generation)
        raise failed


def unite(trainer: Trainer, standings: Sequence[Standing], *, config: SubspacesConfig) -> None:
    """One model on all ranks, given that at least one of them is at work. All call this.

    Args:
        trainer: of this rank, in its new team.
        standings: of all ranks.
        config: the run.
    """
    main = trainer.team.main
    root = first_at_work(standings)
    step, phase = standings[root].step, standings[root].phase
    behind = [rank for rank, one in enumerate(standings) if _is_behind(one, standings[root], config=config)]
    if behind:
        mine: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        if main.rank == root:
            mine = trainer.state_for_others(), {"phase": trainer.phase}
        tensors, _ = hand_over(main, mine, root=root)
        if main.rank in behind:
            weights, own = (part(tensors, prefix) for prefix in ("weights.", "own_state."))
            trainer.load_state(step=step, phase=phase, weights=weights, own=own)
    if config.sync.every > 1:
        average_now(trainer.parameters(), main, config=config.sync)
    trainer.settle_at(step)


def first_at_work(standings: Sequence[Standing]) -> int:
    """The first of the ranks that are furthest."""

    def how_far(rank: int) -> tuple[int, int, int]:
        one = standings[rank]
        return one.step, PHASES.index(one.phase), -rank

    return max((rank for rank, one in enumerate(standings) if one.is_at_work), key=how_far)


def _is_behind(one: Standing, root: Standing, *, config: SubspacesConfig) -> bool:
    is_other_step = config.sync.every == 1 and one.step != root.step
    return not one.is_at_work or one.phase != root.phase or is_other_step


def compare_standings(team: Team, own: Standing) -> list[Standing]:
    """Everyone's, in the order of the ranks."""
    return [Standing(**one | {"totals": tuple(one["totals"])}) for one in gather_json(team.main, own._asdict())]
