"""Are the controls what they say?  Summed losses (Fig. 4) and backpropagation (Table 5), in whole runs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kills import Writes, in_child
from thinwire.base.errors import ConfigError
from thinwire.base.progress import Silent
from thinwire.data.corpus import Corpus
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.runs.layout import JobFolder
from thinwire.soma import recipe
from thinwire.soma.bptt import batch_gradient
from thinwire.soma.compute import Compute
from thinwire.soma.config import SomaConfig, check
from thinwire.soma.expert_job import ExpertJob, addresses_of
from thinwire.soma.expert_training import Member, train_together
from thinwire.soma.job_checkpoint import load_state
from thinwire.soma.model import Expert, exact_gradient
from thinwire.soma.replay import rebuild
from thinwire.soma.run import SomaRun
from thinwire.soma.scalar_log import UpdateRecord, read
from tiny_runs import (
    CONFIG,
    JOB,
    NoTask,
    assert_same_end,
    lines_without_clock,
    silent_voice,
    start_run,
    train_in_process,
    train_job,
)

SUMMED = replace(CONFIG, losses="summed")
BPTT = replace(CONFIG, experts=replace(JOB, estimator="bptt", accumulation=2, learning_rate=1e-2))


def experts_of(config: SomaConfig, *, data: Path, out: Path) -> list[ExpertJob]:
    """The experts' jobs of a run whose seed is trained."""
    run, corpus = start_run(config, data=data, out=out), Corpus.open(data)
    train_job(run.job("seed", corpus=corpus), run.job_folder("seed"))
    return [run.job(str(index), corpus=corpus) for index in range(run.num_experts)]


def train_members(jobs: list[ExpertJob], folders: list[JobFolder], *, threads: int = 1) -> None:
    train_together(
        [Member(*pair) for pair in zip(jobs, folders, strict=True)],
        compute=Compute("auto", threads),
        task=NoTask(),
        say=lambda _: None,
        should_stop=lambda: False,
    )


def folders_in(root: Path, jobs: list[ExpertJob]) -> list[JobFolder]:
    return [JobFolder(root / str(job.expert)) for job in jobs]


def updates_of(folder: JobFolder) -> list[UpdateRecord]:
    return [record for record in read(folder.scalars).records if isinstance(record, UpdateRecord)]


def test_summed_losses_of_one_expert_are_its_own_bit_for_bit(tiny_data: Path, tmp_path: Path) -> None:
    clusters, routing = replace(CONFIG.clusters, num_clusters=1), replace(CONFIG.routing, active_experts=1)
    base = replace(CONFIG, clusters=clusters, routing=routing)
    jobs = [
        experts_of(config, data=tiny_data, out=tmp_path / name)
        for name, config in (("own", base), ("sum", replace(base, losses="summed")))
    ]
    assert jobs[0][0].fingerprint == jobs[1][0].fingerprint
    one, other = JobFolder(tmp_path / "a"), JobFolder(tmp_path / "b")
    train_job(jobs[0][0], one)
    train_members(jobs[1], [other])
    assert_same_end(jobs[0][0], one, other)


def test_summed_and_independent_experts_share_data_and_probes_at_every_update(tiny_data: Path, tmp_path: Path) -> None:
    independent = experts_of(CONFIG, data=tiny_data, out=tmp_path / "independent")
    summed = experts_of(SUMMED, data=tiny_data, out=tmp_path / "summed")
    apart, together = folders_in(tmp_path / "a", independent), folders_in(tmp_path / "b", summed)
    for job, folder in zip(independent, apart, strict=True):
        train_job(job, folder)
    train_members(summed, together)
    for one, other, a, b in zip(independent, summed, apart, together, strict=True):
        first, second = updates_of(a), updates_of(b)
        assert [r.batch_digest for r in first] == [r.batch_digest for r in second]
        assert [addresses_of(one, r.update) for r in first] == [addresses_of(other, r.update) for r in second]
        assert one.fingerprint != other.fingerprint
    # From equal weights the sum's difference is the sum of the differences; it moves every expert.
    own = [updates_of(folder)[0].differences for folder in apart]
    for folder in together:
        np.testing.assert_allclose(updates_of(folder)[0].differences, own[0] + own[1], rtol=0, atol=1e-12)
    assert np.abs(own[0] - own[1]).max() > 1e-6


