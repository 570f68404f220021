"""Does an EGGROLL run train, go on, get a score that compares with SOMA's, and say what it cannot do?"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from thinwire.api import verbs
from thinwire.base.errors import ConfigError, UserError
from thinwire.config.fingerprint import as_record, from_record
from thinwire.experiments.registry import PRESETS
from thinwire.kernels.eggroll.shape import EggrollRules
from thinwire.report.page import write_report
from thinwire.runs import checkpoint
from thinwire.soma.config import ScoringConfig
from thinwire.soma.eggroll_config import EggrollConfig, EggrollLaunch, EggrollModel, EggrollTraining, check
from thinwire.soma.eggroll_recipe import train
from thinwire.soma.eggroll_run import EggrollRun
from tiny_eggroll import CONFIG

if TYPE_CHECKING:
    from command_lines import Here

SHORT = replace(CONFIG, training=replace(CONFIG.training, updates=2))
PAPER = {20: 39_540, 29: 76_125, 58: 273_354, 118: 1_065_894, 339: 8_456_355}


@pytest.fixture(scope="module")
def run(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished; read it, do not change it."""
    out = tmp_path_factory.mktemp("eggroll") / "run"
    train(CONFIG, data=tiny_data, out=out, preset="eggroll-small")
    return out


def test_the_score_has_the_keys_and_the_targets_of_a_soma_runs(run: Path, tiny_run: Path) -> None:
    record, soma = (json.loads((folder / "results" / "test.json").read_text()) for folder in (run, tiny_run))
    assert record.keys() == soma.keys()
    for key in ("windows_digest", "windows", "documents", "scored_targets", "baselines", "protocol"):
        assert record[key] == soma[key]
    assert (record["num_experts"], record["active_experts"], record["expert_updates"]) == (1, 1, [6])
    assert record["ci95"][0] <= record["loss_nats_per_byte"] <= record["ci95"][1]
    assert record["by_source"].keys() == soma["by_source"].keys()


def test_a_run_goes_on_where_it_ended_and_is_then_left_alone(run: Path, tiny_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(SHORT, data=tiny_data, out=out)
    record = train(CONFIG, data=tiny_data, out=out)
    assert record == json.loads((run / "results" / "test.json").read_text())
    before = {path: path.stat().st_mtime_ns for path in (out / "experts").rglob("*") if path.is_file()}
    assert train(CONFIG, data=tiny_data, out=out) == record
    assert before == {path: path.stat().st_mtime_ns for path in (out / "experts").rglob("*") if path.is_file()}


def test_other_settings_or_methods_are_refused(run: Path, tiny_run: Path, tiny_data: Path) -> None:
    with pytest.raises(UserError, match=r"rules.alpha: 0.3 there, 0.4 now"):
        train(replace(CONFIG, rules=replace(CONFIG.rules, alpha=0.4)), data=tiny_data, out=run)
    with pytest.raises(UserError, match=r"training.updates: 6 there, 2 now"):
        train(SHORT, data=tiny_data, out=run)
    with pytest.raises(UserError, match="a run of kind 'soma', not eggroll"):
        train(CONFIG, data=tiny_data, out=tiny_run)
    train(replace(CONFIG, launch=EggrollLaunch(threads=1)), data=tiny_data, out=run)  # decides no result


def test_any_text_is_scored_and_kept_under_its_name(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("harbour anchor sailor rigging " * 40)
    record = verbs.evaluate(run, on=text)
    assert record == json.loads((run / "results" / "other.json").read_text())
    assert record["windows_digest"] != json.loads((run / "results" / "test.json").read_text())["windows_digest"]
    with pytest.raises(UserError, match="one model, no experts"):
        verbs.score(run, active_experts=2)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("generate", "--prompt", "The"), "is trained and scored, and writes no text"),
        (("export", "--out", "x"), "this is an EGGROLL run"),
        (("replay", "--to", "1", "--out", "x"), "of kind 'eggroll', not soma"),
        (("measure", "variance"), "of kind 'eggroll', not soma"),
    ],
)
def test_what_only_other_methods_do_is_refused(run: Path, here: "Here", argv: tuple[str, ...], words: str) -> None:
    verb, *rest = argv
    place = [*rest, run] if verb == "measure" else [run, *rest]
    outcome = here(verb, *place)
    assert outcome.status == 2
    assert words in outcome.err


