"""A context-parallel run folder as training leaves it, with made-up but plausible numbers and no training."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TAGS = ("kv-forward", "kv-backward", "theta", "sync", "control")
PLAIN_UPDATE = {"kv-forward": 1_000_000, "kv-backward": 1_000_000, "theta": 0, "sync": 500_000, "control": 960}
CODED_UPDATE = {"kv-forward": 34_000, "kv-backward": 34_000, "theta": 2_000, "sync": 500_000, "control": 960}
VALIDATION_SEQUENCES = 4
"""A validation sends as much forward as so many updates."""


@dataclass(frozen=True)
class LlamaShape:
    """What the made-up run holds."""

    kind: str = "subspace"
    steps: int = 60
    made: int = 60
    warmup: int = 20
    seed: int = 1
    tokens: int = 512
    level: float = 0.0
    """Added to every loss."""
    fingerprint: str = "a1" * 32
    digest: str = "same windows"
    parts: tuple[str, ...] = ("test", "theta")
    resumed_at: int | None = None
    """Counts begin again at zero after this update; the last before it were made twice."""
    lost_at: int | None = None
    """Rank 3 and its counts are lost after this update."""
    prompt: str = ""
    extra: tuple[dict[str, Any], ...] = field(default_factory=tuple)
    """Records at the end of the log."""

    @property
    def coded(self) -> int:
        """The last step with the codec as it is trained."""
        return self.steps - self.steps // 6

    def phase(self, step: int) -> str:
        if step <= self.warmup:
            return "warm-up"
        if self.kind == "plain":
            return "plain"
        return "compressed" if step <= self.coded else "folded"


def build_llama(folder: Path, shape: LlamaShape) -> Path:
    """Write the folder; returns it."""
    folder.mkdir(parents=True)
    config = {
        "seed": shape.seed,
        "model": {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "head_width": 16, "hidden": 128, "tied": True},
        "sequence": {"tokens": shape.tokens, "chunks": 8, "order": "zigzag", "batch": 1},
        "codec": {
            "kind": shape.kind,
            "key_rate": 0.98,
            "value_rate": 0.95,
            "theta_source": "previous_chunk",
            "basis": "weight_svd",
            "wire": "bfloat16",
            "keep_fraction": 0.1,
            "bits": 4,
            "group": 32,
        },
        "optimizer": {"steps": shape.steps},
        "phases": {"warmup_steps": shape.warmup},
        "sync": {"every": 1, "fragments": 4, "outer": "none"},
        "launch": {"ranks": 4},
        "validation_sequences": VALIDATION_SEQUENCES,
    }
    _write(folder / "config.json", {"kind": "subspaces", "preset": "subspaces-small", "config": config})
    _write(
        folder / "manifest.json",
        {
            "data": {"folder": "data", "fingerprint": shape.fingerprint},
            "num_parameters": 90_432,
            "command": f"thinwire train subspaces-small --data data --out {folder}",
        },
    )
    lines = [json.dumps(record) + "\n" for record in (*_log(shape), *shape.extra)]
    (folder / "log.jsonl").write_text("".join(lines), encoding="utf-8")
    if "test" in shape.parts:
        _write(folder / "results/test.json", _score(shape))
    if "sample" in shape.parts:
        _write(folder / "results/sample.json", {"prompt": shape.prompt, "text": "<b>ab</b>", "temperature": 0.8})
    return folder


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def _loss(step: int, shape: LlamaShape) -> float:
    return 2.4 + shape.level + 3.1 * math.exp(-step / 12)


def update_bytes(shape: LlamaShape, step: int) -> dict[str, int]:
    if shape.phase(step) == "warm-up":
        return {tag: PLAIN_UPDATE[tag] if tag in ("sync", "control") else 0 for tag in TAGS}
    return PLAIN_UPDATE if shape.kind == "plain" else CODED_UPDATE


def _log(shape: LlamaShape) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    counts = dict.fromkeys(TAGS, 0)

    def validate(step: int, phase: str) -> None:
        loss = _loss(step, shape)
        records.append(
            {
                "kind": "validation",
                "step": step,
                "phase": phase,
                "loss_nats_per_token": loss,
                "sequences": VALIDATION_SEQUENCES,
                "seconds": 0.5 * step,
                "tokens": step * shape.tokens,
            }
        )
        if phase != "warm-up":
            counts["kv-forward"] += VALIDATION_SEQUENCES * update_bytes(shape, step + 1)["kv-forward"]
        if phase == "compressed" and "theta" in shape.parts:
            records.append({"kind": "theta", "step": step} | _theta(step))

    for step in range(1, shape.made + 1):
        if shape.phase(step) != shape.phase(step - 1) and step > 1:
            what = {"compressed": "plug in", "folded": "unplug", "plain": "context parallel"}[shape.phase(step)]
            records.append({"kind": "event", "step": step - 1, "what": what, "phase": shape.phase(step)})
            validate(step - 1, shape.phase(step))
        ranks = 4 if shape.lost_at is None or step <= shape.lost_at else 3
        for tag, count in update_bytes(shape, step).items():
            counts[tag] += count
        records.append(
            {
                "kind": "step",
                "step": step,
                "phase": shape.phase(step),
                "loss_nats_per_token": _loss(step, shape) + 0.01,
                "learning_rate": 1e-3,
                "gradient_norm": 0.7,
                "seconds": 0.4,
                "tokens": step * shape.tokens,
                "ranks": ranks,
                "wire_bytes": dict(counts),
            }
        )
        if step % 10 == 0:
            validate(step, shape.phase(step))
        if step == shape.resumed_at:
            records.append({"kind": "event", "step": step, "what": "resumed", "ranks": 4})
            counts = dict.fromkeys(TAGS, 0)
        if step == shape.lost_at:
            reason = "rank 3 closed the connection"
            event = {"kind": "event", "step": step, "what": "lost rank", "members": [3], "ranks": 3, "reason": reason}
            records.append(event)
            counts = {tag: 3 * count // 4 for tag, count in counts.items()}
    return records


def _theta(step: int) -> dict[str, Any]:
    return {
        "mean_abs_theta": [{"key": 0.001 * step, "value": 0.002 * step}, {"key": 0.003 * step, "value": 0.004 * step}],
        "angle_degrees": [{"key": 0.05 * step, "value": 0.1 * step}, {"key": 0.2 * step, "value": 0.3 * step}],
        "orthonormality_defect": [{"key": 1e-7, "value": 2e-7}, {"key": 3e-7, "value": 9e-4}],
    }


def _score(shape: LlamaShape) -> dict[str, Any]:
    loss = 2.45 + shape.level
    record = {
        "name": "test",
        "protocol": "sequences of 512 tokens inside documents",
        "model": "plain" if shape.kind == "plain" else "folded",
        "windows_digest": shape.digest,
        "loss_nats_per_token": loss,
        "perplexity": math.exp(loss),
        "ci95": [loss - 0.02, loss + 0.02],
        "loss_nats_per_byte": loss,
        "bits_per_byte": loss / math.log(2),
        "scored_targets": 32_768,
        "windows": 64,
        "documents": 40,
        "codec": shape.kind,
        "phase": shape.phase(shape.made),
        "step": shape.made,
        "planned_steps": shape.steps,
    }
    if shape.kind != "plain":
        trained = {"loss_nats_per_token": loss - 0.004, "stock_loss_nats_per_token": loss, "windows": 64}
        record["as_trained"] = trained | {"theta_source": "none"}
    return record
