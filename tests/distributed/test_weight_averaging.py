"""When does each fragment of the weights leave and arrive, and what does it bring?  Followed step by step by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gloo_ranks import RankPool
from thinwire.comm.group import Group, alone
from thinwire.subspaces.averaging import WeightAveraging, average_now, sum_gradients
from thinwire.subspaces.config import SyncConfig

EVERY, FRAGMENTS, DELAY, STEPS = 6, 3, 2, 20


def start(rank: int) -> list[nn.Parameter]:
    """Three weights, a fragment each."""
    return [nn.Parameter(torch.tensor([1.0 * rank, number], dtype=torch.float64)) for number in range(FRAGMENTS)]


def learn(weights: list[nn.Parameter], *, rank: int, step: int) -> None:
    """A local update that differs from rank to rank."""
    with torch.no_grad():
        for number, weight in enumerate(weights):
            weight += 0.1 * (rank + 1) * torch.tensor([step, step - number], dtype=torch.float64)


def averaged_run(
    group: Group, settings: dict[str, Any], *, restart_at: int = 0, settle_at: int = STEPS
) -> list[Tensor]:
    """The weights after each step, [fragments, 2]."""
    config = SyncConfig(every=EVERY, fragments=FRAGMENTS, wire="float64", **settings)
    weights = start(group.rank)
    averaging = WeightAveraging(weights, group, config=config)
    found = []
    for step in range(1, STEPS + 1):
        learn(weights, rank=group.rank, step=step)
        if step == settle_at:
            averaging.settle(step)
        else:
            averaging.after_step(step)
        found.append(torch.stack([weight.detach().clone() for weight in weights]))
        if step == restart_at:
            state = {name: tensor.clone() for name, tensor in averaging.state().items()}
            averaging.close()
            averaging = WeightAveraging(weights, group, config=config)
            averaging.load_state(state)
    averaging.close()
    return found


def expected(ranks: int) -> list[list[Tensor]]:
    """The same by hand: fragment f leaves at steps 6, 12, 18 + 2 f and is used two steps later. [step][rank]."""
    weights = [start(rank) for rank in range(ranks)]
    left: dict[tuple[int, int], list[Tensor]] = {}
    found = []
    for step in range(1, STEPS + 1):
        for rank in range(ranks):
            learn(weights[rank], rank=rank, step=step)
        for (fragment, use_at), values in list(left.items()):
            if use_at == step or step == STEPS:
                mean = torch.stack(values).mean(0)
                for rank in range(ranks):
                    weights[rank][fragment].data += mean - values[rank]
                del left[fragment, use_at]
        fragment, rest = divmod(step % EVERY, DELAY)
        if step >= EVERY and rest == 0:
            left[fragment, step + DELAY] = [weights[rank][fragment].data.clone() for rank in range(ranks)]
        if step == STEPS:
            for number in range(FRAGMENTS):
                mean = torch.stack([weights[rank][number].data for rank in range(ranks)]).mean(0)
                for rank in range(ranks):
                    weights[rank][number].data = mean.clone()
        found.append([torch.stack([weight.detach().clone() for weight in weights[rank]]) for rank in range(ranks)])
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_fragments_travel_behind_the_training(ranks: int, pool: RankPool) -> None:
    by_hand = expected(ranks)
    found = pool.run(averaged_run, {"delay": DELAY}, ranks=ranks)
    for step in range(STEPS):
        for rank in range(ranks):
            torch.testing.assert_close(found[rank][step], by_hand[step][rank], rtol=0, atol=1e-12)
    assert all(torch.equal(each[-1], found[0][-1]) for each in found)
    assert not torch.equal(found[0][-2], found[1][-2])


def test_an_outer_step_of_rate_one_without_momentum_is_plain_averaging(pool: RankPool) -> None:
    plain = pool.run(averaged_run, {"delay": DELAY}, ranks=2)
    neutral = {"delay": DELAY, "outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0}
    outer = pool.run(averaged_run, neutral, ranks=2)
    for one, other in zip(plain, outer, strict=True):
        torch.testing.assert_close(torch.stack(one), torch.stack(other), rtol=0, atol=1e-12)


def test_an_outer_step_by_hand(pool: RankPool) -> None:
    """Settled once, from anchors a and an average b: m = a - b, then a - rate (m + momentum m)."""
    settings = {"delay": 0, "outer": "nesterov", "outer_learning_rate": 0.5, "outer_momentum": 0.8}
    found = pool.run(averaged_run, settings, ranks=2, settle_at=1)
    weights = [start(rank) for rank in range(2)]
    for rank in range(2):
        learn(weights[rank], rank=rank, step=1)
    for number in range(FRAGMENTS):
        mean = (weights[0][number] + weights[1][number]) / 2
        for rank in range(2):
            anchor = start(rank)[number]
            stepped = (anchor - 0.5 * (anchor - mean) * 1.8).detach()
            torch.testing.assert_close(found[rank][0][number], stepped, rtol=0, atol=1e-12)


@pytest.mark.parametrize("restart_at", [3, 7, 8, 9, 11, 13])
def test_a_restart_with_fragments_in_flight_changes_nothing(restart_at: int, pool: RankPool) -> None:
    settings = {"delay": DELAY, "outer": "nesterov"}
    through = pool.run(averaged_run, settings, ranks=2)
    again = pool.run(averaged_run, settings, ranks=2, restart_at=restart_at)
    for one, other in zip(through, again, strict=True):
        assert torch.equal(torch.stack(one), torch.stack(other))


def summed(group: Group) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients after the sum, weights after the average; the last weight has no gradient on rank 1."""
    weights = start(group.rank)
    for number, weight in enumerate(weights):
        if number < 2 or group.rank != 1:
            weight.grad = torch.tensor([group.rank + 1.0, number], dtype=torch.float64)
    sum_gradients(weights, group, config=SyncConfig(wire="float64"))
    gradients = [weight.grad for weight in weights]
    average_now(weights, group, config=SyncConfig(wire="float64"))
    return [g for g in gradients if g is not None], [weight.detach() for weight in weights]


def test_sums_of_gradients_and_averages_of_weights(pool: RankPool) -> None:
    for gradients, weights in pool.run(summed, ranks=3):
        assert [g.tolist() for g in gradients] == [[6.0, 0.0], [6.0, 3.0], [4.0, 4.0]]
        assert [w.tolist() for w in weights] == [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]


def test_one_rank_averages_with_nobody() -> None:
    plain = [torch.stack([w.detach() for w in start(0)])]
    weights = start(0)
    for step in range(1, STEPS + 1):
        learn(weights, rank=0, step=step)
        plain.append(torch.stack([w.detach().clone() for w in weights]))
    for found, local in zip(averaged_run(alone(), {"delay": DELAY}), plain[1:], strict=True):
        torch.testing.assert_close(found, local, rtol=0, atol=1e-12)
