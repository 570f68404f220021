"""The arithmetic of the paper's setting comes out: d = 2,048, n = 132,000, 8 ranks, 8 layers, bfloat16."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thinwire.base.errors import UserError
from thinwire.comm.link import Link
from thinwire.experiments.subspaces import subspaces_800m
from thinwire.plan.step_time import link_seconds, measured_step_seconds, step_flops, step_time, tokens_per_step
from thinwire.subspaces.config import SubspacesConfig, SyncConfig, check
from thinwire.subspaces.schedule import Phase
from thinwire.subspaces.traffic import num_parameters, step_traffic

GPT2 = 50_257
NODE, PAIR, FABRIC = Link(3e8, "node"), Link(3e8, "pair"), Link(1e11, "node")
LAST_PLAIN = replace(subspaces_800m(), codec=replace(subspaces_800m().codec, uncompressed_layers=(7,)))


def one_layer(config: SubspacesConfig) -> SubspacesConfig:
    return replace(config, model=replace(config.model, layers=1), codec=replace(config.codec, uncompressed_layers=()))


@pytest.mark.parametrize(
    ("phase", "megabytes", "node", "pair", "fabric"),
    [("plain", 946, 25.2, 3.60, 0.076), ("compressed", 33.0, 0.88, 0.126, 0.0026)],
)
def test_one_layer_and_pass(phase: Phase, megabytes: float, node: float, pair: float, fabric: float) -> None:
    traffic = step_traffic(one_layer(subspaces_800m()), vocab_size=GPT2, phase=phase, exchange="all_gather")
    for sent in (traffic.kv_forward, traffic.kv_backward):
        assert sent.sum(axis=0).max() / 1e6 == pytest.approx(megabytes, rel=2e-3)
        assert link_seconds(sent, link=NODE) == pytest.approx(node, rel=5e-3)
        assert link_seconds(sent, link=PAIR) == pytest.approx(pair, rel=3e-3)
        assert link_seconds(sent, link=FABRIC) == pytest.approx(fabric, rel=2e-2)


@pytest.mark.parametrize(
    ("config", "phase", "gigabytes", "node", "pair", "fabric"),
    [
        (subspaces_800m(), "plain", 15.1, 404, 57.7, 1.2),
        (subspaces_800m(), "compressed", 0.529, 14.1, 2.0, 0.042),
        (LAST_PLAIN, "compressed", 2.36, 62.8, 9.0, 0.19),
    ],
)
def test_a_step_of_two_passes(
    config: SubspacesConfig, phase: Phase, gigabytes: float, node: float, pair: float, fabric: float
) -> None:
    traffic = step_traffic(config, vocab_size=GPT2, phase=phase, exchange="all_gather")
    assert sum(part.sum(axis=0) for part in traffic.exchanges()).max() / 1e9 == pytest.approx(gigabytes, rel=3e-3)
    for link, seconds in ((NODE, node), (PAIR, pair), (FABRIC, fabric)):
        assert step_time(config, traffic, link=link, phase=phase).exchange == pytest.approx(seconds, rel=2e-2)


def test_summing_gradients_each_step_is_hopeless_and_averages_are_not() -> None:
    config = subspaces_800m()
    assert num_parameters(config, vocab_size=GPT2) == 793_090_048
    traffic = step_traffic(config, vocab_size=GPT2, phase="plain")
    assert link_seconds(traffic.sync, link=NODE) == pytest.approx(74.0, abs=0.1)
    assert step_time(config, traffic, link=NODE, phase="plain").sync == pytest.approx(0.37, abs=0.001)
    each_step = replace(config, sync=SyncConfig(every=1, wire="bfloat16"))
    assert step_time(
        each_step, step_traffic(each_step, vocab_size=GPT2, phase="plain"), link=NODE, phase="plain"
    ).sync == pytest.approx(74.0, abs=0.1)


def test_the_papers_speeds_fit_a_link_per_pair_with_everything_compressed() -> None:
    config, compute = subspaces_800m(), 132_000 / 56_000
    speeds = {}
    for phase in ("plain", "compressed"):
        traffic = step_traffic(config, vocab_size=GPT2, phase=phase, exchange="all_gather")
        for link in (NODE, PAIR):
            time = step_time(config, traffic, link=link, phase=phase, compute_seconds=compute)
            speeds[phase, link.per] = tokens_per_step(config) / time.overlapped
    assert speeds["plain", "pair"] == pytest.approx(2_290, rel=5e-3)  # the paper: 2.7K
    assert speeds["compressed", "pair"] == pytest.approx(56_000, rel=1e-6)  # the paper: 55K
    assert speeds["plain", "node"] == pytest.approx(327, rel=5e-3)
    assert speeds["compressed", "node"] == pytest.approx(9_130, rel=5e-3)
    last = step_traffic(LAST_PLAIN, vocab_size=GPT2, exchange="all_gather")
    time = step_time(LAST_PLAIN, last, link=PAIR, compute_seconds=compute)
    assert tokens_per_step(config) / time.overlapped == pytest.approx(14_600, rel=5e-3)


def test_operations_of_the_papers_step_are_plausible_for_eight_a100() -> None:
    flops = step_flops(subspaces_800m(), vocab_size=GPT2)
    assert flops == pytest.approx(2.26e15, rel=5e-3)
    assert flops / 8 / (132_000 / 56_000) / 312e12 == pytest.approx(0.384, abs=0.005)


def test_overlap_hides_the_exchange_but_not_summed_gradients() -> None:
    config = subspaces_800m()
    traffic = step_traffic(config, vocab_size=GPT2)
    seldom = step_time(config, traffic, link=PAIR, compute_seconds=10.0)
    assert seldom.overlapped == 10.0
    assert seldom.serial == pytest.approx(10.0 + seldom.exchange + seldom.sync)
    each = replace(config, sync=SyncConfig(every=1, wire="bfloat16"))
    summed = step_time(each, step_traffic(each, vocab_size=GPT2), link=PAIR, compute_seconds=10.0)
    assert summed.overlapped == pytest.approx(10.0 + summed.sync)


def test_a_delay_counts_once_a_layer_and_direction_and_again_for_theta() -> None:
    paper = subspaces_800m()
    handing_on = replace(paper.codec, theta_source="previous_chunk")
    config = replace(paper, sequence=replace(paper.sequence, accumulation=3), codec=handing_on)
    late = Link(3e8, "pair", delay_seconds=0.1)
    for phase, waits in (("plain", 16), ("compressed", 32), ("folded", 16)):
        traffic = step_traffic(config, vocab_size=GPT2, phase=phase)
        without = step_time(config, traffic, link=PAIR, phase=phase).exchange
        assert step_time(config, traffic, link=late, phase=phase).exchange - without == pytest.approx(0.1 * 3 * waits)
    alone = step_traffic(config, vocab_size=GPT2, num_ranks=1)
    assert step_time(config, alone, link=late).exchange == 0.0


def test_the_busiest_direction_decides() -> None:
    sent = np.array([[0, 5, 7], [1, 0, 0], [2, 0, 0]])
    assert link_seconds(sent, link=Link(8.0, "node")) == 12.0
    assert link_seconds(sent.T.copy(), link=Link(8.0, "node")) == 12.0
    assert link_seconds(sent, link=Link(8.0, "pair")) == 7.0


def test_only_needed_chunks_save_bytes_but_not_the_busiest_nodes_pass() -> None:
    full, needed = (
        step_traffic(subspaces_800m(), vocab_size=GPT2, phase="plain", exchange=exchange)
        for exchange in ("all_gather", "needed")
    )
    assert needed.exchange_bytes == 0.75 * full.exchange_bytes
    assert link_seconds(needed.kv_forward, link=NODE) == link_seconds(full.kv_forward, link=NODE)


def test_steps_are_measured_outside_the_warm_up(tmp_path: Path) -> None:
    steps = [("warm-up", 9.0), ("compressed", 1.0), ("compressed", 2.0), ("folded", 4.0)]
    lines = [{"kind": "step", "step": n, "phase": phase, "seconds": s} for n, (phase, s) in enumerate(steps)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "event"}]))
    assert measured_step_seconds(tmp_path / "log.jsonl") == 2.0
    assert measured_step_seconds(tmp_path / "elsewhere") == 0.0


@pytest.mark.parametrize("seconds", ['"abc"', "null", "[1.0]", "true", "-1.0", "NaN", "Infinity"])
def test_seconds_that_are_no_time_are_refused(seconds: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"kind": "step", "step": 1, "phase": "plain", "seconds": 1.0}\n')
    with log.open("a") as file:
        file.write(f'{{"kind": "step", "step": 2, "phase": "plain", "seconds": {seconds}}}\n')
    with pytest.raises(UserError, match="a record of an update is damaged: seconds = ") as caught:
        measured_step_seconds(log)
    assert caught.value.where == str(log)


def test_the_papers_setting_is_a_valid_configuration() -> None:
    check(subspaces_800m(), where="test")
