"""The plan says which codecs fit, and the largest rank that does, under both link models."""

from dataclasses import replace
from typing import Any

import pytest

from thinwire.comm.link import Link
from thinwire.experiments.subspaces import subspaces_800m
from thinwire.plan.subspaces import Goal, Question, gentlest_rank, plan, variants

LINKS = (Link(3e8, "node"), Link(3e8, "pair"))
COMPUTE = 132_000 / 56_000
QUESTION = Question(subspaces_800m(), LINKS, vocab_size=50_257, compute_seconds=COMPUTE, exchange="all_gather")


def rows_of(record: dict[str, Any], codec: str) -> dict[str, dict[str, Any]]:
    return {row["link_per"]: row for row in record["options"] if row["codec"] == codec}


def test_every_codec_is_planned_on_every_link() -> None:
    record = plan(QUESTION)
    names = [variant.name for variant in variants(subspaces_800m())]
    assert [row["codec"] for row in record["options"][::2]] == names
    assert names[:2] == ["plain", "subspace K -98% V -95%"]
    assert names[-2:] == ["top 10%", "4-bit"]
    own = rows_of(record, names[1])
    assert (own["node"]["key_rank"], own["node"]["value_rank"]) == (41, 102)
    assert own["pair"]["fits"]
    assert not own["node"]["fits"]
    assert own["node"]["fraction_of_plain"] == pytest.approx(143 / 4096, rel=1e-4)
    assert own["pair"]["fraction_of_unlinked_speed"] == 1.0
    plain = rows_of(record, "plain")
    assert plain["pair"]["fraction_of_unlinked_speed"] < 1 / 20
    assert not plain["pair"]["fits"]
    assert plain["pair"]["key_rank"] is None
    assert record["tokens_per_step"] == 132_000
    assert sum(plain["node"]["received_bytes_by_rank"]) == plain["node"]["wire_bytes"]


def test_baselines_cost_what_the_paper_says_and_their_overhead() -> None:
    record = plan(QUESTION)
    # values of bfloat16, and there alone a bitmap of one bit an entry
    top = rows_of(record, "top 10%")["node"]
    assert top["fraction_of_plain"] == pytest.approx((0.1 + 0.1 + 1 / 16) / 2, rel=1e-3)
    # four bits and two bfloat16 for 32 entries there, bfloat16 back
    four = rows_of(record, "4-bit")["node"]
    assert four["fraction_of_plain"] == pytest.approx((0.25 + 2 / 32 + 1) / 2, rel=1e-3)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("goal", [None, Goal(16_000_000_000, 30 * 86_400.0)])
def test_the_gentlest_rank_is_the_largest_that_fits(link: Link, goal: Goal | None) -> None:
    question = replace(QUESTION, goal=goal)
    rank, allowed = gentlest_rank(question, link=link), question.allowed_step_seconds()
    assert rank is not None
    assert allowed is not None
    for tried, fits in ((rank, True), (rank + 1, False)):
        rate = 1 - tried / 2048
        config = replace(subspaces_800m(), codec=replace(subspaces_800m().codec, key_rate=rate, value_rate=rate))
        own = plan(replace(question, config=config, links=(link,)))["options"][1]
        assert own["key_rank"] == tried
        assert own["fits"] == fits
        assert (own["step_seconds_overlapped"] <= allowed) == fits


def test_a_deadline_is_shared_out_over_the_steps() -> None:
    question = replace(QUESTION, goal=Goal(132_000 * 1000, 5000.0))
    assert question.allowed_step_seconds() == pytest.approx(5.0)
    record = plan(question)
    own = rows_of(record, "subspace K -98% V -95%")
    assert own["pair"]["training_seconds"] == pytest.approx(1000 * COMPUTE)
    assert own["pair"]["fits"]


def test_nothing_fits_a_step_shorter_than_its_compute() -> None:
    question = replace(QUESTION, goal=Goal(132_000, COMPUTE / 2))
    record = plan(question)
    assert [link["gentlest_rank"] for link in record["links"]] == [None, None]
    assert not any(row["fits"] for row in record["options"])


def test_without_a_compute_time_nothing_is_judged() -> None:
    record = plan(replace(QUESTION, compute_seconds=0.0))
    assert record["compute_seconds"] is None
    assert {row["fits"] for row in record["options"]} == {None}
    assert {link["gentlest_rank"] for link in record["links"]} == {None}
    assert all(row["tokens_per_s_overlapped"] > 0 for row in record["options"])


def test_one_rank_needs_no_link() -> None:
    config = replace(subspaces_800m(), launch=replace(subspaces_800m().launch, ranks=1))
    record = plan(replace(QUESTION, config=config))
    assert {row["wire_bytes"] for row in record["options"]} == {0}
    assert {link["gentlest_rank"] for link in record["links"]} == {2048}


@pytest.mark.parametrize(("every", "is_bound"), [(1, True), (200, False)])
def test_weights_that_bind_are_told(every: int, is_bound: bool) -> None:
    """74 s of weights beside 14 s of exchange on a link per node where they are summed at each step."""
    config = replace(subspaces_800m(), sync=replace(subspaces_800m().sync, every=every))
    own = rows_of(plan(replace(QUESTION, config=config)), "subspace K -98% V -95%")["node"]
    assert own["sync_seconds"] == pytest.approx(74.0 / every, rel=0.01)
    assert own["is_bound_by_weights"] == is_bound
