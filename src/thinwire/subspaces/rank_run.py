"""How does one rank get from the first update to the last?  Steps, records, checkpoints, lost and new ranks.

All ranks take every decision at the same step from the same numbers: the heartbeats of the step before. Rank 0 writes
the log and the weights; when it is lost the next one does.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch.distributed

from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.base.progress import Task
from thinwire.comm.collectives import barrier, gather_json
from thinwire.comm.group import PeerLostError
from thinwire.config.fingerprint import as_record
from thinwire.subspaces import saving
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.handover import refuse_differences
from thinwire.subspaces.heartbeat import Beat, Heartbeat
from thinwire.subspaces.journal import Journal
from thinwire.subspaces.membership import Membership, Standing, compare_standings, first_at_work, unite
from thinwire.subspaces.resuming import counted, resume
from thinwire.subspaces.schedule import is_settling_step, phase_of
from thinwire.subspaces.stock import named_theta_means
from thinwire.subspaces.team import LeftBehindError, Meeting, Team
from thinwire.subspaces.theta_means import ThetaSums
from thinwire.subspaces.theta_record import theta_record
from thinwire.subspaces.trainer import Compute, StepResult, Texts, Trainer, refuse_broken


@runtime_checkable
class Launcher(Protocol):
    """Whoever started this process and may start another in its place."""

    def at_work(self) -> None:
        """This rank trains with the others now."""
        ...

    def give_up(self, pid: int) -> None:
        """The others went on without this process, which may hang."""
        ...


class NoLauncher:
    """Ranks that were started by hand or by torchrun."""

    def at_work(self) -> None: ...

    def give_up(self, pid: int) -> None: ...


@dataclass(frozen=True)
class Surroundings:
    """What a rank is given: where it writes, whom it meets, how it speaks.

    Attributes:
        run: the run folder.
        meeting: the store and this process's name.
        identity: what must be equal on all ranks, as plain values.
        task: the bar.
        say: messages for people.
        should_stop: whether somebody asked this process to stop.
        launcher: is told who works and who hangs.
    """

    run: Path
    meeting: Meeting
    identity: dict[str, Any]
    task: Task
    say: Callable[[str], None]
    should_stop: Callable[[], bool]
    launcher: Launcher


class RankRun:
    """One rank's way through a run.

    Args:
        config: the run.
        around: files, peers and people.
        texts: what to read.
        compute: device and precision.
    """

    def __init__(self, config: SubspacesConfig, *, around: Surroundings, texts: Texts, compute: Compute) -> None:
        self.config, self.around, self.texts, self.compute = config, around, texts, compute
        self.trainer: Trainer
        self._team: Team | None = None
        self.membership = Membership(around.meeting, config.launch.ranks)
        self.journal = Journal(config, run=around.run, ledger=around.meeting.ledger)
        self.is_at_work = False
        """It has a state that the run went on from, or was resumed from."""
        self._wants_stop = self._has_joiner = False
        self._is_step_done = True
        self._members: dict[int, int] = {}
        """Those the log knows to be at work, and their processes' numbers."""

    def run(self, *, is_new: bool) -> None:
        """Make every update that is left.

        Args:
            is_new: the run is under way, and this rank comes to it; else all ranks start.

        Raises:
            UserError: settings or data differ between the ranks, or a file is damaged.
            InterruptedRunError: somebody asked to stop; a checkpoint of the last update is there.
            RunFailedError: a loss was not finite, the ranks did not meet, or too few are left.
        """
        try:
            self._train_in_teams(self.membership.join if is_new else self.membership.first)
        finally:
            if self._team is not None:  # its threads and connections do not end by themselves
                self._team.close()

    def _train_in_teams(self, meet: Callable[[], Team | None]) -> None:
        lost: PeerLostError | None = None
        while True:
            try:
                self._team = meet()
                if self._team is None:
                    return
                self._begin(self._team, lost=lost)
                self._train()
                return
            except PeerLostError as error:
                # A copy: the error itself holds on to the pass that was cut short, and to the dead groups.
                lost = PeerLostError(error.rank, error.reason)
                meet = partial(self.membership.without, self.trainer.team, lost)
            except LeftBehindError:
                lost, self.is_at_work = None, False
                meet = self.membership.join
            except torch.distributed.DistError as error:
                raise RunFailedError(
                    f"the place where the ranks meet is gone ({str(error).splitlines()[0]})\n"
                    "  fix:   give the same command again; it goes on from the last checkpoint"
                ) from error

    # --- a team comes together --------------------------------------------------------------------------------

    def _begin(self, team: Team, *, lost: PeerLostError | None) -> None:
        """Stand where the team stands: at a checkpoint, or where those at work are."""
        if self.is_at_work:
            self.trainer.join_team(team)
        else:
            self.trainer = Trainer(self.config, team=team, texts=self.texts, compute=self.compute)
        self.heartbeat = Heartbeat(team.main)
        self._wants_stop = self._has_joiner = False
        standings = compare_standings(team, self._standing())
        at_work = [rank for rank, one in enumerate(standings) if one.is_at_work]
        self._refuse_differences(at_work)
        if not at_work:
            resume(self.trainer, self.journal, run=self.around.run, tell=self._tell)
            self._is_step_done = True
        else:
            root = standings[first_at_work(standings)]
            unite(self.trainer, standings, config=self.config)
            self._is_step_done = all(one.is_step_done for one in standings if one.is_at_work and one.step == root.step)
            totals = tuple(max(one.totals[tag] for one in standings) for tag in range(len(root.totals)))
            self.journal.go_on_from(seconds=root.seconds, totals=totals)
        self.is_at_work = True
        self.around.launcher.at_work()
        if at_work:
            self._tell_of_change(lost, standings)
        self._members = dict(zip(team.members, (one.pid for one in standings), strict=True))

    def _standing(self) -> Standing:
        trainer, journal = self.trainer, self.journal
        return Standing(
            self.is_at_work,
            trainer.step,
            trainer.phase,
            self._is_step_done,
            journal.seconds,
            journal.totals,
            os.getpid(),
        )

    def _refuse_differences(self, at_work: list[int]) -> None:
        main = self.trainer.team.main
        try:
            refuse_differences(main, self.around.identity, reference=at_work[0] if at_work else 0)
        except UserError:
            if main.rank in at_work:  # whoever differs leaves, and is missed
                return
            raise

    def _tell_of_change(self, lost: PeerLostError | None, standings: list[Standing]) -> None:
        team, step = self.trainer.team, self.trainer.step
        gone = sorted(set(self._members) - set(team.members))
        new = [name for name, one in zip(team.members, standings, strict=True) if not one.is_at_work]
        size = team.main.size
        if gone:
            reason = str(lost) if lost is not None else "it did not come to the meeting"
            self.journal.change(team.main, "lost rank", step=step, members=gone, reason=reason)
            self._tell(f"{reason}; going on with {counted(size)} from update {step}")
            for name in gone if team.main.rank == 0 else ():
                self.around.launcher.give_up(self._members[name])
        if new:
            self.journal.change(team.main, "joined", step=step, members=new)
            names = f"rank{'s' if len(new) > 1 else ''} {', '.join(map(str, new))}"
            self._tell(f"{names} joined at update {step}; {counted(size)} now")

    # --- the loop ---------------------------------------------------------------------------------------------

    def _train(self) -> None:
        """Make updates until the last one, or until a rank is lost."""
        if not self._is_step_done:
            self._after_step()
        while self.trainer.step < self.config.optimizer.steps:
            self._step()
        self.around.meeting.end()
        try:
            barrier(self.trainer.team.main)
        except PeerLostError:
            return  # whoever is lost now is not missed
        self.trainer.team.close()

    def _step(self) -> None:
        trainer = self.trainer
        following = phase_of(trainer.step + 1, self.config)
        if following != trainer.phase:
            what = trainer.change_phase(following)
            self.journal.event(trainer.team.main, what, step=trainer.step, phase=following)
            if trainer.step > 0:
                self._validate()
        result = trainer.train_step()
        self._is_step_done = False
        self.journal.keep(trainer.step, result)
        self._decide(self.heartbeat.collect())
        self._beat(result)
        if trainer.team.main.rank == 0:
            self.around.task.advance()
        self._after_step()

    def _after_step(self) -> None:
        """What is due after the update just made; ranks that lost one on the way do it again."""
        trainer, step, steps = self.trainer, self.trainer.step, self.config.optimizer.steps
        is_settled, is_last = is_settling_step(step, self.config), step == steps
        validates = step % self.config.validate_every == 0 or is_last
        if is_settled or validates or self._wants_stop or self._has_joiner:
            self._decide(self.heartbeat.collect())
        if validates:
            self._validate()
        if self._wants_stop or step % self.config.checkpoint_every == 0 or is_last:
            self._save(is_settled=is_settled)
        self._is_step_done = True
        if self._wants_stop and not is_last:
            trainer.team.close()
            raise InterruptedRunError(f"stopped after update {step}")
        if self._has_joiner and not is_last:
            self._admit()

    def _beat(self, result: StepResult) -> None:
        team = self.trainer.team
        missing = len(team.members) < self.config.launch.ranks
        beat = Beat(
            self.trainer.step,
            result.loss,
            wants_stop=self.around.should_stop(),
            is_broken=result.is_broken,
            has_joiner=team.main.rank == 0 and missing and bool(self.membership.waiting(team)),
            wire_bytes=self.journal.sent(),
        )
        self.heartbeat.send(beat)

    def _decide(self, beats: list[Beat] | None) -> None:
        """Everyone reads the same beats at the same step."""
        if not beats:
            return
        if any(beat.is_broken for beat in beats):
            self._stop_broken(beats)
        if words := self.journal.step(self.trainer.team.main, beats):
            self.around.task.note(words)
        self._wants_stop |= any(beat.wants_stop for beat in beats)
        self._has_joiner |= any(beat.has_joiner for beat in beats)

    def _stop_broken(self, beats: list[Beat]) -> None:
        """End; where all ranks hold the weights before the update that went wrong, keep those first."""
        step, main = beats[0].step, self.trainer.team.main
        kept = saving.last_step(self.around.run)
        if self.config.sync.every == 1 and all(beat.is_broken for beat in beats) and step > 1:
            self.trainer.step = kept = step - 1
            self._save(is_settled=True)
        self.journal.step(main, beats)
        self.journal.event(main, "not finite", step=step)
        self.trainer.team.close()
        refuse_broken([beat.loss for beat in beats], step=step, kept=kept)

    def _admit(self) -> None:
        """Let waiting ranks in, at an average of the weights."""
        trainer, team = self.trainer, self.trainer.team
        self._has_joiner = False
        new: list[int] = gather_json(team.main, list(self.membership.waiting(team)) if team.main.rank == 0 else [])[0]
        if not new:
            return
        if trainer.averaging is not None:
            trainer.averaging.settle(trainer.step)
        barrier(team.main)
        self._team = self.membership.with_new(team, new)
        self._begin(self._team, lost=None)

    def _validate(self) -> None:
        trainer = self.trainer
        self.journal.validation(trainer, trainer.validate())
        record = theta_record(trainer)
        if record:
            self.journal.write(trainer.team.main, kind="theta", step=trainer.step, **record)

    def _save(self, *, is_settled: bool) -> None:
        """All ranks' states, then the weights with their description: the commit."""
        trainer, run, main, journal = self.trainer, self.around.run, self.trainer.team.main, self.journal
        own = trainer.own_state()
        sent = journal.sent()
        with journal.uncounted():
            saving.save_rank(run, rank=main.rank, step=trainer.step, tensors=own)
            mean = trainer.theta_sums.mean(main) if trainer.phase == "compressed" else {}
            weights = trainer.replica.weights() if is_settled else trainer.mean_weights()
            everyone = gather_json(main, sent)
            if main.rank == 0:
                meta = {
                    "phase": trainer.phase,
                    "ranks": main.size,
                    "members": list(trainer.team.members),
                    "tokens": journal.tokens(trainer.step),
                    "seconds": journal.seconds,
                    "wire_bytes": journal.sum_of(everyone),
                    "log_bytes": journal.size(),
                    "vocab_size": self.texts.train.vocab_size,
                    "settled": is_settled,
                }
                tensors = {name: tensor.cpu() for name, tensor in weights.items()}
                saving.save_weights(run, step=trainer.step, weights=tensors | named_theta_means(mean), meta=meta)
            barrier(main)
        if is_settled:
            trainer.theta_sums = ThetaSums()

    def _tell(self, text: str) -> None:
        if self.trainer.team.main.rank == 0:
            self.around.say(text)


def identity_of(config: SubspacesConfig, *, data: str, version: str) -> dict[str, Any]:
    """What all ranks must agree on, as plain values."""
    record = as_record(config)
    for machine_dependent in ("threads", "device", "precision", "restart_lost"):
        record["launch"].pop(machine_dependent)
    return {"version": version, "data": data, "config": record}
