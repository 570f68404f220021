"""Does the ordering hold on another corpus?  The frozen models of Figure 1 on WikiText-103 (appendix L.1, Table 9).

The raw splits are looked for in the folder of further texts; without them nothing can be judged.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.config.fingerprint import as_record
from thinwire.data.corpus import Corpus
from thinwire.reproduction.arms import ensemble_of
from thinwire.reproduction.eggroll_arm import eggroll_config, eggroll_end
from thinwire.reproduction.item import Findings, Item, Panel, Series, Verdict
from thinwire.reproduction.settings import SIZES
from thinwire.reproduction.soma_fixed_size import (
    BUDGET_OPERATIONS,
    NUM_STAGES,
    SHARED,
    Contestant,
    contestants,
    ends_of,
    fixed_run,
)
from thinwire.reproduction.verdicts import paired, together
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.compute import Compute
from thinwire.soma.config import ScoringConfig
from thinwire.soma.eggroll_job import scored_losses
from thinwire.soma.ensemble import score_windows
from thinwire.soma.scored_text import Cut, split_to_score, text_to_score
from thinwire.soma.scoring import cut_of

SPLITS = {"valid": ("wiki.valid.raw", 1.11), "test": ("wiki.test.raw", 1.25)}
"""File names of wikitext-103-raw-v1, and the paper's millions of scored targets."""
PUBLISHED_PREFIX_BYTES = 256


def find_wikitext(place: Workplace) -> Findings:
    """Table 9: N = 2 beside monoliths and EGGROLL of equal size, three seeds."""
    cut = _cut(place)
    paths = {split: found for split, (name, _) in SPLITS.items() if (found := _text(place, name)) is not None}
    texts = {"own test": split_to_score(Corpus.open(place.data), cut).windows.windows}
    for split, path in paths.items():
        texts[f"wikitext {split}"] = text_to_score(path, cut, protocol="wikitext").windows.windows
    is_published = cut.scoring.window_bytes == ScoringConfig().window_bytes
    rows = [
        {
            "model": model,
            "seed": seed,
            "text": text,
            "loss_nats_per_byte": loss,
            "scored_targets": len(windows) * (windows.shape[1] - 1 - cut.prefix_bytes),
            "published_windows": is_published,
        }
        for text, windows in texts.items()
        for model in (*contestants(place), "EGGROLL")
        for seed, loss in zip(SIZES[place.scale].seeds, _losses(place, model, windows, text=text), strict=True)
    ]
    verdict, words = judge(rows)
    missing = [name for split, (name, _) in SPLITS.items() if split not in paths]
    notes = "Frozen at the end of Figure 1's arms: equal total size and equal arithmetic. "
    if missing:
        notes += f"{' and '.join(missing)} not found: give the folder of wikitext-103-raw-v1 with --texts. "
    if not is_published:
        notes += f"Windows of {cut.scoring.window_bytes:,} bytes, so the counts of targets are not the paper's. "
    return Findings(rows=rows, ours=words, verdict=verdict, panels=_panels(rows), notes=notes.strip())


def _cut(place: Workplace) -> Cut:
    """The published windows, but for models too small for them."""
    own = cut_of(fixed_run(place, 2).config)
    if place.scale == "smoke":
        return own
    return Cut(replace(ScoringConfig(), max_windows=own.scoring.max_windows), PUBLISHED_PREFIX_BYTES, own.seed)


def _text(place: Workplace, name: str) -> Path | None:
    if place.texts is None:
        return None
    return next((path for path in (place.texts / name, place.texts / "wikitext" / name) if path.is_file()), None)


def _losses(place: Workplace, model: str, windows: np.ndarray, *, text: str) -> list[float]:
    """One a seed; made once."""
    budget, base = BUDGET_OPERATIONS[place.scale], fixed_run(place, 2)

    def compute() -> dict[str, Any]:
        if model == "EGGROLL":
            return {"losses": _of_eggroll(place, windows)}
        return {"losses": _of_experts(place, contestants(place)[model], windows)}

    cut = _cut(place)
    made_by: list[Any] = [[one.num_experts, as_record(one.training)] for one in contestants(place).values()]
    if model == "EGGROLL":
        made_by = [as_record(eggroll_config(place.scale, base=base, seed=seed)) for seed in SIZES[place.scale].seeds]
    text_digest = hashlib.sha256(windows.tobytes()).hexdigest()
    inputs = [model, budget, list(SIZES[place.scale].seeds), made_by, text_digest, cut.prefix_bytes]
    name = f"{model}-{text}".replace(" ", "-").replace(",", "")
    return list(place.part(name, inputs=inputs, compute=compute)["losses"])