def test_the_command_line_trains_and_evaluates(tiny_data: Path, tmp_path: Path, here: "Here") -> None:
    out = tmp_path / "run"
    sizes = ["--model.width", "4", "--model.depth", "1", "--training.updates", "2", "--training.population", "16"]
    sizes += ["--training.streams", "4", "--prefix-bytes", "32", "--scoring.window-bytes", "128"]
    trained = here("train", "eggroll-small", "--data", tiny_data, "--out", out, *sizes)
    assert trained.status == 0
    assert "model" in trained.out.decode()
    evaluated = here("evaluate", out, "--json")
    assert json.loads(evaluated.out) == json.loads((out / "results" / "test.json").read_text())


def test_a_report_shows_the_curve_and_nothing_of_experts(run: Path, tmp_path: Path) -> None:
    files = write_report([run], out=tmp_path / "report")
    page = files.html.read_text()
    assert "Loss curves" in page
    assert "6 updates, 16 members, 4 streams" in page
    for word in ("Clusters", "seed run", "ensemble", "thinwire generate"):
        assert word not in page
    curves = (tmp_path / "report" / "tables" / "curves.csv").read_text().splitlines()
    assert sum(",valid," in line for line in curves) == 4


def test_a_report_of_an_unfinished_run_says_so(run: Path, tmp_path: Path) -> None:
    out = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(out / "results")
    lines = (out / "experts" / "000" / "log.jsonl").read_text().splitlines()
    (out / "experts" / "000" / "log.jsonl").write_text("\n".join(lines[:4]) + "\n")
    page = write_report([out], out=tmp_path / "report").html.read_text()
    assert "Training is not finished, at update 2 of 6." in page
    assert "Nothing is scored yet" in page


def test_a_run_without_a_checkpoint_or_with_a_damaged_config_is_refused(run: Path, tmp_path: Path) -> None:
    out = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(out / "experts" / "000" / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint yet"):
        verbs.score(out)
    record = json.loads((out / "config.json").read_text())
    del record["config"]["rules"]
    (out / "config.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="does not describe an EGGROLL run"):
        EggrollRun.open(out)
    assert checkpoint.list_updates(run / "experts" / "000" / "checkpoints") == [0, 3, 6]


def test_every_violation_is_named_at_once() -> None:
    wrong = EggrollConfig(
        model=EggrollModel(width=1, depth=0),
        training=EggrollTraining(updates=0, population=301, streams=200, validation_windows=0),
        rules=EggrollRules(alpha=0.0, float_step=-1.0, sigma_shift=99),
        prefix_bytes=256,
        scoring=ScoringConfig(window_bytes=256),
        launch=EggrollLaunch(threads=-1),
    )
    with pytest.raises(ConfigError) as refused:
        check(wrong, where="test")
    for key in ("model.width", "model.depth", "training.updates", "must be even", "at least 400", "rules.alpha"):
        assert key in str(refused.value)
    for key in ("rules.float_step", "rules.sigma_shift", "scoring.window_bytes", "launch.threads"):
        assert key in str(refused.value)


def test_a_text_too_short_leaves_no_run_behind(tiny_data: Path, tmp_path: Path) -> None:
    wanted = replace(CONFIG, training=replace(CONFIG.training, population=2**16, streams=2**15))
    with pytest.raises(UserError, match="streams of 8 bytes"):
        train(wanted, data=tiny_data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("width", "count"), PAPER.items())
def test_the_papers_presets_have_its_sizes_and_settings(width: int, count: int) -> None:
    config = PRESETS[f"eggroll-paper-d{width}"]()
    assert isinstance(config, EggrollConfig)
    check(config, where="paper")
    assert config.shape.num_parameters == count
    rules, training = config.rules, config.training
    assert (rules.alpha, rules.sigma_shift, rules.float_step) == (0.01, 4, 0.01)
    assert (training.population, training.streams, training.update_bytes) == (2**20, 256, 100)


def test_presets_pass_their_own_rules_and_come_back_from_their_record() -> None:
    for make in PRESETS.values():
        config = make()
        if isinstance(config, EggrollConfig):
            check(config, where="preset")
            assert from_record(EggrollConfig, as_record(config)) == config
