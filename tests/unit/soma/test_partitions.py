"""Do the control partitions divide windows as they say, and does a whole run on each train, score and generate?"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from thinwire.api.verbs import evaluate
from thinwire.base.errors import ConfigError
from thinwire.base.progress import Silent
from thinwire.config.fingerprint import as_record, fingerprint, from_record
from thinwire.data.corpus import Corpus
from thinwire.experiments.registry import PRESETS
from thinwire.soma.compute import Compute
from thinwire.soma.config import ClusterConfig, ExpertStart, Partition, SomaConfig, check
from thinwire.soma.ensemble import load_ensemble
from thinwire.soma.model import initial_expert
from thinwire.soma.partitions import random_shards
from thinwire.soma.replay import rebuild
from thinwire.soma.run import SEED_NAME
from tiny_runs import CONFIG, start_run, train_in_process, train_job


@pytest.mark.parametrize(("num_windows", "num_shards"), [(17, 4), (16, 4), (3, 3), (1000, 7)])
def test_random_shards_are_disjoint_equal_and_addressed(num_windows: int, num_shards: int) -> None:
    shards = random_shards(num_windows, num_shards=num_shards, seed=3)
    sizes = np.bincount(shards, minlength=num_shards)
    assert sizes.sum() == num_windows
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(shards, random_shards(num_windows, num_shards=num_shards, seed=3))
    if num_windows == 1000:
        assert np.any(shards != random_shards(num_windows, num_shards=num_shards, seed=4))
        assert np.mean(np.diff(shards) == 0) < 0.3  # not the stream cut into pieces


@pytest.mark.parametrize("partition", ["random", "iid"])
def test_a_whole_run_without_a_semantic_router(partition: Partition, tiny_data: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, clusters=replace(CONFIG.clusters, partition=partition), start="cold")
    run = train_in_process(config, data=tiny_data, out=tmp_path / "run")
    total = len(run.assignment())
    members = [run.expert_members(expert) for expert in range(2)]
    own = [np.concatenate([one.train, one.validation]) for one in members]
    if partition == "iid":
        assert all(sorted(windows) == list(range(total)) for windows in own)
        assert run.router().cluster_sizes.tolist() == [total, total]
    else:
        assert sorted(np.concatenate(own)) == list(range(total))
        assert run.router().cluster_sizes.tolist() == [len(windows) for windows in own]
    held_out = {int(window) for one in members for window in one.validation}
    assert not held_out & {int(window) for window in run.seed_members().train}
    routes = load_ensemble(run.folder.root).route([b"the harbour and the anchor of the sailor", b""], active_experts=2)
    np.testing.assert_array_equal(np.sort(routes.experts, axis=1), [[0, 1], [0, 1]])
    np.testing.assert_allclose(routes.weights, 0.5, atol=0.01)
    record = json.loads((run.folder.results / "test.json").read_text())
    assert evaluate(run.folder.root)["loss_nats_per_byte"] == record["loss_nats_per_byte"]
    job = run.job("1", corpus=Corpus.open(tiny_data))
    replayed = rebuild(job, run=run, name="1", update=6, compute=Compute(), progress=Silent())
    assert replayed.agrees


@pytest.mark.parametrize("start", ["warm", "cold", "frozen_random_head"])
def test_experts_start_where_they_are_told_to(start: ExpertStart, tiny_data: Path, tmp_path: Path) -> None:
    run = start_run(replace(CONFIG, start=start), data=tiny_data, out=tmp_path / "run")
    corpus = Corpus.open(tiny_data)
    train_job(run.job(SEED_NAME, corpus=corpus), run.job_folder(SEED_NAME))
    seed, random = run.final_expert(SEED_NAME), initial_expert(run.shape, seed=CONFIG.seed)
    job = run.job("0", corpus=corpus)
    assert torch.equal(job.start.theta, seed.theta if start == "warm" else random.theta)
    assert torch.equal(job.start.decoder, random.decoder if start == "frozen_random_head" else seed.decoder)
    assert not torch.equal(seed.theta, random.theta)
    assert not torch.equal(seed.decoder, random.decoder)


def test_a_random_head_must_be_frozen() -> None:
    wrong = replace(CONFIG, start="frozen_random_head", experts=replace(CONFIG.experts, decoder="trained"))
    with pytest.raises(ConfigError, match=r"experts\.decoder = trained: must be frozen"):
        check(wrong, where="here")


def test_every_expert_trains_its_own_head(tiny_data: Path, tmp_path: Path) -> None:
    """The wide controls (Table 2): Eq. (7) moves each expert's E; no two share it, and scores use each expert's own."""
    for name in ("soma-wide-n1", "soma-wide-n2", "soma-wide-n8"):
        wide = PRESETS[name]()
        assert isinstance(wide, SomaConfig)
        assert wide.experts.decoder == "trained"
    config = replace(CONFIG, experts=replace(CONFIG.experts, decoder="trained"))
    run = train_in_process(config, data=tiny_data, out=tmp_path / "run")
    seed, heads = run.final_expert(SEED_NAME).decoder, [run.final_expert(str(expert)).decoder for expert in range(2)]
    assert not any(torch.equal(head, seed) for head in heads)
    assert not torch.equal(*heads)
    assert torch.equal(load_ensemble(run.folder.root).decoder, torch.stack(heads))
    replayed = rebuild(
        run.job("0", corpus=Corpus.open(tiny_data)), run=run, name="0", update=6, compute=Compute(), progress=Silent()
    )
    assert replayed.agrees


def test_records_made_before_these_settings_keep_their_fingerprint() -> None:
    """A setting at its default is left out, so a run recorded without it is the same run."""
    record = as_record(CONFIG)
    assert "partition" not in record["clusters"]
    assert "start" not in record
    assert from_record(SomaConfig, record) == CONFIG
    other = replace(CONFIG, start="cold", clusters=replace(CONFIG.clusters, partition="iid"))
    assert from_record(SomaConfig, as_record(other)) == other
    prints = {fingerprint(ClusterConfig(partition=partition)) for partition in ("semantic", "random", "iid")}
    assert len(prints) == 3
    for make in PRESETS.values():
        assert from_record(type(make()), as_record(make())) == make()
