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
    "elapsed_seconds", "device_seconds", "byte_forwards", "operations", "relative_variance", "noiseless_updates",
    "expected_cosine", "memory_bytes", "fits", "chosen",
}  # fmt: skip


def run_folder(folder: Path, *, losses: tuple[float, ...], text: str = "text", **settings: Any) -> Path:
    """A run of four experts whose losses were recorded every 100 updates, as far as a plan reads it.

    Args:
        settings: that differ from soma-small-central's: ``experts_batch=8`` sets experts.batch, ``config_seed=2`` seed.
    """
    config: Any = preset("soma-small-central")
    for name, value in settings.items():
        section, _, key = name.partition("_")
        if section == "config":
            config = replace(config, **{key: value})
        else:
            config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    write_json(folder / "config.json", {"kind": "soma", "preset": "mine", "config": as_record(config)})
    forwards = 2 * config.experts.directions * 16 * config.experts.window_bytes
    write_json(folder / "manifest.json", {"data": {"folder": "gone", "fingerprint": text}})
    for expert in range(4):
        lines = [
            {
                "kind": "validation",
                "update": 100 * (index + 1),
                "loss_nats_per_byte": loss,
                "byte_forwards": forwards * 100 * (index + 1),
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
    measured = {"probe_terms": terms, "nu": 60.0, "num_parameters": 32_928, "window_bytes": 128, "updates": [200]}
    measured["noise_costs"] = {"batch": 300.0, "signal": 700.0}
    write_json(run / "results" / "variance.json", measured)
    done = here("plan", "soma", run, "--budget", "1h", *FEW, "--json")
    noise = json.loads(done.out)["noise"]
    assert (noise["nu"], noise["nu_probe_weighted"], noise["assumed"]) == (60.0, 33.0, False)
    assert noise["a_of_width"] == [{"width": 32, "a": 20_000.0}]
    assert "warning" not in done.err
    assert (noise["batch_cost"], noise["signal_cost"], noise["costs_assumed"]) == (300.0, 700.0, False)
    without = {key: value for key, value in measured.items() if key != "noise_costs"}
    for unknown in (measured | {"noise_costs": None}, without):
        write_json(run / "results" / "variance.json", unknown)
        assert "costs of noise are assumed" in " ".join(here("plan", "soma", run, "--budget", "1h", *FEW).err.split())
    table = here("plan", "soma", run, "--budget", "1h", *FEW, "--fixed", "size").out.decode()
    assert "60 (Eq. 17); 33 as the probes weight it" in table
    for width in (63, 44, 32):
        assert f" at width {width}" in table


def test_every_width_has_its_a(here: "Here") -> None:
    record = json.loads(here("plan", "soma", "--budget", "1h", *FEW, "--fixed", "size", "--json").out)
    of_width = {one["width"]: one["a"] for one in record["noise"]["a_of_width"]}
    assert of_width.keys() == {option["width"] for option in record["options"]}
    sizes = {option["width"]: option["expert_parameters"] for option in record["options"]}
    for width, a in of_width.items():
        assert a == pytest.approx(sizes[width], rel=0.03)


def test_a_run_without_its_text_is_assumed_like_any_other(here: "Here", tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", losses=(3.0, 2.0))
    done = here("plan", "soma", run, "--budget", "1h", *FEW, "--json")
    assert json.loads(done.out)["noise"]["assumed"] is True
    assert "cannot be measured" in " ".join(done.err.split())


def test_recorded_curves_choose_where_they_cover_the_budget(here: "Here", tmp_path: Path) -> None:
    slow = run_folder(tmp_path / "slow", losses=(3.0, 2.8, 2.6))
    quick = run_folder(tmp_path / "quick", losses=(2.9, 2.5, 2.4), experts_directions=32)
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
    run = run_folder(tmp_path / "run", losses=(3.0, 2.8, 2.6), experts_accumulation=2)
    lines = here("plan", "soma", "--budget", "600s", *FEW, "--curves", run).out.decode().splitlines()
    assert any("4 x 32, 64 x 16 x2 +-" in line for line in lines)
    assert [line.strip() for line in lines[-3:]] == [
        "lowest recorded loss: 2.8915 nats/byte",  # between 2.8830 and 2.9
        "N = 4, width 32, n_pert = 64, B = 16, A = 2, central differences",
        f"run: {run}",
    ]


def recorded_at(here: "Here", *runs: Path) -> Any:
    done = here("plan", "soma", "--budget", "400s", *FEW, "--json", "--curves", *runs)
    assert done.status == 0, done.err
    return json.loads(done.out)["recorded"]["chosen"]


@pytest.mark.parametrize(
    "settings",
    [
        {"experts_learning_rate": 0.1}, {"experts_epsilon": 0.1}, {"experts_decoder": "trained"},
        {"experts_estimator": "bptt"}, {"experts_plateau_updates": 7}, {"config_start": "cold"},
        {"config_losses": "summed"}, {"clusters_components": 9}, {"experts_validate_every": 7},
    ],
)  # fmt: skip
def test_runs_of_other_recipes_are_no_seeds(here: "Here", tmp_path: Path, settings: dict[str, Any]) -> None:
    low = run_folder(tmp_path / "low", losses=(2.0, 1.9))
    high = run_folder(tmp_path / "high", losses=(3.0, 2.9), **settings)
    chosen = recorded_at(here, high, low)
    assert chosen["runs"] == [str(low)]
    assert chosen["loss_nats_per_byte"] == pytest.approx(2.0, rel=1e-12)


def test_seeds_of_one_recipe_are_averaged(here: "Here", tmp_path: Path) -> None:
    """Also where one was trained for longer, on other processes, with another cadence of its log."""
    first = run_folder(tmp_path / "first", losses=(2.0, 1.9))
    second = run_folder(tmp_path / "second", losses=(3.0, 2.9), config_seed=2, experts_updates=9, experts_log_every=3)
    chosen = recorded_at(here, first, second, first)
    assert chosen["runs"] == [str(first), str(second)]
    assert chosen["loss_nats_per_byte"] == pytest.approx(2.5, rel=1e-12)
    assert (chosen["width"], chosen["accumulation"], chosen["difference"]) == (32, 1, "central")


def test_curves_that_do_not_compare_are_refused(here: "Here", tmp_path: Path) -> None:
    one = run_folder(tmp_path / "one", losses=(3.0, 2.8))
    for name, changes in (("text", {"text": "another"}), ("clusters.partition", {"clusters_partition": "iid"})):
        other = run_folder(tmp_path / name, losses=(3.0, 2.8), **changes)
        done = here("plan", "soma", "--budget", "1h", *FEW, "--curves", one, other)
        assert done.status == 2
        assert f"differ in {name}" in done.err


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"experts_window_bytes": 64}, "--experts.window-bytes 64"),
        ({"clusters_window_bytes": 512}, "--clusters.window-bytes 512"),
        ({"model_depth": 3}, "--model.depth 3"),
        ({"model_embed_width": 16}, "--model.embed-width 16"),
        ({"model_width": 45}, "--model.width 45"),
    ],
)
def test_curves_of_experts_that_are_not_planned_are_refused(
    here: "Here", tmp_path: Path, settings: dict[str, Any], flag: str
) -> None:
    run = run_folder(tmp_path / "run", losses=(3.0, 2.8), **settings)
    done = here("plan", "soma", "--budget", "400s", *FEW, "--curves", run)
    assert (done.status, done.out) == (2, b"")
    assert f"plan with {flag}\n" in done.err
    assert "warning" not in done.err
    assert here("plan", "soma", "--budget", "400s", *FEW, "--curves", run, *flag.split()).status == 0


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
        (("--budget", "10"), "'10' has no unit"),
        (("--deadline", "10"), "'10' has no unit"),
        (("--budget", "1h", "--memory", "10"), "'10' has no unit"),
        (("--budget", "1e400h"), "too large a number"),
        (("--budget", "inf"), "cannot read 'inf'"),
        (("--deadline", "inf"), "cannot read 'inf'"),
        (("--deadline", "nan"), "cannot read 'nan'"),
        (("--deadline", "1e400h"), "too large a number"),
        (("--budget", "1h", "--memory", "1e400GB"), "too large a number"),
        (("--budget", "1h", "--speed", "nan"), "--speed nan"),
        (("--budget", "1h", "--speed", "inf"), "--speed inf"),
        (("--budget", "1h", "--speed", "1e-320"), "--speed 1e-320"),
        (("--budget", "1h", "--updates", "1" + "0" * 400), "--updates 1"),
        (("--budget", "1h", "--devices", "1" + "0" * 400), "--devices 1"),
    ],
)
def test_mistakes_are_answered_with_a_way_out(here: "Here", words: tuple[str, ...], message: str) -> None:
    done = here("plan", "soma", "soma-small", *FEW, *words)
    assert done.status == 2
    assert done.out == b""
    assert message in done.err
    assert "Traceback" not in done.err
    assert "warning" not in done.err