def _of_experts(place: Workplace, contestant: Contestant, windows: np.ndarray) -> list[float]:
    run, prefix_bytes = fixed_run(place, contestant.num_experts), _cut(place).prefix_bytes
    ends = ends_of(place, contestant, budget=BUDGET_OPERATIONS[place.scale])
    ensembles = [replace(ensemble_of(run, experts), prefix_bytes=prefix_bytes) for experts in ends]
    return [float(score_windows(one, windows, threads=place.threads).mixture.mean()) for one in ensembles]


def _of_eggroll(place: Workplace, windows: np.ndarray) -> list[float]:
    shared, base, losses = replace(place, item=SHARED), fixed_run(place, 2), []
    for seed in SIZES[place.scale].seeds:
        budget = BUDGET_OPERATIONS[place.scale]
        end = eggroll_end(shared, base, seed=seed, budget=budget, num_stages=NUM_STAGES)
        config = replace(end.config, prefix_bytes=_cut(place).prefix_bytes)
        compute = Compute("auto", place.threads)
        losses.append(float(scored_losses(end.theta, windows, config=config, compute=compute).mean()))
    return losses


def judge(rows: list[dict[str, Any]]) -> tuple[Verdict, str]:
    """Counts of targets where the windows are the paper's, and N = 2 below every other on every text and seed."""
    verdicts: list[Verdict] = []
    words = []
    models = list(dict.fromkeys(row["model"] for row in rows))
    for text in ("own test", *(f"wikitext {split}" for split in SPLITS)):
        losses = {
            model: [row["loss_nats_per_byte"] for row in rows if (row["text"], row["model"]) == (text, model)]
            for model in models
        }
        if not losses["N = 2"]:
            verdicts.append("scale too small to tell")
            continue
        for model in models:
            if model != "N = 2":
                apart = paired([other - two for other, two in zip(losses[model], losses["N = 2"], strict=True)])
                verdicts.append(apart.verdict)
        means = ", ".join(f"{model} {sum(values) / len(values):.3f}" for model, values in losses.items())
        words.append(f"{text}: {means}")
    counts = {row["text"]: row for row in rows}
    for split, (_, millions) in SPLITS.items():
        row = counts.get(f"wikitext {split}")
        if row is not None:
            words.append(f"{row['scored_targets'] / 1e6:.2f}M scored targets on {split}")
            if row["published_windows"] and round(row["scored_targets"] / 1e6, 2) != millions:
                verdicts.append("differs")
    return together(verdicts), "; ".join(words)


def _panels(rows: list[dict[str, Any]]) -> list[Panel]:
    texts = list(dict.fromkeys(row["text"] for row in rows))
    return [
        Panel(
            text,
            "seed",
            "loss (nats/byte)",
            [
                Series(
                    model,
                    [row["seed"] for row in rows if (row["text"], row["model"]) == (text, model)],
                    [row["loss_nats_per_byte"] for row in rows if (row["text"], row["model"]) == (text, model)],
                    kind="points",
                )
                for model in dict.fromkeys(row["model"] for row in rows)
            ],
        )
        for text in texts
    ]


ITEMS: tuple[Item, ...] = (
    Item(
        name="soma-table9",
        covers=(),
        shows="frozen models on WikiText-103",
        paper="1.11M validation and 1.25M test targets; test 2.066 nats/byte for N=2, 2.254 to 2.363 for monoliths by "
        "SPSA, 2.493 for EGGROLL, at about 150 GPU-hours and 8.4M parameters",
        rule="agrees where the counts of targets are the paper's (with its windows) and N = 2 lies below the monoliths "
        "and EGGROLL in every of at least three seeds, on the own test split and on both splits of WikiText",
        minutes={"smoke": 0.2, "cpu": 8, "paper": 60_000},
        find=find_wikitext,
    ),
)
