"""Is damage in a job's folder refused with a fix that works, and does a full disk lose nothing?"""

import errno
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kills import Undisturbed, find, in_child, killed
from thinwire.base.errors import UserError
from thinwire.data.corpus import Corpus
from thinwire.runs import checkpoint
from thinwire.runs.layout import JobFolder
from thinwire.soma.expert_job import ExpertJob
from thinwire.soma.expert_training import is_done
from thinwire.soma.scalar_log import read
from tiny_runs import assert_same_end, assert_same_records, lines_without_clock, train_job


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
