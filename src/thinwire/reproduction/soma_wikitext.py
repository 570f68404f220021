"""Does the ordering hold on another corpus?  Frozen models on WikiText-103 (appendix L.1, Table 9).

The raw splits are looked for in the folder of further texts; without them nothing can be judged.
"""

from pathlib import Path
from typing import Any

from thinwire.base.files import read_json
from thinwire.reproduction.item import Findings, Item, Panel, Series, Verdict
from thinwire.reproduction.soma_active_experts import weights_of
from thinwire.reproduction.soma_sizes import SEEDS, size_run, size_run_name
from thinwire.reproduction.verdicts import paired, together
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.ensemble import load_ensemble, score_windows
from thinwire.soma.run import SomaRun
from thinwire.soma.scored_text import text_to_score
from thinwire.soma.scoring import cut_of

COMPARED = (1, 2)
SPLITS = {"valid": ("wiki.valid.raw", 1.11), "test": ("wiki.test.raw", 1.25)}
"""File names of wikitext-103-raw-v1, and the paper's millions of scored targets."""
PUBLISHED_WINDOW_BYTES, PUBLISHED_PREFIX_BYTES = 1024, 256


def find_wikitext(place: Workplace) -> Findings:
    """Table 9: N = 2 beside the monolith of equal size, three seeds."""
    texts = {split: found for split, (name, _) in SPLITS.items() if (found := _text(place, name)) is not None}
    rows = [
        row
        for seed in SEEDS[place.scale]
        for num_experts in COMPARED
        for row in _rows(place, texts, num_experts=num_experts, seed=seed)
    ]
    verdict, words = judge(rows)
    missing = [name for split, (name, _) in SPLITS.items() if split not in texts]
    notes = "Equal total size and equal updates of as many windows, hence about equal aggregate compute. "
    if missing:
        notes += f"{' and '.join(missing)} not found: give the folder of wikitext-103-raw-v1 with --texts. "
    config = size_run(place.scale, num_experts=1, seed=1)
    if config.scoring.window_bytes != PUBLISHED_WINDOW_BYTES:
        notes += f"Windows of {config.scoring.window_bytes:,} bytes, so the counts of targets are not the paper's. "
    return Findings(rows=rows, ours=words, verdict=verdict, panels=_panels(rows), notes=notes.strip())


def _text(place: Workplace, name: str) -> Path | None:
    if place.texts is None:
        return None
    return next((path for path in (place.texts / name, place.texts / "wikitext" / name) if path.is_file()), None)


def _rows(place: Workplace, texts: dict[str, Path], *, num_experts: int, seed: int) -> list[dict[str, Any]]:
    """One run on its own test split, and on each split of WikiText that is there."""
    name = size_run_name(num_experts, seed=seed)
    root = place.run(name, size_run(place.scale, num_experts=num_experts, seed=seed))
    own = read_json(root / "results" / "test.json")
    found = [("own test", own["loss_nats_per_byte"], own["scored_targets"])]
    run = SomaRun.open(root)
    cut = cut_of(run.config)
    for split, path in texts.items():

        def compute(path: Path = path) -> dict[str, Any]:
            windows = text_to_score(path, cut, protocol="wikitext").windows.windows
            losses = score_windows(
                load_ensemble(root), windows, threads=place.threads, progress=place.voice.progress
            ).mixture
            targets = len(windows) * (windows.shape[1] - 1 - run.config.routing.prefix_bytes)
            return {"loss": float(losses.mean()), "targets": targets}

        inputs = ["wikitext", weights_of(root), path.stat().st_size]
        record = place.part(f"{name}-{split}", inputs=inputs, compute=compute)
        found.append((f"wikitext {split}", record["loss"], record["targets"]))
    is_published = (cut.scoring.window_bytes, cut.prefix_bytes) == (PUBLISHED_WINDOW_BYTES, PUBLISHED_PREFIX_BYTES)
    return [
        {
            "model": f"SOMA N={num_experts}" if num_experts > 1 else "monolith",
            "num_experts": num_experts,
            "seed": seed,
            "text": text,
            "loss_nats_per_byte": loss,
            "scored_targets": targets,
            "published_windows": is_published,
        }
        for text, loss, targets in found
    ]


def judge(rows: list[dict[str, Any]]) -> tuple[Verdict, str]:
    """Counts of targets where the windows are the paper's, and N = 2 below the monolith on every text and seed."""
    verdicts: list[Verdict] = []
    words = []
    for text in ("own test", *(f"wikitext {split}" for split in SPLITS)):
        losses = {
            n: [row["loss_nats_per_byte"] for row in rows if (row["text"], row["num_experts"]) == (text, n)]
            for n in COMPARED
        }
        if not losses[1]:
            verdicts.append("scale too small to tell")
            continue
        difference = paired([one - two for one, two in zip(losses[1], losses[2], strict=True)])
        verdicts.append(difference.verdict)
        mean = {n: sum(values) / len(values) for n, values in losses.items()}
        words.append(f"{text}: N=2 {mean[2]:.3f}, monolith {mean[1]:.3f}, difference {difference} nats/byte")
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
        rule="agrees where the counts of targets are the paper's (with its windows) and N = 2 lies below the monolith "
        "of equal size in every of at least three seeds, on the own test split and on both splits of WikiText",
        minutes={"smoke": 0.2, "cpu": 3, "paper": 60_000},
        find=find_wikitext,
    ),
)
