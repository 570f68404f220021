"""Does the scalar log alone give the weights of any update, bit for bit?"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_runs
from thinwire.base.errors import UserError
from thinwire.base.progress import Silent
from thinwire.data.corpus import Corpus
from thinwire.runs import checkpoint
from thinwire.soma import job_checkpoint
from thinwire.soma.compute import Compute
from thinwire.soma.replay import rebuild, replay
from thinwire.soma.run import SomaRun

UPDATES = [0, 2, 4, 5]


@pytest.mark.parametrize("difference", ["central", "one_sided"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_checkpoint_is_rebuilt_bit_for_bit(
    difference: str, accumulation: int, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed run, whose decoder trains, and an expert; replayed with another number of threads than trained with."""
    monkeypatch.setattr(job_checkpoint, "CHECKPOINTS_KEPT", 100)
    base = replace(tiny_runs.JOB, updates=5, checkpoint_every=2, difference=difference, accumulation=accumulation)
    config = replace(tiny_runs.CONFIG, seed_run=replace(base, decoder="trained"), experts=base)
    run, corpus = tiny_runs.start_run(config, data=tiny_data, out=tmp_path / "run"), Corpus.open(tiny_data)
    for name in ("seed", "1"):
        job, folder = run.job(name, corpus=corpus), run.job_folder(name)
        tiny_runs.train_job(job, folder)
        assert checkpoint.list_updates(folder.checkpoints) == UPDATES
        for update in UPDATES:
            for threads in (1, 2):
                compute = Compute("auto", threads)
                result = rebuild(job, run=run, name=name, update=update, compute=compute, progress=Silent())
                assert result.agrees is True
        assert torch.equal(job.start.decoder, result.expert.decoder) == (name == "1")
        assert not torch.equal(job.start.theta, result.expert.theta)


def replayed(root: Path, out: Path, *, update: int, jobs: list[str]) -> list[bool | None]:
    results = replay(root, update=update, out=out, jobs=jobs, compute=Compute(), progress=Silent())
    return [result.agrees for result in results]


def test_rebuilt_weights_are_written_beside_the_run(tiny_run: Path, tmp_path: Path) -> None:
    assert replayed(tiny_run, tmp_path, update=6, jobs=["seed", "0", "1"]) == [True, True, True]
    for name in ("seed", "0", "1"):
        there = SomaRun.open(tiny_run).final_expert(name)
        rebuilt = checkpoint.load(tmp_path / name / "checkpoints", 6).tensors
        assert torch.equal(rebuilt["theta"], there.theta)
        assert torch.equal(rebuilt["decoder"], there.decoder)


def test_an_update_without_a_checkpoint_is_rebuilt_unjudged(tiny_run: Path, tmp_path: Path) -> None:
    assert replayed(tiny_run, tmp_path, update=4, jobs=["0"]) == [None]
    assert checkpoint.list_updates(tmp_path / "0" / "checkpoints") == [4]


def test_a_checkpoint_that_differs_is_told(tiny_run: Path, tmp_path: Path) -> None:
    root = tiny_runs.copy_of(tiny_run, tmp_path / "run")
    folder = SomaRun.open(root).job_folder("1").checkpoints
    saved = checkpoint.load(folder, 6)
    theta = saved.tensors["theta"].clone()
    theta[17] += 1e-6
    checkpoint.save(folder, 6, tensors=saved.tensors | {"theta": theta}, meta=saved.meta)
    assert replayed(root, tmp_path / "out", update=6, jobs=["0", "1"]) == [True, False]


@pytest.mark.parametrize("update", [-1, 7])
def test_an_update_that_is_not_in_the_log_is_refused(tiny_run: Path, tmp_path: Path, update: int) -> None:
    with pytest.raises(UserError, match=f"update {update} is not in it") as caught:
        replayed(tiny_run, tmp_path, update=update, jobs=["0"])
    assert "choose 0 to 6" in caught.value.fix


def test_replay_does_not_need_the_first_checkpoint(tiny_run: Path, tmp_path: Path) -> None:
    root = tiny_runs.copy_of(tiny_run, tmp_path / "run")
    for path in SomaRun.open(root).job_folder("0").checkpoints.glob("00000000.*"):
        path.unlink()
    assert replayed(root, tmp_path / "out", update=6, jobs=["0"]) == [True]


def damage_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def take_another_expert(path: Path) -> None:
    shutil.copy(path.parent.parent / "001" / "scalars.log", path)


@pytest.mark.parametrize(("damage", "message"), [(damage_middle, "damaged"), (take_another_expert, "other inputs")])
def test_a_damaged_or_foreign_log_is_refused(
    tiny_run: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    root = tiny_runs.copy_of(tiny_run, tmp_path / "run")
    scalars = SomaRun.open(root).job_folder("0").scalars
    damage(scalars)
    with pytest.raises(UserError, match=message) as caught:
        replayed(root, tmp_path / "out", update=6, jobs=["0"])
    assert str(scalars) in caught.value.where
    assert not (tmp_path / "out").exists()


def test_rebuilt_weights_never_enter_the_run(tiny_run: Path, tmp_path: Path) -> None:
    root = tiny_runs.copy_of(tiny_run, tmp_path / "run")
    with pytest.raises(UserError, match="among the run's own"):
        replayed(root, root, update=4, jobs=["seed"])
    assert checkpoint.list_updates(SomaRun.open(root).job_folder("seed").checkpoints) == [0, 3, 6]


def test_a_job_that_has_not_begun_is_its_start(tiny_data: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    run = tiny_runs.start_run(tiny_runs.CONFIG, data=tiny_data, out=root)
    result = replayed(root, tmp_path / "out", update=0, jobs=["seed"])
    job = run.job("seed", corpus=Corpus.open(tiny_data))
    assert result == [None]
    assert torch.equal(checkpoint.load(tmp_path / "out" / "seed" / "checkpoints", 0).tensors["theta"], job.start.theta)
