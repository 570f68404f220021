"""What does sharding buy at inference?  Throughput at one total size, routing included (Figure 6, Tables 12 and 13).

Speed does not depend on what was learnt, so it is measured at the paper's widths with random weights and a router
fitted on the item's text. Loss against training time comes from the trained runs of one total size (``soma_sizes``).
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from thinwire.base.files import read_json
from thinwire.base.seeds import numpy_generator, stream_key
from thinwire.data.corpus import Corpus
from thinwire.data.windows import document_windows, num_windows
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.report.collect import collect_runs
from thinwire.report.facts import aggregate_curve
from thinwire.report.records import Run
from thinwire.reproduction.item import Findings, Item, Panel, Scale, Series, Verdict
from thinwire.reproduction.soma_sizes import EXPERTS as TRAINED
from thinwire.reproduction.soma_sizes import size_run, size_run_name
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.clusters import fit_router
from thinwire.soma.config import ClusterConfig, DecoderMode
from thinwire.soma.ensemble import Ensemble
from thinwire.soma.equal_size import ensemble_size
from thinwire.soma.model import initial_expert
from thinwire.soma.partitions import blind_router
from thinwire.soma.router import Router
from thinwire.soma.throughput import Rounds, measure_speed

ROUTED = 4
SMALLEST_TO_JUDGE = 8_000_000
"""The paper's total size: at smaller ones routing, which does not shrink, takes a larger part."""


class Case(NamedTuple):
    """An ensemble to time: N experts of a width; windows scored in a call, the more the more experts share them."""

    num_experts: int
    width: int
    windows: int


CASES: dict[Scale, tuple[Case, ...]] = {
    "smoke": (Case(1, 48, 16), Case(2, 32, 16), Case(8, 16, 16), Case(16, 11, 64)),
    "cpu": (Case(1, 509, 48), Case(2, 361, 48), Case(8, 181, 48), Case(256, 32, 2048)),
    "paper": (Case(1, 509, 768), Case(2, 361, 768), Case(8, 181, 1024), Case(256, 32, 4096)),
}
WINDOW_BYTES: dict[Scale, int] = {"smoke": 128, "cpu": 1024, "paper": 1024}
REPEATS: dict[Scale, int] = {"smoke": 2, "cpu": 3, "paper": 7}


def find_inference(place: Workplace) -> Findings:
    rows = []
    for case in CASES[place.scale]:
        inputs = ["inference", case._asdict(), REPEATS[place.scale], WINDOW_BYTES[place.scale]]
        rows.append(place.part(f"n{case.num_experts}", inputs=inputs, compute=partial(_speed, place, case)))
    trained = [_trained(place, num_experts) for num_experts in TRAINED]
    words = ", ".join(f"N={row['num_experts']} {row['tokens_per_s'] / 1e3:,.1f}k" for row in rows)
    shares = ", ".join(f"{row['routing_share']:.2%} at N={row['num_experts']}" for row in rows if row["routes"])
    losses = ", ".join(f"N={run['num_experts']} {run['test_loss_nats_per_byte']:.3f}" for run in trained)
    return Findings(
        rows=[*rows, *({key: value for key, value in run.items() if key != "curve"} for run in trained)],
        ours=f"scored bytes/s: {words}; routing {shares} of the time; test losses of the trained runs: {losses}",
        verdict=throughput_verdict(rows),
        panels=[*_curve_panels(trained), _speed_panel(rows)],
        notes="Teacher-forced scoring on this machine with random weights; a token is a scored byte. The curves are of "
        "smaller runs of one total size, at equal updates of as many windows; wall-clock is the seed run and the "
        "slowest expert.",
    )


def throughput_verdict(rows: list[dict[str, Any]]) -> Verdict:
    """Whether the most sharded ensemble is the fastest, by more than the spread of the rounds."""
    if min(row["num_parameters"] for row in rows) < SMALLEST_TO_JUDGE:
        return "scale too small to tell"
    most = max(rows, key=lambda row: row["num_experts"])
    low = most["tokens_per_s"] * (1 - most["spread"])
    high = most["tokens_per_s"] * (1 + most["spread"])
    others = [row for row in rows if row is not most]
    if all(low > row["tokens_per_s"] * (1 + row["spread"]) for row in others):
        return "agrees"
    is_slower = any(high < row["tokens_per_s"] * (1 - row["spread"]) for row in others)
    return "differs" if is_slower else "scale too small to tell"


def _speed(place: Workplace, case: Case) -> dict[str, Any]:
    """One case, whole: routing, every chosen expert, mixture."""
    length, corpus = WINDOW_BYTES[place.scale], Corpus.open(place.data)
    ensemble = random_ensemble(case, corpus=corpus, scale=place.scale, place=place)
    windows = scored_windows(corpus, length=length, count=case.windows)
    implementation = "triton" if place.scale == "paper" else "auto"
    rounds = Rounds(case.windows, REPEATS[place.scale], place.threads, implementation)
    record = measure_speed(ensemble, windows, config=None, rounds=rounds, progress=place.voice.progress)
    inference = record["inference"]
    return {
        "num_experts": case.num_experts,
        "active_experts": inference["active_experts"],
        "width": case.width,
        "num_parameters": ensemble_size(ensemble.shape, num_experts=case.num_experts, decoder=_heads(case)),
        "tokens_per_s": inference["tokens_per_s"],
        "spread": inference["spread"],
        "routing_share": inference["routing_share"] if ensemble.active_experts < case.num_experts else 0.0,
        "routes": ensemble.active_experts < case.num_experts,
        "seconds_per_call": inference["seconds"],
        "windows_per_call": case.windows,
        "fraction_of_peak": inference["fraction_of_peak"],
        "device": record["device"],
        "threads": record["threads"],
    }


