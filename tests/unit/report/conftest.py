"""A SOMA run folder as training leaves it, with made-up but plausible numbers and no training."""

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_folders import LlamaShape, build_llama

SEED_LOSS, BIGRAM_LOSS, UNIGRAM_LOSS = 2.262, 2.447, 3.127
TOPICS = (
    ("court", "law", "plaintiff", "defendant", "appeal", "judgment", "section", "statute", "evidence", "counsel"),
    ("patients", "treatment", "clinical", "disease", "therapy", "cells", "study", "dose", "diagnosis", "tumour"),
    ("said", "looked", "eyes", "door", "night", "hand", "voice", "room", "mother", "thought", "smiled", "lady"),
    ("energy", "equation", "function", "theorem", "students", "example", "given", "electron", "value", "vector"),
)


@dataclass(frozen=True)
class RunShape:
    """What the made-up run holds."""

    num_experts: int = 4
    seed_updates: int = 1000
    expert_updates: int = 2000
    level: float = 0.0
    """Added to every loss after the start."""
    parts: tuple[str, ...] = ("seed", "router", "experts", "test", "wikitext", "matrix", "sample")
    seed_progress: float = 1.0
    expert_progress: float = 1.0
    scored_updates: tuple[int, ...] = ()
    """The experts' updates that the results name; without them, results as older versions wrote them."""
    prompt: str = "The court "
    continuation: bytes = b"of the patients was said to be a study of the law, and the lady looked at the door.\n\nSect"
    terms: tuple[tuple[str, ...], ...] = TOPICS


def write_json_file(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def job_config(updates: int, *, rate: float) -> dict[str, Any]:
    return {
        "updates": updates,
        "directions": 64,
        "batch": 64,
        "window_bytes": 1024,
        "difference": "central",
        "learning_rate": rate,
        "epsilon": rate,
        "log_every": 10,
        "validate_every": 100,
    }


def write_log(path: Path, *, losses: Callable[[int], float], updates: int, rng: np.random.Generator) -> None:
    """A record every 10 updates and a validation every 100, the first before training."""
    cost = 2 * 64 * 64 * 1024
    lines = []
    for update in range(0, updates + 1, 10):
        spent = {"update": update, "byte_forwards": update * cost, "device_seconds": update * 2.4}
        if update > 0:
            rates = {"learning_rate": 1e-3, "epsilon": 1e-3, "derivative_rms": 0.2}
            train = losses(update) + float(rng.normal(0, 0.02))
            lines.append({"kind": "update", "train_loss_nats_per_byte": train, **rates, **spent})
        if update % 100 == 0:
            loss = losses(update) + float(rng.normal(0, 0.003))
            lines.append({"kind": "validation", "loss_nats_per_byte": loss, **spent})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_results(folder: Path, shape: RunShape, rng: np.random.Generator) -> None:
    count = shape.num_experts
    single = [SEED_LOSS - 0.02 + shape.level + float(rng.normal(0, 0.015)) for _ in range(count)]
    for name, offset in (("test", 0.0), ("wikitext", 0.31)):
        if name not in shape.parts:
            continue
        ensemble = 2.204 + shape.level + offset
        result = {
            "name": name,
            "protocol": "1,024-byte windows, 256 routed, 768 scored",
            "loss_nats_per_byte": ensemble,
            "bits_per_byte": ensemble / math.log(2),
            "ci95": [ensemble - 0.011, ensemble + 0.012],
            "scored_targets": 1_572_864,
            "windows": 2048,
            "num_experts": count,
            "active_experts": min(4, count),
            "seed_loss_nats_per_byte": SEED_LOSS + shape.level + offset,
            "single_expert_loss_nats_per_byte": [loss + offset for loss in single],
            "baselines": {"byte_unigram": UNIGRAM_LOSS, "byte_bigram": BIGRAM_LOSS, "xz": 2.391},
            "by_source": {"law": ensemble - 0.1, "medicine": ensemble + 0.02, "novels": ensemble + 0.09},
        }
        if shape.scored_updates:
            result |= {"expert_updates": list(shape.scored_updates), "planned_updates": shape.expert_updates}
        write_json_file(folder / f"results/{name}.json", result)
    hardness = rng.normal(0, 0.12, count)
    matrix = 2.26 + hardness[None, :] + rng.uniform(0.005, 0.09, (count, count)) - 0.04 * np.eye(count)
    if "matrix" in shape.parts:
        own = [bool(matrix[:, c].argmin() == c) for c in range(count)]
        record = {"loss_nats_per_byte": matrix.tolist(), "windows_per_cluster": [128] * count, "own_is_best": own}
        write_json_file(folder / "results/matrix.json", record)
    if "sample" in shape.parts:
        encoded = base64.b64encode(shape.continuation).decode()
        shown = shape.continuation.decode("utf-8", "replace")
        record = {"prompt": shape.prompt, "text": shown, "bytes_base64": encoded, "temperature": 0.8, "seed": 1}
        write_json_file(folder / "results/sample.json", record)


def build_run(folder: Path, shape: RunShape) -> Path:
    """Write the folder; returns it."""
    rng = np.random.default_rng(7)
    count = shape.num_experts
    config = {
        "seed": 1,
        "model": {"width": 32, "depth": 2, "embed_width": 32},
        "seed_run": job_config(shape.seed_updates, rate=2.5e-3),
        "experts": job_config(shape.expert_updates, rate=1e-3),
        "clusters": {"num_clusters": count, "window_bytes": 1024},
        "routing": {"active_experts": min(4, count), "prefix_bytes": 256},
    }
    write_json_file(folder / "config.json", {"kind": "soma", "preset": "soma-small", "config": config})
    command = f"thinwire train soma-small --data data/mix --out {folder}"
    write_json_file(folder / "manifest.json", {"command": command, "versions": {"thinwire": "0.1.0"}})
    if "seed" in shape.parts:
        losses = lambda u: 2.28 + shape.level + 0.75 * math.exp(-u / 160) + 2.5 * math.exp(-u / 12)  # noqa: E731
        updates = int(shape.seed_updates * shape.seed_progress)
        write_log(folder / "seed/log.jsonl", losses=losses, updates=updates, rng=rng)
    if "router" in shape.parts:
        sizes = rng.integers(21_000, 26_000, count).tolist()
        terms = [list(shape.terms[cluster % len(shape.terms)]) for cluster in range(count)]
        router = {"num_clusters": count, "cluster_sizes": sizes, "top_terms": terms}
        write_json_file(folder / "router/router.json", router)
    for expert in range(count if "experts" in shape.parts else 0):
        hardness = float(rng.normal(0, 0.09))
        losses = lambda u, h=hardness: 2.21 + shape.level + h + 0.07 * math.exp(-u / 700)  # noqa: E731
        updates = int(shape.expert_updates * shape.expert_progress)
        write_log(folder / f"experts/{expert:03d}/log.jsonl", losses=losses, updates=updates, rng=rng)
    write_results(folder, shape, rng)
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``make_run("name", num_experts=2, parts=(...))`` -> the folder."""

    def make(name: str = "soma", **shape: Any) -> Path:
        return build_run(tmp_path / name, RunShape(**shape))

    return make


@pytest.fixture
def make_llama(tmp_path: Path) -> Callable[..., Path]:
    """``make_llama("name", kind="plain", made=30)`` -> the folder of a context-parallel run."""

    def make(name: str = "llama", **shape: Any) -> Path:
        return build_llama(tmp_path / name, LlamaShape(**shape))

    return make
