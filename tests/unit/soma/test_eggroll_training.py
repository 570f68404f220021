"""Does an EGGROLL job learn, and end with the same bits after a kill at any moment, on any threads, in any chunks?"""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny_eggroll
from kills import When, Write, Writes, find, in_child
from thinwire.base.errors import InterruptedRunError, RunFailedError, UserError
from thinwire.data.corpus import Corpus
from thinwire.kernels.eggroll.shape import EggrollRules
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma import eggroll_job
from thinwire.soma.compute import Compute
from thinwire.soma.eggroll_config import EggrollModel
from thinwire.soma.eggroll_job import (
    EggrollJob,
    apply_record,
    byte_forwards_per_update,
    evaluate_update,
    initial_state,
    scored_losses,
)
from thinwire.soma.eggroll_log import read
from thinwire.soma.eggroll_training import is_done, train
from tiny_eggroll import CONFIG, assert_same_end, job_of, lines_without_clock, train_job


@dataclass(frozen=True)
class Undisturbed:
    """A job, the folder of its undisturbed run, and every write of it."""

    job: EggrollJob
    folder: JobFolder
    writes: list[Write]


@pytest.fixture(scope="module")
def one(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    job, folder, writes = job_of(tiny_data), JobFolder(tmp_path_factory.mktemp("undisturbed") / "job"), Writes()
    with pytest.MonkeyPatch.context() as patch:
        writes.install(patch.setattr)
        train_job(job, folder)
    return Undisturbed(job, folder, writes.seen)


def killed(job: EggrollJob, folder: JobFolder, *, at: int, when: When) -> None:
    """Train in a child that dies at its ``at``-th write."""

    def work() -> None:
        Writes(at, when).install(setattr)
        train_job(job, folder)

    status = in_child(work)
    assert status == 9, f"the child ended with {status} before write {at}"


@pytest.mark.parametrize("moment", range(8))
def test_a_kill_at_a_seeded_moment_changes_no_bit(one: Undisturbed, moment: int, tmp_path: Path) -> None:
    generator, folder = random.Random(moment), JobFolder(tmp_path / "job")
    at, when = generator.randrange(len(one.writes)), generator.choice(["before", "middle", "after"])
    killed(one.job, folder, at=at, when=when)
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)
    assert lines_without_clock(folder) == lines_without_clock(one.folder)
    assert is_done(one.job, folder=folder)


MOMENTS: dict[str, tuple[str, str, int, When]] = {
    "in the log's header": ("pwrite", "scalars.log", 0, "middle"),
    "in the middle of a record": ("pwrite", "scalars.log", 5, "middle"),
    "between an update's signs and its validation": ("pwrite", "scalars.log", 3, "after"),
    "in the middle of a line of log.jsonl": ("write", "log.jsonl", 4, "middle"),
    "between a checkpoint's weights and its description": ("file", "00000003.json.tmp", 0, "before"),
    "after the last validation": ("pwrite", "scalars.log", -1, "after"),
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


def test_a_torn_record_is_dropped_with_a_message(one: Undisturbed, tmp_path: Path) -> None:
    folder, messages = JobFolder(tmp_path / "job"), list[str]()
    killed(one.job, folder, at=find(one.writes, "pwrite", "scalars.log", nth=4), when="middle")
    train_job(one.job, folder, messages=messages)
    assert len(messages) == 1
    assert "torn last record" in messages[0]


def test_log_lines_count_their_bytes_and_each_is_there_once(one: Undisturbed) -> None:
    lines = lines_without_clock(one.folder)
    updates = [line for line in lines if line["kind"] == "update"]
    assert [line["update"] for line in updates] == [1, 2, 3, 4, 5, 6]
    assert [line["byte_forwards"] for line in updates] == [16 * 8 * update for update in range(1, 7)]
    assert [line["update"] for line in lines if line["kind"] == "validation"] == [0, 2, 4, 6]
    assert all(line["learning_rate"] == 0.05 and line["epsilon"] == 1 / 16 for line in updates)
    assert all(0 < line["moved_fraction"] < 1 and line["derivative_rms"] > 0 for line in updates)
    assert byte_forwards_per_update(CONFIG.training) == 128


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(one: Undisturbed, threads: int, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    train_job(one.job, folder, threads=threads)
    assert_same_end(one.job, folder, one.folder)


def test_how_many_pairs_and_windows_at_once_changes_no_bit(
    one: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eggroll_job, "PAIRS_PER_THREAD", 3)
    monkeypatch.setattr(eggroll_job, "WINDOWS_PER_THREAD", 2)
    folder = JobFolder(tmp_path / "job")
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)


def test_a_run_made_longer_later_is_the_run_planned_that_long(one: Undisturbed, tmp_path: Path) -> None:
    folder, shorter = JobFolder(tmp_path / "job"), replace(CONFIG.training, updates=4)
    train_job(replace(one.job, config=replace(CONFIG, training=shorter)), folder)
    assert not is_done(one.job, folder=folder)
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)


