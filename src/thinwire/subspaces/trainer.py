"""What does one rank do at a step?  Forward and backward over its chunks, then one model again (Algorithm 1).

The trainer holds a rank's state and knows the step; the loop, the disk and lost ranks are others' business.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from thinwire.base.errors import RunFailedError
from thinwire.base.seeds import stream_key
from thinwire.comm.collectives import gather_json
from thinwire.data.tokens import TokenStream, draw_sequences, evaluation_sequences
from thinwire.subspaces import phases
from thinwire.subspaces.attention import ContextAttention, OneStream
from thinwire.subspaces.averaging import WeightAveraging, average_now, sum_gradients
from thinwire.subspaces.batches import Batch, local_part, step_sequences, step_targets, warmup_batch
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.exchange import Place
from thinwire.subspaces.full_attention import FullAttention
from thinwire.subspaces.handover import part
from thinwire.subspaces.llama import Attend
from thinwire.subspaces.optimizer import apply, gradient_norm, load_moments, make_optimizer, moments
from thinwire.subspaces.replica import Replica
from thinwire.subspaces.rotation import Side
from thinwire.subspaces.schedule import (
    Phase,
    is_settling_step,
    layout_shift,
    learning_rate,
)
from thinwire.subspaces.sequence import Layout, make_layout
from thinwire.subspaces.team import Team
from thinwire.subspaces.theta import ThetaAddress
from thinwire.subspaces.theta_means import ThetaSums
from thinwire.subspaces.turns import add_gradients, gradients_of, run_in_turns

THETA_SEQUENCES = 8
"""Training sequences over which theta's mean is taken when the model is unplugged."""


