"""Does a job that is killed at any moment, and started again, end with the same bits?"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from kills import Undisturbed, When, find, killed
from thinwire.base.errors import InterruptedRunError
from thinwire.runs.layout import JobFolder
from thinwire.soma.compute import Compute
from thinwire.soma.expert_training import is_done, train
from thinwire.soma.job_checkpoint import load_state
from thinwire.soma.scalar_log import read
from tiny_runs import assert_same_end, lines_without_clock, train_job


def test_the_plateau_rule_has_worked_in_the_undisturbed_runs(one: Undisturbed) -> None:
    """Else the tests below would not see whether it survives a kill."""
    state = load_state(one.job, folder=one.folder, update=one.job.config.updates)
    assert state.plateau.halvings >= 1
    assert len(one.writes) > 30


@pytest.mark.parametrize("moment", range(10))
def test_a_kill_at_a_seeded_moment_changes_no_bit(one: Undisturbed, moment: int, tmp_path: Path) -> None:
    generator, folder = random.Random(moment), JobFolder(tmp_path / "job")
    killed(
        one.job,
        folder,
        at=generator.randrange(len(one.writes)),
        when=generator.choice(["before", "middle", "after"]),
    )
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)
    assert lines_without_clock(folder) == lines_without_clock(one.folder)


MOMENTS: dict[str, tuple[str, str, int, When]] = {
    "in the log's header": ("pwrite", "scalars.log", 0, "middle"),
    "after the first validation": ("pwrite", "scalars.log", 1, "after"),
    "in the middle of a record": ("pwrite", "scalars.log", 5, "middle"),
    "between an update's scalars and its validation": ("pwrite", "scalars.log", 3, "after"),
    "in the middle of a line of log.jsonl": ("write", "log.jsonl", 4, "middle"),
    "in the middle of a checkpoint's weights": ("file", ".safetensors.tmp", 1, "middle"),
    "before the weights get their name": ("replace", ".safetensors", 1, "before"),
    "between a checkpoint's weights and its description": ("file", "00000003.json.tmp", 0, "before"),
    "in the middle of the description": ("file", "00000003.json.tmp", 0, "middle"),
    "after the last validation": ("pwrite", "scalars.log", -1, "after"),
    "in the middle of the last checkpoint": ("file", "00000006.safetensors.tmp", 0, "middle"),
    "before done.json": ("file", "done.json.tmp", 0, "before"),
    "in the middle of done.json": ("file", "done.json.tmp", 0, "middle"),
    "before done.json gets its name": ("replace", "done.json", 0, "before"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_a_delicate_moment_changes_no_bit(one: Undisturbed, moment: str, tmp_path: Path) -> None:
    call, ending, nth, when = MOMENTS[moment]
    folder = JobFolder(tmp_path / "job")
    killed(one.job, folder, at=find(one.writes, call, ending, nth=nth), when=when)
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)
    assert lines_without_clock(folder) == lines_without_clock(one.folder)
    assert is_done(one.job, folder=folder)


@pytest.mark.parametrize("seed", range(3))
def test_kills_during_the_restart_change_no_bit(one: Undisturbed, seed: int, tmp_path: Path) -> None:
    generator, folder = random.Random(100 + seed), JobFolder(tmp_path / "job")
    killed(one.job, folder, at=len(one.writes) // 2, when="middle")
    for _ in range(2):
        killed(one.job, folder, at=generator.randrange(4), when=generator.choice(["before", "middle"]))
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)


def test_log_lines_are_whole_and_each_there_once(one: Undisturbed) -> None:
    kinds = [(line["kind"], line["update"]) for line in lines_without_clock(one.folder)]
    updates = [("update", u) for u in range(1, 7)]
    validations = [("validation", u) for u in (0, 2, 4, 6)]
    assert sorted(kinds) == sorted(updates + validations)


def test_a_torn_record_is_dropped_with_a_message(one: Undisturbed, tmp_path: Path) -> None:
    folder, messages = JobFolder(tmp_path / "job"), list[str]()
    killed(one.job, folder, at=find(one.writes, "pwrite", "scalars.log", nth=4), when="middle")
    train_job(one.job, folder, messages=messages)
    assert len(messages) == 1
    assert "torn last record" in messages[0]
    assert str(folder.scalars) in messages[0]


def test_stopping_between_updates_keeps_every_update(one: Undisturbed, tmp_path: Path) -> None:
    folder, asked = JobFolder(tmp_path / "job"), iter([False, False, True])
    with pytest.raises(InterruptedRunError, match="before update 3"):
        train(
            one.job,
            folder=folder,
            compute=Compute(),
            task=tiny_runs.NoTask(),
            say=print,
            should_stop=lambda: next(asked),
        )
    assert max(record.update for record in read(folder.scalars).records) == 2
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(one: Undisturbed, threads: int, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    train_job(one.job, folder, threads=threads)
    assert_same_end(one.job, folder, one.folder)


def test_a_run_made_longer_later_is_the_run_planned_that_long(one: Undisturbed, tmp_path: Path) -> None:
    """Also where the shorter run ends between two validations of the longer one."""
    hasty = replace(one.job.config, plateau_updates=1)  # a validation at 5 would halve the rates
    shorter, longer = (replace(one.job, config=replace(hasty, updates=n)) for n in (5, 9))
    grown, planned = JobFolder(tmp_path / "grown"), JobFolder(tmp_path / "planned")
    train_job(shorter, grown)
    assert is_done(shorter, folder=grown)
    assert not is_done(longer, folder=grown)
    train_job(longer, grown)
    train_job(longer, planned)
    a, b = (load_state(longer, folder=folder, update=9) for folder in (grown, planned))
    assert a.expert.theta.equal(b.expert.theta)
    assert a.expert.decoder.equal(b.expert.decoder)
    assert a.plateau == b.plateau
