"""``thinwire plan soma`` answers with a table or one JSON object, says what it assumes, and refuses with a way out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from thinwire.base.files import write_json
from thinwire.config.fingerprint import as_record
from thinwire.experiments.registry import preset

if TYPE_CHECKING:
    from command_lines import Here

FEW = ("--most-experts", "4", "--speed", "1e6")
OPTION_KEYS = {
    "role", "num_experts", "directions", "batch", "accumulation", "difference", "width", "expert_parameters",
    "total_parameters", "aimed_updates", "updates", "update_device_seconds", "update_elapsed_seconds",
    "elapsed_seconds", "device_seconds", "byte_forwards", "operations", "relative_variance", "expected_cosine",
    "memory_bytes", "fits", "chosen",
}  # fmt: skip


def run_folder(
    folder: Path, *, losses: tuple[float, ...], directions: int = 64, text: str = "text", window_bytes: int = 128
) -> Path:
    """A run of four experts whose losses were recorded every 100 updates, as far as a plan reads it."""
    config: Any = preset("soma-small")
    job = replace(config.experts, directions=directions, window_bytes=window_bytes)
    write_json(
        folder / "config.json", {"kind": "soma", "preset": "mine", "config": as_record(replace(config, experts=job))}
    )
    write_json(folder / "manifest.json", {"data": {"folder": "gone", "fingerprint": text}})
    for expert in range(4):
        lines = [
            {
                "kind": "validation",
                "update": 100 * (index + 1),
                "loss_nats_per_byte": loss,
                "byte_forwards": 2 * directions * 16 * window_bytes * 100 * (index + 1),
                "device_seconds": 100.0 * (index + 1),
            }
            for index, loss in enumerate(losses)
        ]
        log = folder / "experts" / f"{expert:03d}" / "log.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_one_json_object_with_every_option(here: "Here") -> None:
    done = here("plan", "soma", "--budget", "1h", "--deadline", "50min", "--devices", "2", *FEW, "--json")
    assert done.status == 0, done.err
    record = json.loads(done.out)
    assert record["kind"] == "plan-soma"
    assert record["budget"] == {"amount": 3600.0, "unit": "device_seconds"}
    assert (record["deadline_seconds"], record["devices"], record["window_bytes"]) == (3000.0, 2, 128)
    assert record["noise"]["assumed"] is True
    assert "assumed" in done.err
    assert all(option.keys() == OPTION_KEYS for option in record["options"])
    chosen = [option["num_experts"] for option in record["options"] if option["chosen"]]
    assert chosen == [1, 2, 4]
    assert record["recorded"] is None


@pytest.mark.parametrize("words", [(), ("--fixed", "size"), ("soma-paper-n8", "--memory", "2GB")])
def test_a_table_within_eighty_columns(here: "Here", words: tuple[str, ...]) -> None:
    name, rest = (words[:1], words[1:]) if words and not words[0].startswith("-") else ((), words)
    done = here("plan", "soma", *name, "--budget", "4000h", *rest, "--speed", "1e6")
    assert done.status == 0, done.err
    lines = done.out.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:3] == ["least", "+", "1"] for line in lines)
    assert any(line.split()[:3] == ["paper", "+-", "256"] for line in lines)


def test_a_run_gives_its_own_noise(here: "Here", tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", losses=(3.0, 2.0))
    terms = {"a": 20_000.0, "nu": 33.0, "a_nu": 7e5, "baseline": 2e4, "baseline_nu": 7e5}
    terms |= {"mean_square": 0.25, "bias": 0.2, "alignment": 0.99}
    measured = {"probe_terms": terms, "num_parameters": 32_928, "window_bytes": 128, "updates": [200]}
    write_json(run / "results" / "variance.json", measured)
    done = here("plan", "soma", run, "--budget", "1h", *FEW, "--json")
    noise = json.loads(done.out)["noise"]
    assert (noise["nu"], noise["a"], noise["assumed"]) == (33.0, 20_000.0, False)
    assert "warning" not in done.err


def test_a_run_without_its_text_is_assumed_like_any_other(here: "Here", tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", losses=(3.0, 2.0))
    done = here("plan", "soma", run, "--budget", "1h", *FEW, "--json")
    assert json.loads(done.out)["noise"]["assumed"] is True
    assert "cannot be measured" in " ".join(done.err.split())


def test_recorded_curves_choose_where_they_cover_the_budget(here: "Here", tmp_path: Path) -> None:
    slow = run_folder(tmp_path / "slow", losses=(3.0, 2.8, 2.6))
    quick = run_folder(tmp_path / "quick", losses=(2.9, 2.5, 2.4), directions=32)
    curves = ("--curves", str(slow), str(quick), "--json")
    recorded = json.loads(here("plan", "soma", "--budget", "600s", *FEW, *curves).out)["recorded"]
    assert recorded["chosen"]["directions"] == 32
    low, high = recorded["curves"][0]["loss_low"], recorded["curves"][0]["loss_high"]
    assert low == pytest.approx(3.0 - 0.2 * 0.584963, abs=1e-6)  # log2(1.5)
    assert high == pytest.approx(2.9, rel=1e-12)
    short = json.loads(here("plan", "soma", "--budget", "600s", "--deadline", "120s", *FEW, *curves).out)["recorded"]
    assert short["curves"][0]["loss_low"] is None
    beyond = json.loads(here("plan", "soma", "--budget", "2000s", *FEW, *curves).out)["recorded"]
    assert beyond["chosen"] is None


def test_a_table_of_recorded_losses(here: "Here", tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", losses=(3.0, 2.8, 2.6))
    text = here("plan", "soma", "--budget", "600s", *FEW, "--curves", run).out.decode()
    assert "lowest recorded loss: N = 4, n_pert = 64, B = 16" in text


def test_curves_that_do_not_compare_are_refused(here: "Here", tmp_path: Path) -> None:
    one = run_folder(tmp_path / "one", losses=(3.0, 2.8))
    for name, changes in (("text", {"text": "another"}), ("experts.window-bytes", {"window_bytes": 64})):
        other = run_folder(tmp_path / name, losses=(3.0, 2.8), **changes)
        done = here("plan", "soma", "--budget", "1h", *FEW, "--curves", one, other)
        assert done.status == 2
        assert f"differ in {name}" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing limits the training"),
        (("--budget", "soon"), "3e12 byte-forwards"),
        (("--budget", "1h", "--devices", "0"), "--devices 0"),
        (("--budget", "10 byte-forwards"), '--budget "256 byte-forwards"'),
        (("--budget", "1h", "--deadline", "1us"), "single update"),
        (("--budget", "1h", "--memory", "1MB"), "the smallest needs --memory"),
        (("--deadline", "1h", "--curves", "nowhere"), "give a budget too"),
        (("--budget", "1h", "--curves", "nowhere"), "no config.json"),
        (("--budget", "1h", "--experts.batch", "0"), "experts.batch"),
    ],
)
def test_mistakes_are_answered_with_a_way_out(here: "Here", words: tuple[str, ...], message: str) -> None:
    done = here("plan", "soma", "soma-small", *FEW, *words)
    assert done.status == 2
    assert done.out == b""
    assert message in done.err
    assert "Traceback" not in done.err


def test_other_methods_and_unknown_names(here: "Here") -> None:
    assert "no preset of this method" in here("plan", "soma", "subspaces-small", "--budget", "1h").err
    assert "there is no preset" in here("plan", "soma", "nothing", "--budget", "1h").err
    assert b"--budget 10h" in here("plan", "soma").out
    assert b"plan soma" in here("plan").out


def test_help_names_every_flag(here: "Here") -> None:
    text = here("plan", "soma", "--help").out.decode()
    for flag in (
        "budget",
        "deadline",
        "devices",
        "memory",
        "fixed",
        "updates",
        "most-experts",
        "speed",
        "curves",
        "json",
    ):
        assert f"--{flag}" in text