def test_other_methods_and_unknown_names(here: "Here") -> None:
    for name, fix in (("soma-smal", "did you mean 'soma-small'?"), ("nonsense", "presets: demo, soma-small, ")):
        done = here("plan", "soma", name, "--budget", "1h")
        assert done.status == 2
        assert f"error: '{name}' is neither a SOMA preset" in done.err
        assert "where: thinwire plan soma\n" in done.err
        assert f"fix:   {fix}" in done.err
        assert "subspaces" not in done.err
        assert "eggroll" not in done.err
    assert here("plan", "soma", "subspaces-small", "--budget", "1h").status == 2
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
    assert "{None}" not in text


def test_no_option_has_more_experts_than_asked_for(here: "Here") -> None:
    words = ("--budget", "1h", "--speed", "1e6", "--most-experts", "2")
    options = json.loads(here("plan", "soma", *words, "--json").out)["options"]
    assert {option["num_experts"] for option in options} == {1, 2}
    assert {option["role"] for option in options} == {"least", "paper"}


def test_the_page_shows_what_the_command_prints(here: "Here", repository: Path) -> None:
    page = (repository / "docs/howto/plan-a-run.md").read_text()
    command, table = page.split("```\n")[1], page.split("```\n")[3]
    done = here(*command.split()[1:])
    assert done.status == 0, done.err
    assert done.out.decode().startswith(table)
    options = json.loads(here(*command.split()[1:], "--json").out)["options"]
    (own,) = (option for option in options if option["role"] == "own")
    other = (repository / "docs/howto/what-to-expect.md").read_text()
    assert f"{own['expected_cosine']:.3f} for the preset `soma-small`" in other
