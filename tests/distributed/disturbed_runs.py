"""Which small runs are disturbed, and what must be equal afterwards?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from thinwire.base.files import read_json_lines
from thinwire.subspaces.config import (
    CodecConfig,
    LaunchConfig,
    LlamaConfig,
    OptimizerConfig,
    PhasesConfig,
    SequenceConfig,
    SubspacesConfig,
    SyncConfig,
)

CLOCK = ("seconds",)
EVERY_STEP = SubspacesConfig(
    seed=3,
    model=LlamaConfig(layers=2, width=24, heads=4, kv_heads=2, head_width=8, hidden=40),
    sequence=SequenceConfig(tokens=48, chunks=4, batch=2),
    codec=CodecConfig(key_rate=0.75, value_rate=0.5, group=8),
    optimizer=OptimizerConfig(steps=16, learning_rate=1e-2, ramp_steps=2),
    phases=PhasesConfig(warmup_steps=5, warmup_tokens=16, unplug_fraction=0.25),
    launch=LaunchConfig(ranks=2, threads=1, device="cpu", timeout_seconds=10.0, restart_lost=False),
    validate_every=6,
    validation_sequences=2,
    test_sequences=4,
    checkpoint_every=4,
)
"""Warm-up to step 5, compressed to step 12, folded to step 16; gradients are summed at each."""
AVERAGED = replace(
    EVERY_STEP,
    phases=replace(EVERY_STEP.phases, unplug="never"),
    sync=SyncConfig(every=2, fragments=2, delay=1, outer="nesterov"),
)
"""Weights are averaged every two steps, in two fragments of which the second flies over a step's end, with an outer
step; compressed to the end, so that the last checkpoint holds theta's mean."""

JUMP_SUMMED = 1e-3
"""Nats: where gradients are summed, another number of ranks computes the same, up to rounding."""
JUMP_AVERAGED = 0.1
"""Nats: replicas that drifted for a few steps, at a rate of 0.01, and moments of which one is gone."""


def with_ranks(config: SubspacesConfig, ranks: int, **launch: Any) -> SubspacesConfig:
    return replace(config, launch=replace(config.launch, ranks=ranks, **launch))


def records(out: Path, *kinds: str) -> list[dict[str, Any]]:
    """Of the log."""
    return [record for record in read_json_lines(out / "log.jsonl") if not kinds or record["kind"] in kinds]


def losses(out: Path) -> dict[int, float]:
    """Of every update in the log."""
    return {record["step"]: record["loss_nats_per_token"] for record in records(out, "step")}


def events(out: Path) -> list[str]:
    return [record["what"] for record in records(out, "event")]


def story(out: Path) -> list[str]:
    """The log as an undisturbed run would have it: without clocks, and without the word that it was resumed.

    Weights that travel behind the training are counted while they leave, which a clock decides.
    """
    kept = []
    for record in records(out):
        if record.get("what") != "resumed":
            plain = {key: value for key, value in record.items() if key not in CLOCK}
            if "wire_bytes" in plain:
                plain["wire_bytes"] = {tag: count for tag, count in plain["wire_bytes"].items() if tag != "sync"}
            kept.append(json.dumps(plain, sort_keys=True))
    return kept


def tensors(out: Path) -> dict[str, bytes]:
    """The newest checkpoint of the weights and every rank's part of it, to the bit."""
    last = max(path.stem for path in (out / "checkpoints").glob("*.json"))
    files = [out / "checkpoints" / f"{last}.safetensors", *sorted(out.glob(f"ranks/*/{last}.safetensors"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}