@dataclass(frozen=True)
class Compute:
    """Where and in which precision a rank computes."""

    device: torch.device
    is_mixed: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def attention_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.is_mixed else self.dtype

    def cast(self) -> contextlib.AbstractContextManager[Any]:
        """Matrix products in bfloat16, where precision is mixed."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.is_mixed else contextlib.nullcontext()


@dataclass(frozen=True)
class Texts:
    """The splits that training reads."""

    train: TokenStream
    valid: TokenStream


@dataclass(frozen=True)
class StepResult:
    """One update as this rank saw it; the loss is summed over its own targets, in nats."""

    loss: float
    gradient_norm: float
    seconds: float
    is_broken: bool


class Validated(NamedTuple):
    """Nats per token on held-out text, and over how many sequences."""

    loss: float
    num_sequences: int


class Trainer:
    """One rank's model, optimizer and averaging.

    Args:
        config: the run.
        team: the groups of ranks that train together now.
        texts: what to read.
        compute: device and precision.
    """

    def __init__(self, config: SubspacesConfig, *, team: Team, texts: Texts, compute: Compute) -> None:
        self.config, self.team, self.texts, self.compute = config, team, texts, compute
        self.replica = Replica(config, vocab_size=texts.train.vocab_size)
        self.replica.to(device=compute.device, dtype=compute.dtype)
        self.phase: Phase = "warm-up"
        self.step = 0
        self.theta_sums = ThetaSums()
        """Of the updates since the last checkpoint at which the ranks held one model."""
        self.last_attend: ContextAttention | None = None
        self.averaging: WeightAveraging | None = None
        self.is_halted = False
        """A number was not finite: no update is made any more."""
        self.optimizer = make_optimizer(self.named(), config.optimizer)
        self.enter("warm-up")

    # --- phases -----------------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """Make codecs, optimizer and averaging for a phase; moments of weights that stay are kept."""
        kept = moments(self.optimizer, self.named())
        self.phase, self.codecs = phase, self.replica.codecs(phase)
        self.optimizer = make_optimizer(self.named(), self.config.optimizer)
        load_moments(self.optimizer, self.named(), kept)
        self.join_team(self.team)

    def join_team(self, team: Team) -> None:
        """Train with these ranks from now on."""
        if self.averaging is not None:
            self.averaging.close()
        self.team, self.averaging = team, None
        if self.config.sync.every > 1 and team.sync.size > 1:
            self.averaging = WeightAveraging(self.parameters(), team.sync, config=self.config.sync)
            self.averaging.settled_at = self.step

    def change_phase(self, phase: Phase) -> str:
        """Plug in or unplug; the replicas are one model. Returns what happened."""
        before = self.phase
        if phase == "compressed":
            if self.config.codec.kind == "subspace":
                phases.plug_in(self.replica, self.team.main, read_text=self._basis_text)
            what = "plug in"
        elif phase == "folded":
            phases.fold(self.replica, self.measure_theta())
            what = "unplug"
        else:
            phases.drop(self.replica)
            what = "unplug" if before == "compressed" else "context parallel"
        self.enter(phase)
        return what

    def _basis_text(self) -> Tensor:
        key = stream_key(self.config.seed, "basis-text")
        drawn = draw_sequences(
            self.texts.train, key=key, step=0, count=THETA_SEQUENCES, tokens=self.config.phases.warmup_tokens
        )
        return torch.from_numpy(drawn[:, :-1].copy()).to(self.compute.device)

    def measure_theta(self) -> dict[tuple[int, Side], Tensor]:
        """theta's mean over chunks of training text, equal on all ranks; empty where theta is not learned."""
        if self.replica.heads is None:
            return {}
        key = stream_key(self.config.seed, "theta-mean")
        tokens = self.config.sequence.tokens
        layout = self._layout(self.step + 1)
        sums = ThetaSums()
        for index in range(THETA_SEQUENCES):
            drawn = draw_sequences(self.texts.train, key=key, step=index, count=1, tokens=tokens)
            attend = self._attend(layout, batch=1, streams=1, first_sequence=0)
            tokens_here = local_part(drawn, layout, rank=self.team.main.rank).tokens.to(self.compute.device)
            with torch.no_grad(), self.compute.cast():
                self.replica.llama.hidden([tokens_here], attend)
            sums.add(attend.thetas)
        like = self.replica.llama.model.norm.weight
        return {name: theta.to(like) for name, theta in sums.mean(self.team.main).items()}

    # --- one update -------------------------------------------------------------------------------------------

    def train_step(self) -> StepResult:
        """Update ``step + 1``; where a number is not finite the weights stay as they are."""
        began, step = time.perf_counter(), self.step + 1
        self.team.set_step(step)
        self.optimizer.zero_grad(set_to_none=True)
        seen = ThetaSums()
        loss = self._backward(step, seen)
        parameters = self.parameters()
        if self.config.sync.every == 1 and self.team.main.size > 1:
            sum_gradients(parameters, self.team.main, config=self.config.sync)
        norm = gradient_norm(parameters)
        broken = not (math.isfinite(loss) and math.isfinite(norm))
        self.is_halted |= broken
        if not self.is_halted:
            rate = learning_rate(step, self.config.optimizer)
            apply(self.optimizer, parameters, norm=norm, learning_rate=rate, clip=self.config.optimizer.clip_norm)
            self.theta_sums.take(seen)
        self.step = step
        if self.averaging is not None:
            if is_settling_step(step, self.config):
                self.averaging.settle(step)
            else:
                self.averaging.after_step(step)
        return StepResult(loss, norm, time.perf_counter() - began, broken)

    def _backward(self, step: int, seen: ThetaSums) -> float:
        """Gradients of this rank's share of the loss; returns its summed loss, and counts the thetas in ``seen``.

        Where every rank updates alone, its gradient stands for all of them and is scaled up to their number.
        """
        scale = 1.0 / step_targets(self.config, is_warmup=self.phase == "warm-up")
        if self.config.sync.every > 1:
            scale *= self.team.main.size
        losses = []
        for streams, attend in self._passes(step):
            if isinstance(attend, ContextAttention) and len(streams) > 1 and self.compute.device.type == "cpu":
                losses += self._backward_in_turns(streams, attend, scale=scale)
            else:  # on a GPU one thread makes all backward passes, so the streams go through the layers together
                with self.compute.cast():
                    parts = self.replica.llama.loss([b.tokens for b in streams], [b.targets for b in streams], attend)
                torch.stack(parts).sum().mul(scale).backward()
                losses += [float(part.detach()) for part in parts]
            if isinstance(attend, ContextAttention):
                if self.replica.heads is not None:  # a random theta has no mean to fold
                    seen.add(attend.thetas)
                self.last_attend = attend
        return math.fsum(losses)

    def _backward_in_turns(self, streams: list[Batch], attend: ContextAttention, *, scale: float) -> list[float]:
        parameters = self.parameters()

        def work(stream: int) -> tuple[float, tuple[Tensor | None, ...]]:
            batch = streams[stream]
            with self.compute.cast():
                (part,) = self.replica.llama.loss([batch.tokens], [batch.targets], OneStream(attend, stream))
            attend.place.turns.between()
            return float(part.detach()), gradients_of(part * scale, parameters)

        found = run_in_turns(work, turns=attend.place.turns, count=len(streams))
        add_gradients(parameters, [gradients for _, gradients in found])
        return [loss for loss, _ in found]

    def _passes(self, step: int) -> Iterator[tuple[list[Batch], Attend]]:
        """The forward passes of an update, one after the other: the streams of each, and how they attend."""
        main = self.team.main
        if self.phase == "warm-up":
            batch = warmup_batch(self.texts.train, self.config, step=step, rank=main.rank, num_ranks=main.size)
            if batch is not None:
                yield [self._on_device(batch)], FullAttention(self.config.model)
            return
        size, layout = self.config.sequence, self._layout(step)
        sequences = step_sequences(self.texts.train, self.config, step=step)
        local = self._on_device(local_part(sequences, layout, rank=main.rank))
        for first in range(0, len(sequences), size.batch * size.streams):
            starts = range(first, first + size.batch * size.streams, size.batch)
            streams = [Batch(local.tokens[s : s + size.batch], local.targets[s : s + size.batch]) for s in starts]
            yield streams, self._attend(layout, batch=size.batch, streams=size.streams, first_sequence=first)

    def _on_device(self, batch: Batch) -> Batch:
        return Batch(batch.tokens.to(self.compute.device), batch.targets.to(self.compute.device))

    def _layout(self, step: int) -> Layout:
        size, main = self.config.sequence, self.team.main
        return make_layout(
            num_tokens=size.tokens,
            num_chunks=size.chunks,
            num_ranks=main.size,
            order=size.order,
            shift=layout_shift(step, self.config),
        )

    def _attend(self, layout: Layout, *, batch: int, streams: int, first_sequence: int) -> ContextAttention:
        place = Place(self.team.main, layout, batch, streams, self.compute.attention_dtype, self.compute.device)
        return ContextAttention(
            place,
            model=self.config.model,
            codecs=self.codecs,
            codec=self.replica.codec_config(self.phase),
            heads=self.replica.heads,
            address=ThetaAddress(self.config.seed, self.step + 1, first_sequence),
        )

    # --- scores and state -------------------------------------------------------------------------------------

    def validate(self) -> Validated:
        """Loss in nats per token on held-out sequences, as trained, with the codec; equal on all ranks.

        In the warm-up every rank scores whole sequences of its own, so that no keys travel.
        """
        key = stream_key(self.config.seed, "validation")
        tokens, main = self.config.sequence.tokens, self.team.main
        found = evaluation_sequences(
            self.texts.valid, tokens=tokens, max_sequences=self.config.validation_sequences, key=key
        ).sequences
        total = 0.0
        layout = self._layout(self.step + 1)
        mine = found[main.rank :: main.size] if self.phase == "warm-up" else found
        for index, row in enumerate(mine):
            if self.phase == "warm-up":
                batch = Batch(torch.from_numpy(row[None, :-1].copy()), torch.from_numpy(row[None, 1:].copy()))
                attend: Attend = FullAttention(self.config.model)
            else:
                batch = local_part(row[None], layout, rank=main.rank)
                attend = self._attend(layout, batch=1, streams=1, first_sequence=index)
            batch = self._on_device(batch)
            with torch.no_grad(), self.compute.cast():
                (part,) = self.replica.llama.loss([batch.tokens], [batch.targets], attend)
            total += float(part)
        return Validated(math.fsum(gather_json(main, total)) / (len(found) * tokens), len(found))

    def named(self) -> dict[str, nn.Parameter]:
        return dict(self.replica.named_parameters())

    def parameters(self) -> list[nn.Parameter]:
        return list(self.replica.parameters())

    def own_state(self) -> dict[str, Tensor]:
        """What this rank alone knows: moments, averaging, and its weights where the replicas differ."""
        found = {f"optimizer.{name}": value for name, value in moments(self.optimizer, self.named()).items()}
        if self.averaging is not None:
            found |= {f"averaging.{name}": value for name, value in self.averaging.state().items()}
            if not is_settling_step(self.step, self.config):
                found |= {f"own.{name}": value for name, value in self.replica.weights().items()}
        if not is_settling_step(self.step, self.config):
            found |= {f"theta.{name}": value for name, value in self.theta_sums.state().items()}
        return {name: tensor.cpu() for name, tensor in found.items()}

    def load_state(self, *, step: int, phase: Phase, weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
        """Stand where ``own_state`` and ``Replica.weights`` were taken."""
        self.step = step
        mine = part(own, "own.")
        self.replica.load_weights(mine or weights)
        self.enter(phase)
        load_moments(self.optimizer, self.named(), part(own, "optimizer."))
        if self.averaging is not None and "averaging.settled_at" in own:
            self.averaging.load_state(part(own, "averaging."))
        self.theta_sums = ThetaSums.from_state(part(own, "theta."))

    def state_for_others(self) -> dict[str, Tensor]:
        """What a rank that joins needs: the weights, and moments like this rank's."""
        kept = {f"own_state.optimizer.{name}": t for name, t in moments(self.optimizer, self.named()).items()}
        return kept | {f"weights.{name}": tensor for name, tensor in self.replica.weights().items()}

    def settle_at(self, step: int) -> None:
        """All ranks hold one model now, at this step."""
        self.step = step
        self.join_team(self.team)  # an outer step starts from these weights, equal on all ranks

    def mean_weights(self) -> dict[str, Tensor]:
        """Of the replicas, where they differ; all ranks call this."""
        found = self.replica.weights()
        if self.averaging is None:
            return found
        means = {name: parameter.detach().clone() for name, parameter in self.named().items()}
        average_now(list(means.values()), self.team.main, config=self.config.sync)
        return found | means


def refuse_broken(losses: Sequence[float], *, step: int, kept: int) -> None:
    """Raises RunFailedError naming the step whose loss or gradient was not finite, and the checkpoint that is there.

    Args:
        losses: of the ranks.
        kept: the checkpoint's step; 0 where there is none.
    """
    of_loss = not all(map(math.isfinite, losses))
    what = "loss" if of_loss else "gradient"
    numbers = f" ({', '.join(f'{loss:g}' for loss in losses)} on the ranks)" if of_loss else ""
    left = f"the weights after update {kept} are kept" if kept else "no checkpoint had been written"
    raise RunFailedError(
        f"the {what} of update {step} is not finite{numbers}; {left}\n"
        "  fix:   lower the learning rate (--optimizer.learning-rate) or clip harder (--optimizer.clip-norm), in a new "
        "run folder"
    )