def test_signs_alone_rebuild_every_update(one: Undisturbed) -> None:
    state, compute = initial_state(one.job), Compute()
    for record in read(one.folder.scalars).records:
        state = apply_record(one.job, state, record, compute=compute)
    kept = checkpoint.load(one.folder.checkpoints, 6).tensors
    assert torch.equal(state.theta, kept["theta"])
    assert torch.equal(state.streams, kept["streams"])


def test_stopping_keeps_every_finished_update_and_nothing_of_the_one_in_flight(
    one: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eggroll_job, "PAIRS_PER_THREAD", 2)  # four looks an update, one more before it
    folder, asked = JobFolder(tmp_path / "job"), iter([False] * 12 + [True])
    with pytest.raises(InterruptedRunError, match="before update 3 was finished"):
        train(
            one.job,
            folder=folder,
            compute=Compute(),
            task=tiny_eggroll.NoTask(),
            say=print,
            should_stop=lambda: next(asked),
        )
    assert read(folder.scalars).last_update == 2
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)


def test_a_folder_of_another_job_is_refused(one: Undisturbed, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    killed(one.job, folder, at=find(one.writes, "pwrite", "scalars.log", nth=4), when="after")
    other = replace(one.job, config=replace(CONFIG, rules=EggrollRules(alpha=0.31, float_step=0.05)))
    with pytest.raises(UserError, match="other inputs"):
        train_job(other, folder)


def test_a_record_of_another_text_is_not_applied(one: Undisturbed) -> None:
    record = next(r for r in read(one.folder.scalars).records if r.update == 1)
    moved = one.job.streams._replace(starts=one.job.streams.starts + 1)
    with pytest.raises(UserError, match="not the one that update 1 was made on"):
        apply_record(replace(one.job, streams=moved), initial_state(one.job), record, compute=Compute())


def test_a_loss_that_is_not_finite_ends_the_run(one: Undisturbed) -> None:
    state = initial_state(one.job)
    broken = replace(state, theta=torch.full_like(state.theta, torch.nan))
    with pytest.raises(RunFailedError, match="float-step"):
        evaluate_update(one.job, broken, compute=Compute())


def test_the_prefix_is_read_and_not_scored(one: Undisturbed) -> None:
    """A window's loss is the mean over the bytes behind the prefix, from states that have read it."""
    job, windows = one.job, one.job.validation
    theta = initial_state(job).theta
    losses = scored_losses(theta, windows, config=job.config, compute=Compute())
    whole = scored_losses(theta, windows, config=replace(job.config, prefix_bytes=1), compute=Compute())
    head = scored_losses(theta, windows[:, :33], config=replace(job.config, prefix_bytes=1), compute=Compute())
    np.testing.assert_allclose(whole * 127, head * 31 + losses * 96, rtol=1e-6)
    changed = windows.copy()
    changed[:, 3] ^= 1  # a byte of the prefix
    assert not np.array_equal(scored_losses(theta, changed, config=job.config, compute=Compute()), losses)


def test_the_loss_falls_on_a_text_that_repeats(tiny_data: Path) -> None:
    """All streams read one letter; an untrained network gives it about 1/256."""
    training = replace(CONFIG.training, population=64, update_bytes=4)
    config = replace(CONFIG, model=EggrollModel(width=8, depth=1), training=training)
    job = open_on(b"a" * 4096, config, tiny_data)
    state, losses = initial_state(job), []
    for _ in range(40):
        evaluated = evaluate_update(job, state, compute=Compute())
        state = evaluated.state
        losses.append(evaluated.record.train_loss)
    assert losses[0] > 3
    assert np.mean(losses[-5:]) < losses[0] - 2


def open_on(text: bytes, config: object, data: Path) -> EggrollJob:
    """A job whose streams read ``text``."""
    job = job_of(data, config)  # type: ignore[arg-type]

    class Text:
        num_bytes = len(text)

        def gather(self, starts: np.ndarray, *, length: int) -> np.ndarray:
            places = starts[:, None] + np.arange(length)
            return np.frombuffer(text, np.uint8)[places]

    starts = np.arange(job.config.training.streams)
    return replace(job, streams=job.streams._replace(shards=Text(), starts=starts))  # type: ignore[arg-type]


def test_jobs_of_other_seeds_read_other_text_with_other_noise(one: Undisturbed, tiny_data: Path) -> None:
    other = job_of(tiny_data, replace(CONFIG, seed=2))
    assert other.fingerprint != one.job.fingerprint
    assert not np.array_equal(other.streams.windows(1), one.job.streams.windows(1))
    assert Corpus.open(tiny_data).fingerprint == other.data_fingerprint