def test_summed_experts_follow_their_mean_validation_loss(tiny_data: Path, tmp_path: Path) -> None:
    jobs = experts_of(SUMMED, data=tiny_data, out=tmp_path / "run")
    folders = folders_in(tmp_path / "jobs", jobs)
    train_members(jobs, folders)
    states = [load_state(job, folder=folder, update=6) for job, folder in zip(jobs, folders, strict=True)]
    assert states[0].plateau == states[1].plateau
    assert states[0].plateau.halvings >= 1
    validations = [[r for r in read(folder.scalars).records if not isinstance(r, UpdateRecord)] for folder in folders]
    assert validations[0] == validations[1]


@pytest.mark.parametrize("moment", range(8))
def test_a_kill_of_summed_experts_changes_no_bit(moment: int, tiny_data: Path, tmp_path: Path) -> None:
    """At a seeded write: one expert's log or checkpoint may be ahead of the other's."""
    jobs = experts_of(SUMMED, data=tiny_data, out=tmp_path / "run")
    whole, resumed = folders_in(tmp_path / "whole", jobs), folders_in(tmp_path / "resumed", jobs)
    counted = Writes()
    with pytest.MonkeyPatch.context() as patch:
        counted.install(patch.setattr)
        train_members(jobs, whole)
    at = random.Random(moment).randrange(len(counted.seen))

    def die() -> None:
        Writes(at, random.Random(moment).choice(["before", "middle", "after"])).install(setattr)  # type: ignore[arg-type]
        train_members(jobs, resumed)

    in_child(die)
    train_members(jobs, resumed, threads=2)
    for job, one, other in zip(jobs, resumed, whole, strict=True):
        assert_same_end(job, one, other)
        assert lines_without_clock(one) == lines_without_clock(other)


def test_a_whole_summed_run_in_worker_processes(tiny_data: Path, tmp_path: Path) -> None:
    record = recipe.train(SUMMED, data=tiny_data, out=tmp_path / "run", voice=silent_voice())
    assert record["num_experts"] == 2
    run, corpus = SomaRun.open(tmp_path / "run"), Corpus.open(tiny_data)
    for name in ("0", "1"):
        job = run.job(name, corpus=corpus)
        result = rebuild(job, run=run, name=name, update=6, compute=Compute("auto", 2), progress=Silent())
        assert result.agrees is True
    again = recipe.train(SUMMED, data=tiny_data, out=tmp_path / "run", voice=silent_voice())
    assert again == record


@pytest.mark.parametrize("shape", [ExpertShape(width=6, embed_width=6), ExpertShape(width=5, depth=1, embed_width=3)])
def test_backpropagation_through_torchs_lstm_is_the_exact_gradient(shape: ExpertShape) -> None:
    generator = np.random.default_rng(1)
    theta = torch.from_numpy(0.5 * generator.standard_normal(shape.num_parameters))
    expert = Expert(theta, torch.from_numpy(generator.standard_normal((256, shape.embed_width))))
    windows = torch.from_numpy(generator.integers(0, 256, (7, 12), dtype=np.uint8))
    exact = exact_gradient(expert, shape=shape, windows=windows)
    found = batch_gradient(expert, shape=shape, batches=[windows[:3], windows[3:]])
    assert found.loss_nats_per_byte == pytest.approx(exact.loss_nats_per_byte, rel=1e-13)
    torch.testing.assert_close(found.theta, exact.theta, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.decoder, exact.decoder, rtol=1e-10, atol=1e-12)


