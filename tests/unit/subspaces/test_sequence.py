"""Does every token lie on one rank, and does every rank get just the chunks it reads?  By brute force."""

import itertools

import pytest

from thinwire.subspaces.sequence import Layout, make_layout

LAYOUTS = [
    (num_tokens, num_chunks, num_ranks, order, shift)
    for num_tokens, num_chunks in ((1, 1), (13, 13), (29, 8), (64, 8), (31, 7))
    for num_ranks in (1, 2, 3, 4)
    for order in ("zigzag", "contiguous")
    for shift in (0, 5)
    if num_ranks <= num_chunks
]


def made(case: tuple) -> Layout:
    num_tokens, num_chunks, num_ranks, order, shift = case
    return make_layout(num_tokens=num_tokens, num_chunks=num_chunks, num_ranks=num_ranks, order=order, shift=shift)


def owner_of(layout: Layout, token: int) -> int:
    return next(layout.owners[c] for c in range(layout.num_chunks) if layout.bounds[c] <= token < layout.bounds[c + 1])


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_every_token_lies_on_one_rank(case: tuple) -> None:
    layout, ranks = made(case), case[2]
    held = [s.position + row for rank in range(ranks) for s in layout.slices(rank) for row in range(s.tokens)]
    assert sorted(held) == list(range(layout.num_tokens))
    assert set(layout.owners) == set(range(ranks))
    lengths = [layout.length(chunk) for chunk in range(layout.num_chunks)]
    assert max(lengths) - min(lengths) <= 1
    for rank in range(ranks):
        rows = [s.first + row for s in layout.slices(rank) for row in range(s.tokens)]
        assert rows == list(range(layout.local_tokens(rank)))


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_a_chunk_goes_where_a_query_attends_to_it(case: tuple) -> None:
    """From token pairs: key k is read by the owner of every later query."""
    layout, ranks = made(case), case[2]
    for chunk in range(layout.num_chunks):
        key = layout.bounds[chunk]
        queries = range(layout.bounds[chunk + 1], layout.num_tokens)
        reading = {owner_of(layout, q) for q in queries} - {owner_of(layout, key)}
        assert layout.readers(chunk) == tuple(sorted(reading))
    for owner, reader in itertools.permutations(range(ranks), 2):
        wanted = [c for c in range(layout.num_chunks) if layout.owners[c] == owner and reader in layout.readers(c)]
        assert layout.sent(owner=owner, reader=reader) == tuple(wanted)


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_work_is_counted_in_pairs(case: tuple) -> None:
    layout, ranks = made(case), case[2]
    pairs = [0] * ranks
    for query in range(layout.num_tokens):
        pairs[owner_of(layout, query)] += query + 1
    assert [layout.attended_tokens(rank) for rank in range(ranks)] == pairs


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_zigzag_shares_causal_work_equally(num_ranks: int) -> None:
    """Two chunks a rank, the first with the last: no rank has more than a fiftieth above the mean; contiguous is
    1.9 times slower at eight ranks."""
    work = {}
    for order in ("zigzag", "contiguous"):
        layout = make_layout(num_tokens=1600, num_chunks=2 * num_ranks, num_ranks=num_ranks, order=order)
        shares = [layout.attended_tokens(rank) for rank in range(num_ranks)]
        work[order] = max(shares) / (sum(shares) / num_ranks)
    assert work["zigzag"] < 1.02
    assert work["contiguous"] == pytest.approx(2 - 1 / num_ranks, rel=0.01)
    zigzag = make_layout(num_tokens=1600, num_chunks=2 * num_ranks, num_ranks=num_ranks)
    for rank in range(num_ranks):
        assert [s.chunk for s in zigzag.slices(rank)] == [rank, 2 * num_ranks - 1 - rank]


def test_a_shift_moves_the_ranks_and_not_the_chunks() -> None:
    layouts = [make_layout(num_tokens=40, num_chunks=8, num_ranks=4, shift=shift) for shift in range(5)]
    assert len({layout.bounds for layout in layouts}) == 1
    for chunk in range(8):
        assert {layout.owners[chunk] for layout in layouts[:4]} == {0, 1, 2, 3}
    assert layouts[4] == layouts[0]


@pytest.mark.parametrize(("num_tokens", "num_chunks", "num_ranks"), [(10, 3, 4), (3, 4, 2), (10, 4, 0)])
def test_what_cannot_be_shared_out_is_refused(num_tokens: int, num_chunks: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match="chunks"):
        make_layout(num_tokens=num_tokens, num_chunks=num_chunks, num_ranks=num_ranks)
