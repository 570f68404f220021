"""``thinwire plan`` answers with a table or one JSON object, and mistakes with what to do."""

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from command_lines import Here


def test_the_papers_setting_as_json(here: "Here") -> None:
    done = here("plan", "subspaces", "--link", "300Mbps", "--compute-seconds", "2.357", "--json")
    assert done.status == 0
    record = json.loads(done.out)
    assert record["kind"] == "plan-subspaces"
    assert [link["per"] for link in record["links"]] == ["node", "pair"]
    assert record["ranks"] == 8
    assert any(row["fits"] for row in record["options"])


def test_a_table_for_people(here: "Here") -> None:
    done = here(
        "plan", "subspaces", "--link", "50Mbps", "--link-per", "pair", "--delay", "10ms", "--launch.ranks", "4",
        "--sequence.tokens", "4096", "--tokens", "100M", "--deadline", "7d",
    )  # fmt: skip
    assert done.status == 0
    text = done.out.decode()
    assert "4,096 tokens over 4 ranks" in text
    assert "tokens/s" in text
    assert " node " not in text
    assert "4-bit" in text


def test_operations_give_a_compute_time(here: "Here") -> None:
    done = here("plan", "subspaces", "--link", "300Mbps", "--flops-per-s", "120e12", "--json")
    assert json.loads(done.out)["compute_seconds"] == pytest.approx(2.35, abs=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("subspace",), "there is no plan for 'subspace'"),
        (("subspaces", "--link", "quick"), "300Mbps"),
        (("subspaces", "--link", "1Gbps", "--deadline", "3d"), "--tokens 16B"),
        (("subspaces", "--link", "1Gbps", "--compute-seconds", "1", "--flops-per-s", "1e12"), "more than once"),
        (("subspaces", "--link", "1Gbps", "--compute-seconds", "-1"), "above zero"),
        (("subspaces", "--link", "1Gbps", "--launch.ranks", "64"), "sequence.chunks"),
        (("subspaces", "soma-small", "--link", "1Gbps"), "no preset of this method"),
        (("subspaces", "nothing", "--link", "1Gbps"), "there is no preset"),
    ],
)
def test_mistakes_are_named(here: "Here", words: tuple[str, ...], message: str) -> None:
    done = here("plan", *words)
    assert done.status == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_help_says_how(here: "Here") -> None:
    done = here("plan")
    assert done.status == 0
    assert b"--link 300Mbps" in done.out