def test_chunks_of_windows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ExpertShape(width=4, embed_width=4)
    expert = Expert(torch.full((shape.num_parameters,), 0.3).double(), torch.eye(256, 4).double())
    windows = torch.arange(60, dtype=torch.uint8).reshape(6, 10)
    whole = batch_gradient(expert, shape=shape, batches=[windows])
    monkeypatch.setattr("thinwire.soma.bptt.windows_per_chunk", lambda *_, **__: 4)
    parts = batch_gradient(expert, shape=shape, batches=[windows])
    torch.testing.assert_close(parts.theta, whole.theta, rtol=1e-12, atol=1e-14)
    assert parts.loss_nats_per_byte == pytest.approx(whole.loss_nats_per_byte, rel=1e-14)


@pytest.mark.parametrize("tied", ["decoder_path", "full"])
def test_a_run_that_backpropagates_trains_resumes_and_replays(tied: Any, tiny_data: Path, tmp_path: Path) -> None:
    experts = replace(BPTT.experts, decoder="trained", tied_gradient=tied, updates=30, validate_every=5)
    run = train_in_process(replace(BPTT, experts=experts), data=tiny_data, out=tmp_path / "run")
    record = json.loads((run.folder.results / "test.json").read_text())
    assert record["loss_nats_per_byte"] < record["seed_loss_nats_per_byte"] - 0.05
    job, folder = run.job("0", corpus=Corpus.open(tiny_data)), run.job_folder("0")
    line = [one for one in lines_without_clock(folder) if one["kind"] == "update"][-1]
    assert line["byte_forwards"] == 30 * 3 * 2 * JOB.batch * JOB.window_bytes
    assert "derivative_rms" not in line
    result = rebuild(job, run=run, name="0", update=30, compute=Compute(), progress=Silent())
    assert result.agrees is True
    again, counted = JobFolder(tmp_path / "again"), Writes(kill_at=40)

    def die() -> None:
        counted.install(setattr)
        train_job(job, again)

    in_child(die)
    train_job(job, again)
    assert_same_end(job, again, folder)


def test_the_full_tied_gradient_is_another_than_the_decoders_own_path(tiny_data: Path, tmp_path: Path) -> None:
    ends = []
    for tied in ("decoder_path", "full"):
        experts = replace(BPTT.experts, decoder="trained", tied_gradient=tied)
        job = experts_of(replace(BPTT, experts=experts), data=tiny_data, out=tmp_path / tied)[0]  # type: ignore[arg-type]
        folder = JobFolder(tmp_path / f"job-{tied}")
        train_job(job, folder)
        ends.append(load_state(job, folder=folder, update=job.config.updates).expert)
    assert not torch.equal(ends[0].decoder, ends[1].decoder)


def test_a_continuation_starts_from_given_moments(tiny_data: Path, tmp_path: Path) -> None:
    """Six updates at once, or three and then three more from the weights and moments they left (Fig. 4)."""
    base = experts_of(CONFIG, data=tiny_data, out=tmp_path / "run")[0]
    folder = JobFolder(tmp_path / "first")
    train_job(base, folder)
    half = load_state(base, folder=folder, update=3)
    fresh = replace(base, start=half.expert)
    continued = replace(fresh, moments=half.body)
    assert len({base.fingerprint, fresh.fingerprint, continued.fingerprint}) == 3
    ends = []
    for name, job in (("fresh", fresh), ("continued", continued)):
        train_job(job, JobFolder(tmp_path / name))
        ends.append(load_state(job, folder=JobFolder(tmp_path / name), update=6))
    assert not torch.equal(ends[0].expert.theta, ends[1].expert.theta)
    assert ends[1].body.updates == half.body.updates + 6


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (replace(SUMMED, experts=replace(JOB, estimator="bptt")), "losses = summed"),
        (replace(CONFIG, experts=replace(JOB, tied_gradient="full")), "tied_gradient"),
        (replace(BPTT, experts=replace(BPTT.experts, tied_gradient="full")), "decoder = trained"),
    ],
)
def test_settings_that_do_not_go_together_are_named(config: SomaConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(config, where="here")
