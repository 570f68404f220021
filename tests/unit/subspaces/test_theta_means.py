"""Are theta's sums the sums of what was seen, over passes, layers and ranks?"""

import torch

from gloo_ranks import RankPool
from thinwire.comm.group import Group, alone
from thinwire.subspaces.theta_means import ThetaSums


def thetas(value: float, *, layers: int = 2, batch: int = 2) -> dict[tuple[int, int], list[torch.Tensor]]:
    """Two chunks a layer and stream; keys turn by ``value``, values by ten times as much, later layers by more."""
    one = torch.tensor([[value], [10 * value]], dtype=torch.float32)
    return {
        (layer, stream): [(1 + layer) * one.expand(batch, 2, 1)] * 2 for layer in range(layers) for stream in (0, 1)
    }


def sums_of(*values: float) -> ThetaSums:
    sums = ThetaSums()
    for value in values:
        sums.add(thetas(value))
    return sums


def test_the_mean_is_over_all_chunks_seen() -> None:
    found = sums_of(0.25, 0.75).mean(alone())
    assert {name: theta.tolist() for name, theta in found.items()} == {
        (0, "key"): [0.5],
        (0, "value"): [5.0],
        (1, "key"): [1.0],
        (1, "value"): [10.0],
    }


def test_sums_that_are_taken_over_count_as_if_seen_here() -> None:
    one, other = sums_of(0.5), sums_of(0.5, 2.0)
    one.take(other)
    assert one.mean(alone())[0, "key"].tolist() == [1.0]


def test_state_is_read_back() -> None:
    one = sums_of(0.125, 0.5)
    again = ThetaSums.from_state(one.state())
    assert again.mean(alone()) == one.mean(alone())
    again.add(thetas(4.0))
    assert one.mean(alone())[0, "key"].tolist() == [0.3125]


def test_nothing_seen_has_no_mean() -> None:
    assert ThetaSums().mean(alone()) == {}


def mean_on_rank(group: Group) -> list[float]:
    """Rank r has seen r + 1 passes at r."""
    return sums_of(*[float(group.rank)] * (group.rank + 1)).mean(group)[1, "value"].tolist()


def test_ranks_that_saw_more_count_more(rank_pool: RankPool) -> None:
    assert rank_pool.run(mean_on_rank, ranks=3) == [[20.0 * (0 + 2 * 1 + 3 * 2) / 6]] * 3
