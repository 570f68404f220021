"""Does a job that is killed at any moment, and started again, end with the same bits?  And what of a full disk?"""

import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

import tiny_runs
from thinwire.base.errors import InterruptedRunError, UserError
from thinwire.data.corpus import Corpus
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma.expert_job import ExpertJob
from thinwire.soma.expert_training import Compute, is_done, load_state, train
from thinwire.soma.scalar_log import read
from tiny_runs import assert_same_end, assert_same_records, train_job

JOBS = ("seed", "0")  # central with a trained decoder; one-sided with a frozen one
When = Literal["before", "middle", "after"]


@dataclass(frozen=True)
class Write:
    """One call that changes the disk."""

    call: str
    path: str


@dataclass
class Writes:
    """Counts every call that changes the disk; kills the process at one of them, with SIGKILL."""

    kill_at: int | None = None
    when: When = "before"
    seen: list[Write] = field(default_factory=list)

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        pwrite, write, replace_, write_bytes = os.pwrite, os.write, os.replace, Path.write_bytes
        patch(os, "pwrite", lambda fd, data, at: self._do("pwrite", _name(fd), data, lambda d: pwrite(fd, d, at)))
        patch(os, "write", lambda fd, data: self._do("write", _name(fd), data, lambda d: write(fd, d)))
        patch(os, "replace", lambda a, b: self._do("replace", str(b), b"", lambda _: replace_(a, b)))
        patch(Path, "write_bytes", lambda path, data: self._do("file", str(path), data, lambda d: write_bytes(path, d)))

    def _do(self, call: str, path: str, data: bytes, act: Callable[[bytes], Any]) -> Any:
        index = len(self.seen)
        self.seen.append(Write(call, path))
        if index == self.kill_at:
            if self.when == "middle":
                act(data[: len(data) // 2])
            elif self.when == "after":
                act(data)
            os.kill(os.getpid(), signal.SIGKILL)
        return act(data)


def _name(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    return os.waitpid(child, 0)[1]


def killed(job: ExpertJob, folder: JobFolder, *, at: int, when: When) -> None:
    """Train in a child that dies at its ``at``-th write."""

    def work() -> None:
        Writes(at, when).install(setattr)
        train_job(job, folder)

    status = in_child(work)
    assert os.WIFSIGNALED(status), f"the child ended with {status} before write {at}"
    assert os.WTERMSIG(status) == signal.SIGKILL


@dataclass(frozen=True)
class Undisturbed:
    """A job, the folder of its undisturbed run, and every write of it."""

    job: ExpertJob
    folder: JobFolder
    writes: list[Write]


@pytest.fixture(scope="module")
def jobs(tiny_run: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Undisturbed]:
    from thinwire.soma.run import SomaRun

    run, made = SomaRun.open(tiny_run), {}
    for name in JOBS:
        job = run.job(name, corpus=Corpus.open(tiny_data))
        folder = JobFolder(tmp_path_factory.mktemp("undisturbed") / name)
        writes = Writes()
        with pytest.MonkeyPatch.context() as patch:
            writes.install(patch.setattr)
            train_job(job, folder)
        made[name] = Undisturbed(job, folder, writes.seen)
    return made


@pytest.fixture(params=JOBS)
def one(request: pytest.FixtureRequest, jobs: dict[str, Undisturbed]) -> Undisturbed:
    return jobs[request.param]


def find(writes: list[Write], call: str, ending: str, *, nth: int = 0) -> int:
    """Which write is the ``nth`` ``call`` on a file of this ending."""
    return [i for i, w in enumerate(writes) if w.call == call and w.path.endswith(ending)][nth]


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


def lines_without_clock(folder: JobFolder) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in folder.log.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "device_seconds"} for line in lines]


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


# --- damage


@pytest.fixture
def copied(one: Undisturbed, tmp_path: Path) -> JobFolder:
    shutil.copytree(one.folder.root, tmp_path / "job")
    return JobFolder(tmp_path / "job")


def test_a_job_with_other_inputs_is_refused_and_left_alone(one: Undisturbed, copied: JobFolder) -> None:
    other = replace(one.job, config=replace(one.job.config, learning_rate=0.5))
    before = copied.scalars.read_bytes()
    with pytest.raises(UserError, match="other inputs") as caught:
        train_job(other, copied)
    assert caught.value.where == str(copied.root)
    assert copied.scalars.read_bytes() == before
    assert not is_done(other, folder=copied)


def truncate_weights(weights: Path, _: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:-100])


def alter_weights(weights: Path, _: Path) -> None:
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))


def remove_weights(weights: Path, _: Path) -> None:
    weights.unlink()


def truncate_description(_: Path, description: Path) -> None:
    description.write_bytes(description.read_bytes()[:40])


def replace_description(_: Path, description: Path) -> None:
    description.write_text('{"update": 6}')


