"""``thinwire plan`` answers with a table or one JSON object, and mistakes with what to do."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from thinwire.base.files import write_json
from thinwire.config.fingerprint import as_record
from thinwire.subspaces.config import LaunchConfig, SubspacesConfig

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


SMALL = ("plan", "subspaces", "subspaces-small", "--link", "10Mbps", "--compute-seconds", "2")


def test_weights_have_a_column_and_a_remark_where_they_bind(here: "Here") -> None:
    """5.38M weights of 4 bytes, there and back over four ranks: 6 x 21.5 MB, a quarter of it on each node's link."""
    text = here(*SMALL, "--link-per", "node").out.decode()
    header = next(line for line in text.splitlines() if "tokens/s" in line)
    assert header.split() == ["per", "node", "bytes", "/plain", "exchange", "weights", "step", "tokens/s", "fits"]
    own = next(line for line in text.splitlines() if "K -98% V -95%" in line)
    assert own.split()[4:] == ["1.3", "MB", "3.52%", "0.4", "s", "25.8", "s", "27.8", "s", "74", "no"]
    assert "Weights take most of the time: 129.1 MB an update, summed at every update." in text
    assert "Raise --sync.every" in text
    rarely = here(*SMALL, "--sync.every", "50").out.decode()
    assert "Weights take" not in rarely
    assert [line.split()[:2] for line in rarely.splitlines() if "tokens/s" in line] == [
        ["per", "node"],
        ["per", "pair"],
    ]


def test_columns_fit_a_terminal(here: "Here") -> None:
    for words in (SMALL, ("plan", "subspaces", "--link", "300Mbps", "--flops-per-s", "120e12")):
        assert max(map(len, here(*words).out.decode().splitlines())) <= 80


def test_the_vocabulary_follows_the_preset(here: "Here") -> None:
    small = here(*SMALL).out.decode()
    assert "5.38M, vocabulary 256 (bytes; GPT-2's: --vocab-size 50257)" in small
    assert "30.98M, vocabulary 50,257 (GPT-2's; bytes: --vocab-size 256)" in (
        here(*SMALL, "--vocab-size", "50257").out.decode()
    )
    assert "5.51M, vocabulary 512\n" in here(*SMALL, "--vocab-size", "512").out.decode()
    for words in ((), ("subspaces-800m",)):
        record = json.loads(here("plan", "subspaces", *words, "--link", "1Gbps", "--json").out)
        assert record["vocab_size"] == 50_257


def test_operations_give_a_compute_time(here: "Here") -> None:
    done = here("plan", "subspaces", "--link", "300Mbps", "--flops-per-s", "120e12", "--json")
    assert json.loads(done.out)["compute_seconds"] == pytest.approx(2.35, abs=0.02)


def run_folder(folder: Path, config: SubspacesConfig) -> Path:
    """A run as far as a plan reads it."""
    folder.mkdir()
    write_json(folder / "config.json", {"kind": "subspaces", "preset": "mine", "config": as_record(config)})
    steps = [{"kind": "step", "step": n, "phase": "compressed", "seconds": 0.5 * n} for n in (1, 2, 3)]
    (folder / "log.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


def test_a_run_gives_its_settings_and_its_steps_time(here: "Here", tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", SubspacesConfig(launch=LaunchConfig(ranks=3)))
    record = json.loads(here("plan", "subspaces", run, "--link", "20Mbps", "--json").out)
    assert (record["ranks"], record["compute_seconds"]) == (3, 1.0)
    # 256 x 256 embedding, 4 blocks of 805,376 and heads, the last norm
    assert record["parameters"] == 256 * 256 + 4 * (4 * 256**2 + 3 * 256 * 704 + 2 * 256) + 256
    given = json.loads(here("plan", "subspaces", run, "--link", "20Mbps", "--compute-seconds", "3", "--json").out)
    assert given["compute_seconds"] == 3.0


def test_steps_on_a_modelled_link_are_no_compute_time(here: "Here", tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", SubspacesConfig(launch=LaunchConfig(ranks=3, link_bits_per_s=1e6)))
    assert json.loads(here("plan", "subspaces", run, "--link", "20Mbps", "--json").out)["compute_seconds"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("subspace",), "there is no plan for 'subspace'"),
        (("subspaces", "--link", "quick"), "300Mbps"),
        (("subspaces", "--link", "1Gbps", "--deadline", "3d"), "--tokens 16B"),
        (("subspaces", "--link", "1Gbps", "--compute-seconds", "1", "--flops-per-s", "1e12"), "given twice"),
        (("subspaces", "--link", "1Gbps", "--compute-seconds", "-1"), "above zero"),
        (("subspaces", "--link", "1Gbps", "--compute-seconds", "nan"), "above zero"),
        (("subspaces", "--link", "1Gbps", "--flops-per-s", "inf"), "finite"),
        (("subspaces", "--link", "1Gbps", "--tokens", "1e400", "--deadline", "30d"), "too large a number"),
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


def test_the_howto_shows_what_is_printed(here: "Here") -> None:
    page = (Path(__file__).parents[3] / "docs/howto/plan-a-run.md").read_text(encoding="utf-8")
    assert f"```\n{here(*SMALL, '--link-per', 'node').out.decode()}```" in page
    rarely = here(*SMALL, "--link-per", "node", "--sync.every", "50").out.decode()
    shown = [line for line in rarely.splitlines() if line.startswith(("  per node", "  plain", "  K -98% V -95%"))]
    assert "```\n" + "\n".join(shown) + "\n```" in page
