"""How does one rank get from the first update to the last?  Steps, records, checkpoints, lost and new ranks.

All ranks take every decision at the same step from the same numbers: the heartbeats of the step before. Rank 0 writes
the log and the weights; when it is lost the next one does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from thinwire.base.errors import InterruptedRunError, RunFailedError
from thinwire.base.files import append_json_line, atomic_write
from thinwire.base.progress import Task
from thinwire.comm.collectives import barrier, gather_json
from thinwire.comm.group import PeerLostError
from thinwire.runs.layout import RunFolder
from thinwire.subspaces import saving
from thinwire.subspaces.averaging import average_now
from thinwire.subspaces.batches import step_targets
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.handover import hand_over, refuse_differences
from thinwire.subspaces.heartbeat import COUNTED_TAGS, Beat, Heartbeat
from thinwire.subspaces.schedule import is_settling_step, learning_rate, phase_of
from thinwire.subspaces.stock import named_theta_means
from thinwire.subspaces.team import Meeting, Team, ask_to_join, await_invitation, invite, joiners
from thinwire.subspaces.theta_record import theta_record
from thinwire.subspaces.trainer import Compute, StepResult, Texts, Trainer, refuse_broken

JOIN_TIMEOUTS = 60
"""How many time-outs a rank that came back waits to be let in."""


@dataclass(frozen=True)
class Surroundings:
    """What a rank is given: where it writes, whom it meets, how it speaks.

    Attributes:
        run: the run folder.
        meeting: the store and this process's name.
        identity: what must be equal on all ranks, as plain values.
        task: the bar of rank 0.
        say: messages for people.
        should_stop: whether somebody asked this process to stop.
    """

    run: Path
    meeting: Meeting
    identity: dict[str, Any]
    task: Task
    say: Callable[[str], None]
    should_stop: Callable[[], bool]


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
        self._wants_stop = False
        self._results: dict[int, StepResult] = {}
        self._seconds_before = 0.0
        self._began = time.perf_counter()
        self._noted = 0

    # --- beginnings -------------------------------------------------------------------------------------------

    def start(self, members: tuple[int, ...]) -> None:
        """Meet the others for the first time and go on from the newest checkpoint."""
        team = self.around.meeting.connect(members, generation=0)
        refuse_differences(team.main, self.around.identity)
        self._adopt(Trainer(self.config, team=team, texts=self.texts, compute=self.compute))
        self._resume()

    def join(self) -> None:
        """Come to a run that is under way: wait until the ranks at work let this one in."""
        meeting = self.around.meeting
        ask_to_join(meeting.store, member=meeting.member)
        seconds = JOIN_TIMEOUTS * meeting.timeout_seconds
        generation, expected = await_invitation(meeting.store, member=meeting.member, seconds=seconds)
        members, _ = meeting.agree(expected, generation=generation, step=0)
        team = meeting.connect(members, generation=generation)
        self._adopt(Trainer(self.config, team=team, texts=self.texts, compute=self.compute))
        self._take_in(is_new=True)

    def _adopt(self, trainer: Trainer) -> None:
        self.trainer, self.heartbeat = trainer, Heartbeat(trainer.team.main)

    def _resume(self) -> None:
        """Every rank stands where the newest checkpoint was made; rank 0's disk decides which that is."""
        main, run = self.trainer.team.main, self.around.run
        steps = gather_json(main, saving.last_step(run) if main.rank == 0 else 0)
        step = steps[0]
        if main.rank == 0:
            saving.sweep(run)
            kept = saving.forget_after(RunFolder(run).log, step=step)
            atomic_write(RunFolder(run).log, saving.as_lines(kept))
        if step == 0:
            barrier(main)
            return
        there = saving.load_weights(run, step=step) if main.rank == 0 else None
        weights, meta = hand_over(main, None if there is None else (there.tensors, there.meta), root=0)
        own = saving.load_rank(run, rank=main.rank, step=step, ranks_then=int(meta["ranks"]))
        lacking = [rank for rank, has in enumerate(gather_json(main, own is not None)) if not has]
        if lacking:
            first, _ = hand_over(
                main, None if own is None else (own, {}), root=min(set(range(main.size)) - set(lacking))
            )
            own = own if own is not None else first
        assert own is not None
        if int(meta["ranks"]) != main.size:
            own = {name: tensor for name, tensor in own.items() if not name.startswith(("own.", "averaging."))}
            self._tell(f"the checkpoint was made by {meta['ranks']} ranks; its chunks now lie on {main.size}")
        self.trainer.load_state(step=step, phase=meta["phase"], weights=weights, own=own)
        self._seconds_before = float(meta["seconds"])
        self._event("resumed", step=step, ranks=main.size)

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make every update that is left.

        Raises:
            InterruptedRunError: somebody asked to stop; a checkpoint of the last update is there.
            RunFailedError: a loss was not finite, or too few ranks are left.
        """
        while True:
            try:
                if self.trainer.step >= self.config.optimizer.steps:
                    break
                self._step()
            except PeerLostError as lost:
                self._go_on_without(lost)
        self._flush()
        barrier(self.trainer.team.main)
        self.trainer.team.close()

    def _step(self) -> None:
        trainer = self.trainer
        following = phase_of(trainer.step + 1, self.config)
        if following != trainer.phase:
            self._change_phase(following)
        result = trainer.train_step()
        step = trainer.step
        self._results[step] = result
        self._decide(self.heartbeat.collect())
        self._beat(result)
        self.around.task.advance()
        if is_settling_step(step, self.config) or self._wants_stop:
            self._flush()
        if step % self.config.validate_every == 0 or step == self.config.optimizer.steps:
            self._validate()
        if self._wants_stop:
            self._save(is_settled=is_settling_step(step, self.config))
            trainer.team.close()
            raise InterruptedRunError(f"stopped after update {step}")
        if step % self.config.checkpoint_every == 0 or step == self.config.optimizer.steps:
            self._save(is_settled=True)

    def _change_phase(self, following: str) -> None:
        what = self.trainer.change_phase(following)  # type: ignore[arg-type]
        self._event(what, step=self.trainer.step, phase=following)
        if self.trainer.step > 0:
            self._validate()

    def _beat(self, result: StepResult) -> None:
        team, ledger = self.trainer.team, self.around.meeting.ledger
        missing = len(team.members) < self.config.launch.ranks
        knocks = team.main.rank == 0 and missing and bool(self._waiting())
        counts = tuple(ledger.total(tag=tag) for tag in COUNTED_TAGS)
        beat = Beat(
            self.trainer.step,
            result.loss,
            wants_stop=self.around.should_stop(),
            is_broken=result.is_broken,
            has_joiner=knocks,
            wire_bytes=counts,
        )
        self.heartbeat.send(beat)

    def _flush(self) -> None:
        """Read the beats of the step just made instead of waiting for the next."""
        self._decide(self.heartbeat.collect())

    def _decide(self, beats: list[Beat] | None) -> None:
        if not beats:
            return
        step = beats[0].step
        self._record(step, beats)
        if any(beat.is_broken for beat in beats):
            self._stop_broken(step, beats)
        if any(beat.wants_stop for beat in beats):
            self._wants_stop = True
        elif any(beat.has_joiner for beat in beats):
            self._admit()

    def _stop_broken(self, step: int, beats: list[Beat]) -> None:
        """Keep the weights before the update that went wrong, where all ranks hold the same, and end."""
        if self.config.sync.every == 1 and self.trainer.is_halted:
            self.trainer.step = step - 1
            if step > 1:
                self._save(is_settled=True)
        self._event("not finite", step=step - 1)
        refuse_broken([beat.loss for beat in beats], step=step)

    # --- what is written --------------------------------------------------------------------------------------

    def _record(self, step: int, beats: list[Beat]) -> None:
        result = self._results.pop(step, None)
        if result is None or (step % self.config.log_every and step != self.config.optimizer.steps):
            return
        phase = phase_of(step, self.config)
        targets = step_targets(self.config, is_warmup=phase == "warm-up")
        loss = sum(beat.loss for beat in beats) / targets
        self.around.task.note(f"{phase}, loss {loss:.3f}")
        finite = not any(beat.is_broken for beat in beats)
        totals = [sum(counts) for counts in zip(*(beat.wire_bytes for beat in beats), strict=True)]
        self._write(
            kind="step",
            step=step,
            phase=phase,
            loss_nats_per_token=loss if finite else None,
            learning_rate=learning_rate(step, self.config.optimizer),
            gradient_norm=result.gradient_norm if finite else None,
            seconds=result.seconds,
            tokens=self._tokens(step),
            ranks=len(beats),
            wire_bytes=dict(zip(COUNTED_TAGS, totals, strict=True)),
        )

    def _validate(self) -> None:
        trainer = self.trainer
        found = trainer.validate()
        self._write(
            kind="validation",
            step=trainer.step,
            phase=trainer.phase,
            loss_nats_per_token=found.loss,
            sequences=found.num_sequences,
            seconds=self._seconds(),
            tokens=self._tokens(trainer.step),
        )
        record = theta_record(trainer)
        if record:
            self._write(kind="theta", step=trainer.step, **record)

    def _save(self, *, is_settled: bool) -> None:
        """All ranks' states, then the weights with their description: the commit."""
        trainer, run, main = self.trainer, self.around.run, self.trainer.team.main
        saving.save_rank(run, rank=main.rank, step=trainer.step, tensors=trainer.own_state())
        mean = trainer.mean_theta(keep=not is_settled) if trainer.phase == "compressed" else {}
        barrier(main)
        if main.rank == 0:
            weights = {name: tensor.cpu() for name, tensor in trainer.replica.weights().items()}
            meta = {
                "phase": trainer.phase,
                "ranks": main.size,
                "members": list(trainer.team.members),
                "tokens": self._tokens(trainer.step),
                "seconds": self._seconds(),
                "vocab_size": self.texts.train.vocab_size,
                "settled": is_settled,
            }
            saving.save_weights(run, step=trainer.step, weights=weights | named_theta_means(mean), meta=meta)
        barrier(main)

    def _tokens(self, step: int) -> int:
        warm = min(step, self.config.phases.warmup_steps)
        return warm * step_targets(self.config, is_warmup=True) + (step - warm) * step_targets(
            self.config, is_warmup=False
        )

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._began

    def _write(self, **record: Any) -> None:
        if self.trainer.team.main.rank == 0:
            append_json_line(RunFolder(self.around.run).log, record)

    def _event(self, what: str, *, step: int, **details: Any) -> None:
        self._write(kind="event", step=step, what=what, **details)

    def _tell(self, text: str) -> None:
        if self.trainer.team.main.rank == 0:
            self.around.say(text)

    # --- lost and new ranks -----------------------------------------------------------------------------------

    def _go_on_without(self, lost: PeerLostError) -> None:
        """Meet the survivors again, average, and share out the chunks anew."""
        old, meeting = self.trainer.team, self.around.meeting
        old.close()
        if lost.rank == old.main.rank:
            raise RunFailedError(str(lost))
        name = old.members[lost.rank]
        expected = [member for member in old.members if member != name]
        generation = old.generation + 1
        members, _ = meeting.agree(expected, generation=generation, step=self.trainer.step)
        self._move(meeting.connect(members, generation=generation))
        self._take_in(is_new=False)
        gone = sorted(set(old.members) - set(members))
        step = self.trainer.step
        self._event("lost rank", step=step, members=gone, reason=lost.reason, ranks=len(members))
        self._tell(f"{lost.reason}; going on with {len(members)} ranks from update {step}")

    def _waiting(self) -> tuple[int, ...]:
        candidates = sorted(set(range(self.config.launch.ranks)) - set(self.trainer.team.members))
        return joiners(self.around.meeting.store, candidates=candidates)

    def _admit(self) -> None:
        """Let waiting ranks in, at an average of the weights."""
        old, meeting = self.trainer.team, self.around.meeting
        new: list[int] = gather_json(old.main, list(self._waiting()) if old.main.rank == 0 else [])[0]
        if not new:
            return
        if self.trainer.averaging is not None:
            self.trainer.averaging.settle(self.trainer.step)
        barrier(old.main)
        generation, expected = old.generation + 1, sorted({*old.members, *new})
        if old.main.rank == 0:
            for member in new:
                invite(meeting.store, member=member, generation=generation, expected=expected)
        old.close()
        members, _ = meeting.agree(expected, generation=generation, step=self.trainer.step)
        self._move(meeting.connect(members, generation=generation))
        self._take_in(is_new=False)
        self._event("joined", step=self.trainer.step, members=new, ranks=len(members))
        self._tell(f"rank {', '.join(map(str, new))} joined at update {self.trainer.step}; {len(members)} ranks now")

    def _move(self, team: Team) -> None:
        self.trainer.join_team(team)
        self.heartbeat = Heartbeat(team.main)

    def _take_in(self, *, is_new: bool) -> None:
        """One model on all ranks of a new team: the mean of those that trained; a new rank gets a copy."""
        trainer, main = self.trainer, self.trainer.team.main
        everyone = gather_json(main, {"new": is_new, "step": trainer.step, "phase": trainer.phase})
        at_work = [rank for rank, one in enumerate(everyone) if not one["new"]]
        if not at_work:
            raise RunFailedError("no rank that trained is left")
        step = max(everyone[rank]["step"] for rank in at_work)
        phase = phase_of(step, self.config) if step else "warm-up"
        ready = [rank for rank in at_work if everyone[rank]["phase"] == phase] or at_work
        if not any(one["new"] for one in everyone) and len(ready) == len(everyone):
            average_now(trainer.parameters(), main, config=self.config.sync)
            trainer.settle_at(step)
            return
        root = ready[0]
        mine = (trainer.state_for_others(), {"phase": everyone[root]["phase"]}) if main.rank == root else None
        tensors, meta = hand_over(main, mine, root=root)
        if main.rank not in ready:
            trainer.load_state(
                step=step,
                phase=meta["phase"],
                weights=_part(tensors, "weights."),
                own=_part(tensors, "own_state."),
            )
        trainer.settle_at(step)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def identity_of(config: SubspacesConfig, *, data: str, version: str) -> dict[str, Any]:
    """What all ranks must agree on, as plain values."""
    from thinwire.config.fingerprint import as_record

    record = as_record(replace(config))
    for machine_dependent in ("threads", "device", "precision", "restart_lost"):
        record["launch"].pop(machine_dependent)
    return {"version": version, "data": data, "config": record}