@pytest.mark.parametrize(
    "damage", [truncate_weights, alter_weights, remove_weights, truncate_description, replace_description]
)
def test_a_damaged_checkpoint_is_named_and_the_printed_fix_works(
    one: Undisturbed, copied: JobFolder, damage: Callable[[Path, Path], None]
) -> None:
    copied.done.unlink()
    weights, description = (copied.checkpoints / f"00000006.{ending}" for ending in ("safetensors", "json"))
    damage(weights, description)
    with pytest.raises(UserError) as caught:
        train_job(one.job, copied)
    assert caught.value.where == str(weights)
    assert "remove 00000006.json and 00000006.safetensors" in caught.value.fix
    weights.unlink(missing_ok=True)
    description.unlink()
    train_job(one.job, copied)
    assert_same_end(one.job, copied, one.folder)


def test_a_finished_job_without_its_last_checkpoint_is_not_done(one: Undisturbed, copied: JobFolder) -> None:
    for ending in ("safetensors", "json"):
        (copied.checkpoints / f"00000006.{ending}").unlink()
    assert not is_done(one.job, folder=copied)
    train_job(one.job, copied)
    assert is_done(one.job, folder=copied)
    assert_same_end(one.job, copied, one.folder)


def test_a_checkpoint_of_another_shape_is_refused(one: Undisturbed, copied: JobFolder) -> None:
    saved = checkpoint.load(copied.checkpoints, 6)
    tensors = saved.tensors | {"theta": saved.tensors["theta"][:-1]}
    checkpoint.save(copied.checkpoints, 6, tensors=tensors, meta=saved.meta)
    with pytest.raises(UserError, match=r"another shape: 'theta'") as caught:
        train_job(one.job, copied)
    assert caught.value.where.endswith("00000006.safetensors")


def test_a_log_that_ends_before_the_checkpoint_is_refused_and_the_fix_works(
    one: Undisturbed, copied: JobFolder
) -> None:
    contents = read(copied.scalars)
    copied.done.unlink()
    copied.scalars.write_bytes(copied.scalars.read_bytes()[: contents.good_bytes // 2])
    with pytest.raises(UserError, match="newest checkpoint is of update 6, but the scalar log ends at") as caught:
        train_job(one.job, copied)
    assert caught.value.where == str(copied.scalars)
    last = max(record.update for record in read(copied.scalars).records)
    assert f"remove every checkpoint above {last}" in caught.value.fix
    for path in copied.checkpoints.iterdir():
        if int(path.stem) > last:
            path.unlink()
    train_job(one.job, copied)
    assert_same_end(one.job, copied, one.folder)


def test_a_text_that_changed_under_a_trained_decoder_is_refused(jobs: dict[str, Undisturbed], tmp_path: Path) -> None:
    """The digest of each batch is in the log; the manifest's fingerprint would not see a changed shard."""
    one, folder = jobs["seed"], JobFolder(tmp_path / "job")
    data = tmp_path / "data"
    shutil.copytree(one.job.shards.folder.parent, data)
    stream = data / "train" / "bytes-00000.bin"
    stream.write_bytes(stream.read_bytes().swapcase())
    changed = replace(one.job, shards=Corpus.open(data).train)
    killed(one.job, folder, at=find(one.writes, "pwrite", "scalars.log", nth=4), when="before")
    with pytest.raises(UserError, match="not the one that update 1 was made on") as caught:
        train_job(changed, folder)
    assert caught.value.where == str(data / "train")
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)


def test_leftovers_of_interrupted_writes_are_swept(one: Undisturbed, copied: JobFolder) -> None:
    (copied.checkpoints / "00000009.safetensors").write_bytes(b"half")
    (copied.checkpoints / "00000009.json.tmp").write_bytes(b"{")
    train_job(one.job, copied)
    assert_same_end(one.job, copied, one.folder)
    assert sorted(int(path.stem) for path in copied.checkpoints.iterdir()) == [0, 0, 3, 3, 6, 6]


# --- a full disk


def limited(job: ExpertJob, folder: JobFolder, *, max_file_bytes: int) -> int:
    """Train in a child whose files cannot grow past a size; returns the errno it ended with."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
        try:
            train_job(job, folder)
        except OSError as error:
            os._exit(error.errno or 255)

    return os.waitstatus_to_exitcode(in_child(work))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_log_that_cannot_grow_loses_nothing(one: Undisturbed, share: float, tmp_path: Path) -> None:
    """The limit bites in the scalar log; small checkpoints would pass, so the job starts from a copied one."""
    folder = JobFolder(tmp_path / "job")
    limit = int(share * one.folder.scalars.stat().st_size)
    shutil.copytree(one.folder.root, folder.root)
    folder.scalars.unlink()
    folder.done.unlink()
    folder.log.unlink()
    for path in folder.checkpoints.iterdir():
        if int(path.stem) > 0:
            path.unlink()
    assert limited(one.job, folder, max_file_bytes=limit) == errno.EFBIG
    assert read(folder.scalars).torn_bytes == 0
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)
    assert lines_without_clock(folder) == lines_without_clock(one.folder)


def test_a_checkpoint_that_cannot_be_written_loses_nothing(one: Undisturbed, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    assert limited(one.job, folder, max_file_bytes=20_000) == errno.EFBIG
    assert checkpoint.list_updates(folder.checkpoints) == []
    assert list(folder.checkpoints.iterdir()) == []
    train_job(one.job, folder)
    assert_same_end(one.job, folder, one.folder)
    assert_same_records(folder, one.folder)
