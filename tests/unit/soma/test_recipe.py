"""Is a finished stage kept only while its inputs are the same, and is another run's folder left alone?"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from thinwire.base.errors import ConfigError, RunFailedError, UserError
from thinwire.base.progress import Silent, Voice
from thinwire.data.corpus import Corpus
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.kernels import dispatch
from thinwire.runs.layout import exclusive
from thinwire.soma import training_jobs
from thinwire.soma.config import SomaConfig
from thinwire.soma.recipe import fit_clusters, open_or_create, score, train
from thinwire.soma.run import SomaRun
from tiny_runs import CONFIG, copy_of


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reopen(config: SomaConfig, data: Path, out: Path) -> SomaRun:
    return open_or_create(config, corpus=Corpus.open(data), out=out, preset="demo")


def test_a_finished_run_is_kept_whole(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    """Workers would be started for anything left to do."""
    root, said = copy_of(tiny_run, tmp_path / "run"), list[str]()
    before = contents(root)
    record = train(CONFIG, data=tiny_data, out=root, preset="demo", voice=Voice(Silent(), said.append))
    assert contents(root) == before
    assert record == json.loads((root / "results" / "test.json").read_text())
    assert said == [
        "clusters: already fitted, kept",
        "seed run: already trained, kept",
        "2 experts: already trained, kept",
        "scores: already computed, kept",
    ]


def test_a_missing_gpu_is_said_before_anything_is_written(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    config = replace(CONFIG, launch=replace(CONFIG.launch, implementation="triton"))
    with pytest.raises(UserError, match="not installed"):
        train(config, data=tiny_data, out=tmp_path / "run", preset="demo")
    assert not (tmp_path / "run").exists()


def test_another_configuration_is_refused_with_every_difference(
    tiny_run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    before = contents(root)
    other = replace(CONFIG, seed=2, experts=replace(CONFIG.experts, batch=5, updates=3))
    with pytest.raises(UserError, match="another configuration") as caught:
        reopen(other, tiny_data, root)
    for line in ("seed: 1 there, 2 now", "experts.batch: 4 there, 5 now", "experts.updates: 6 there, 3 now"):
        assert line in caught.value.what
    assert caught.value.what.count(" there, ") == 3
    assert contents(root) == before


def test_where_it_runs_is_no_difference(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    other = replace(CONFIG, launch=replace(CONFIG.launch, processes=1, threads=2))
    assert reopen(other, tiny_data, root).config == other


def test_more_expert_updates_are_an_extension(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    longer = replace(CONFIG, experts=replace(CONFIG.experts, updates=8))
    run, corpus = reopen(longer, tiny_data, root), Corpus.open(tiny_data)
    straight = tiny_runs.start_run(longer, data=tiny_data, out=tmp_path / "straight")
    tiny_runs.train_job(straight.job("seed", corpus=corpus), straight.job_folder("seed"))
    for name in ("0", "1"):
        for one in (run, straight):
            tiny_runs.train_job(one.job(name, corpus=corpus), one.job_folder(name))
        assert run.final_expert(name).theta.equal(straight.final_expert(name).theta)
    before = json.loads((root / "results" / "test.json").read_text())["loss_nats_per_byte"]
    after = score(run, voice=tiny_runs.silent_voice())["loss_nats_per_byte"]
    assert before != after, "scores of fewer updates are not kept"


def test_more_seed_updates_are_another_configuration(tiny_run: Path, tiny_data: Path) -> None:
    other = replace(CONFIG, seed_run=replace(CONFIG.seed_run, updates=8))
    with pytest.raises(UserError, match=r"seed_run\.updates: 6 there, 8 now"):
        reopen(other, tiny_data, tiny_run)


def test_other_data_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    texts = tiny_runs.write_texts(tmp_path / "texts", documents=13)
    prepare([str(texts)], out=tmp_path / "data", options=PrepareOptions(valid_fraction=0.1, test_fraction=0.2))
    before = contents(tiny_run)
    with pytest.raises(UserError, match="other data"):
        reopen(CONFIG, tmp_path / "data", tiny_run)
    assert contents(tiny_run) == before


def test_data_that_moved_are_the_same_data(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    shutil.copytree(tiny_data, tmp_path / "moved")
    assert reopen(CONFIG, tmp_path / "moved", root).open_corpus().folder == tmp_path / "moved"


def test_data_that_changed_under_the_run_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["data"]["fingerprint"] = "0" * 64
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="has changed since this run began"):
        SomaRun.open(root).open_corpus()


def test_clusters_of_other_settings_are_fitted_anew(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    run, corpus, said = SomaRun.open(root), Corpus.open(tiny_data), list[str]()
    fit_clusters(run, corpus=corpus, voice=Voice(Silent(), said.append))
    assert said == ["clusters: already fitted, kept"]
    before = contents(root / "router")
    (root / "router" / "done.json").write_text('{"fingerprint": "of other settings"}')
    (root / "router" / "assignment.npy").unlink()
    fit_clusters(run, corpus=corpus, voice=Voice(Silent(), said.append))
    assert len(said) == 1
    assert contents(root / "router") == before, "and the same inputs give the same bytes"


@pytest.mark.parametrize(
    "leftover", [(), ("manifest.json",), ("manifest.json.tmp",), ("manifest.json", "config.json.tmp")]
)
def test_a_kill_before_the_first_config_is_gone_on_from(
    tiny_data: Path, tmp_path: Path, leftover: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in leftover:
        (out / name).write_text("{")
    assert reopen(CONFIG, tiny_data, out).config == CONFIG
    assert SomaRun.open(out).config == CONFIG


def a_file(out: Path) -> None:
    out.write_text("mine")


def a_full_folder(out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("mine")


@pytest.mark.parametrize("make", [a_file, a_full_folder])
def test_what_is_no_run_folder_is_left_alone(tiny_data: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "out")
    before = contents(tmp_path)
    with pytest.raises(UserError, match="is not a run folder"):
        reopen(CONFIG, tiny_data, tmp_path / "out")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "does not describe a run"),
        ('{"kind": "subspaces"}', "kind 'subspaces'"),
        ('{"kind": "soma"}', "does not describe a SOMA run"),
        ('{"kind": "soma", "preset": "demo", "config": {"model": {"depht": 2}}}', "does not describe a SOMA run"),
        ('{"kind": "soma", "preset": "demo", "config": []}', "does not describe a SOMA run"),
        ('{"kind": "so', "not valid JSON"),
    ],
)
def test_a_damaged_or_foreign_config_is_refused(
    tiny_run: Path, tiny_data: Path, tmp_path: Path, config: str, message: str
) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    (root / "config.json").write_text(config)
    for attempt in (lambda: SomaRun.open(root), lambda: reopen(CONFIG, tiny_data, root)):
        with pytest.raises(UserError, match=message) as caught:
            attempt()
        assert str(root / "config.json") in caught.value.where
    assert (root / "config.json").read_text() == config


def lose_assignment(router: Path) -> None:
    (router / "assignment.npy").unlink()


def truncate_assignment(router: Path) -> None:
    (router / "assignment.npy").write_bytes((router / "assignment.npy").read_bytes()[:-9])


@pytest.mark.parametrize("damage", [lose_assignment, truncate_assignment])
def test_damaged_clusters_are_refused_and_the_printed_fix_works(
    tiny_run: Path, tiny_data: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    damage(root / "router")
    with pytest.raises(UserError, match="missing or damaged") as caught:
        SomaRun.open(root).assignment()
    assert f"remove {root / 'router' / 'done.json'}" in caught.value.fix
    (root / "router" / "done.json").unlink()
    record = train(CONFIG, data=tiny_data, out=root, preset="demo")
    assert record == json.loads((tiny_run / "results" / "test.json").read_text())


def test_every_impossible_setting_is_listed_and_nothing_written(tiny_data: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, experts=replace(CONFIG.experts, batch=0, epsilon=-1.0), seed_sample=2.0)
    with pytest.raises(ConfigError) as caught:
        train(config, data=tiny_data, out=tmp_path / "run")
    assert [line.split(" =")[0] for line in caught.value.violations] == [
        "seed_sample",
        "experts.batch",
        "experts.epsilon",
    ]
    assert not (tmp_path / "run").exists()


def too_many_clusters(config: SomaConfig) -> SomaConfig:
    return replace(config, clusters=replace(config.clusters, num_clusters=200))


def too_long_windows(config: SomaConfig) -> SomaConfig:
    return replace(config, scoring=replace(config.scoring, window_bytes=100_000))


@pytest.mark.parametrize(
    ("change", "message"),
    [(too_many_clusters, "200 clusters need at least 400"), (too_long_windows, "no document is long enough")],
)
def test_too_little_text_is_said_before_any_work(
    tiny_data: Path, tmp_path: Path, change: Callable[[SomaConfig], SomaConfig], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(change(CONFIG), data=tiny_data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_event_is_logged_for_each_stage(tiny_run: Path) -> None:
    events = [json.loads(line) for line in (tiny_run / "log.jsonl").read_text().splitlines()]
    assert [(event["stage"], event["state"]) for event in events] == [
        ("clusters", "started"),
        ("clusters", "done"),
        ("scores", "done"),
    ]
    assert training_jobs.WORKER == "thinwire.soma.worker"


def test_a_run_at_work_is_left_alone(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    root = copy_of(tiny_run, tmp_path / "run")
    longer = replace(CONFIG, experts=replace(CONFIG.experts, updates=8))
    with exclusive(root):
        before = contents(root)
        with pytest.raises(UserError, match="is working in this folder"):
            train(longer, data=tiny_data, out=root, preset="demo")
        assert contents(root) == before


def test_another_persons_folder_is_left_alone(tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not a run folder"):
        train(CONFIG, data=tiny_data, out=tmp_path, preset="demo")
    assert contents(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("section", ["seed_run", "experts"])
def test_a_run_that_diverges_fails_and_says_what_to_lower(section: str, tiny_data: Path, tmp_path: Path) -> None:
    job = replace(getattr(CONFIG, section), learning_rate=1e30, updates=40, validate_every=50)
    config = replace(CONFIG, **{section: job})
    with pytest.raises(RunFailedError, match=rf"(?s)diverged.*lower --{section.replace('_', '-')}\.learning-rate"):
        tiny_runs.train_in_process(config, data=tiny_data, out=tmp_path / "run")
    assert not (tmp_path / "run" / "results").exists()


class Bars:
    """Remembers every bar that was opened, and what was said to it."""

    def __init__(self) -> None:
        self.opened: list[list[Any]] = []

    def task(self, name: str, total: int | None) -> Any:
        events: list[Any] = [name, total]
        self.opened.append(events)

        class Bar:
            def advance(self, count: int = 1) -> None:
                events.append(count)

            def note(self, text: str) -> None:
                events.append(text)

            def close(self) -> None:
                events.append("closed")

        return Bar()


def test_every_job_has_one_bar_that_ends_full_with_its_last_loss(tiny_data: Path, tmp_path: Path) -> None:
    bars = Bars()
    train(CONFIG, data=tiny_data, out=tmp_path / "run", preset="demo", voice=Voice(bars, lambda _: None))
    jobs = {events[0]: events for events in bars.opened if events[0] in ("seed run", "expert 0", "expert 1")}
    assert len(jobs) == 3
    assert len([events for events in bars.opened if events[0] in jobs]) == 3
    for events in jobs.values():
        assert sum(event for event in events[2:] if isinstance(event, int)) == events[1] == 6
        assert events[-1] == "closed"
        assert "nats/byte" in events[-3]