def _heads(case: Case) -> DecoderMode:
    """The narrow experts of N = 256 share one frozen head, the wide ones have their own (Table 2)."""
    return "frozen" if case.width <= 32 else "trained"


def random_ensemble(case: Case, *, corpus: Corpus, scale: Scale, place: Workplace) -> Ensemble:
    """Random weights, and a router for as many clusters fitted on the corpus."""
    shape = ExpertShape(width=case.width, embed_width=8 if scale == "smoke" else 32)
    first = initial_expert(shape, seed=1)
    generator = numpy_generator(1, "inference weights")
    scales = generator.uniform(0.9, 1.1, (case.num_experts, 1)).astype(np.float32)
    thetas = torch.from_numpy(scales) * first.theta
    prefix = WINDOW_BYTES[scale] // 4
    router = _router(case, corpus=corpus, scale=scale, place=place)
    decoder = first.decoder if _heads(case) == "frozen" else first.decoder.repeat(case.num_experts, 1, 1)
    return Ensemble(thetas, decoder, shape, router, min(ROUTED, case.num_experts), prefix)


def _router(case: Case, *, corpus: Corpus, scale: Scale, place: Workplace) -> Router:
    if case.num_experts <= 2:
        # Every expert answers, so nothing is routed: one cluster a text, all of them the same.
        return _answers_all(case.num_experts)
    length = WINDOW_BYTES[scale]
    config = ClusterConfig(
        num_clusters=case.num_experts,
        window_bytes=length,
        sample_windows=400_000 if scale == "paper" else 8_000 if scale == "cpu" else 2_000,
        components=16 if scale == "smoke" else 128,
        iterations=5,
    )

    def read(indices: np.ndarray) -> np.ndarray:
        return corpus.train.gather(indices * length, length=length)

    total = num_windows(corpus.train, window_bytes=length)
    return fit_router(read, num_windows=total, config=config, seed=1, progress=place.voice.progress)


def _answers_all(num_experts: int) -> Router:
    return blind_router(np.ones(num_experts, np.int64), config=ClusterConfig(num_clusters=num_experts, partition="iid"))


def scored_windows(corpus: Corpus, *, length: int, count: int) -> np.ndarray:
    """uint8 [count, length + 1] of the test split's documents; of a small corpus some twice."""
    found = document_windows(
        corpus.test, window_bytes=length, max_windows=count, key=stream_key(1, "inference windows")
    ).windows
    return found[np.arange(count) % len(found)]


def _trained(place: Workplace, num_experts: int) -> dict[str, Any]:
    """Table 13's columns of the run of one total size, and its validation curve."""
    name = size_run_name(num_experts, seed=1)
    root = place.run(name, size_run(place.scale, num_experts=num_experts, seed=1))
    test = read_json(root / "results" / "test.json")
    curve = ensemble_curve(root)
    return {
        "run": name,
        "num_experts": num_experts,
        "test_loss_nats_per_byte": test["loss_nats_per_byte"],
        "updates": min(test["expert_updates"]),
        "wall_clock_seconds": curve[-1][0] if curve else None,
        "aggregate_device_seconds": curve[-1][1] if curve else None,
        "curve": curve,
    }


def ensemble_curve(root: Path) -> list[tuple[float, float, float]]:
    """(wall-clock with a device for each expert, aggregate device-seconds, mean validation loss of the experts).

    Experts are weighted by their clusters' sizes, as on the report's page; each is validated on its own cluster.
    """
    run = collect_runs([root])[0]
    assert isinstance(run, Run)
    seed = run.seed_run.device_seconds
    curve = []
    for point in aggregate_curve(run)[len(run.seed_run.validation) :]:
        update = point.update - run.seed_run.last_update
        slowest = max(v.device_seconds for job in run.experts for v in job.validation if v.update == update)
        curve.append((seed + slowest, point.device_seconds, point.loss_nats_per_byte))
    return curve


def _curve_panels(trained: list[dict[str, Any]]) -> list[Panel]:
    def panel(title: str, column: int, label: str) -> Panel:
        series = [
            Series(f"N = {run['num_experts']}", [p[column] for p in run["curve"]], [p[2] for p in run["curve"]])
            for run in trained
            if run["curve"]
        ]
        return Panel(title, label, "mean validation loss (nats/byte)", series)

    return [
        panel("Loss against wall-clock", 0, "wall-clock, a device an expert (s)"),
        panel("Loss against aggregate time", 1, "aggregate device time (s)"),
    ]


def _speed_panel(rows: list[dict[str, Any]]) -> Panel:
    series = [
        Series(f"N = {row['num_experts']}", [row["num_experts"]], [row["tokens_per_s"]], kind="points") for row in rows
    ]
    return Panel(
        "Throughput, one total size",
        "experts N",
        "scored bytes per second",
        series,
        x_scale="log",
        y_scale="log",
    )


ITEMS: tuple[Item, ...] = (
    Item(
        name="soma-fig6",
        covers=("soma-table12", "soma-table13"),
        shows="loss and inference throughput at one total size",
        paper="0.555M, 0.468M, 0.257M and 2.36M tokens/s for N = 1, 2, 8, 256 on an A40, routing 0.87% (N=8) and 7.50% "
        "(N=256) of the time; test loss 1.71 (N=8, 700 GPU-hours) and 1.68 (N=256, 41.9k)",
        rule="agrees where the most sharded ensemble scores the most bytes per second, by more than the spread of the "
        "rounds; judged at the paper's total size alone",
        minutes={"smoke": 0.3, "cpu": 4, "paper": 30},
        find=find_inference,
    ),
)
