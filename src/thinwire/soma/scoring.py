"""How good is a run, beside what?  The paper's protocol on held-out windows, with intervals and baselines (Table 1)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.base.files import write_json
from thinwire.base.progress import Progress
from thinwire.data.corpus import Corpus
from thinwire.data.protocols import Protocol
from thinwire.data.windows import EvaluationWindows
from thinwire.runs.results import text_name
from thinwire.soma.config import SomaConfig
from thinwire.soma.ensemble import Ensemble, load_ensemble, load_seed, score_windows
from thinwire.soma.run import SomaRun
from thinwire.soma.score_record import score_record
from thinwire.soma.scored_text import Cut, split_to_score, text_to_score

SINGLE_EXPERTS_UP_TO = 16
MATRIX_UP_TO = 32


def cut_of(config: SomaConfig) -> Cut:
    """Which windows a run is scored on; the routed prefix is not scored."""
    return Cut(config.scoring, config.routing.prefix_bytes, config.seed)


def corpus_windows(config: SomaConfig, corpus: Corpus) -> EvaluationWindows:
    """The test split's windows of a run. Raises UserError where no document is long enough for one."""
    return split_to_score(corpus, cut_of(config)).windows


def result_name(on: Path | None, *, active_experts: int | None) -> str:
    """A result's name and file: the text's, ``test`` for the run's own; a k asked for by name is part of it."""
    stem = text_name(on)
    return stem if active_experts is None else f"{stem}-k{active_experts}"


def score_text(
    root: Path,
    *,
    on: Path | None = None,
    name: str | None = None,
    protocol: Protocol | None = None,
    active_experts: int | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score a run; nothing is written (``api.verbs.evaluate`` keeps the record too).

    Args:
        on: a data folder, or a text file or folder; None is the test split of the run's own data.
        name: of the result, a file name without its ending; by default ``result_name``'s.
        protocol: how a text is cut: ``wikitext`` or ``documents``; None tells by its first heading.
        active_experts: overrides k.

    Raises:
        UserError: the run is not trained, the text is missing or too short, or k exceeds the experts.
    """
    run = SomaRun.open(root)
    ensemble, cut = load_ensemble(root), cut_of(run.config)
    text = split_to_score(run.open_corpus(), cut) if on is None else text_to_score(on, cut, protocol=protocol)
    windows = text.windows
    losses = score_windows(
        ensemble, windows.windows, active_experts=active_experts, threads=threads, progress=progress
    ).mixture
    return score_record(losses, text, cut=cut, bigrams=run.bigrams()) | {
        "name": name or result_name(on, active_experts=active_experts),
        "num_experts": ensemble.num_experts,
        "active_experts": ensemble.active_experts if active_experts is None else active_experts,
        "expert_updates": [run.last_update(str(index)) for index in range(run.num_experts)],
        "planned_updates": run.config.experts.updates,
        "seed_loss_nats_per_byte": _seed_loss(root, windows, threads),
        "single_expert_loss_nats_per_byte": _single_losses(ensemble, windows.windows, threads),
    }


def _seed_loss(root: Path, windows: EvaluationWindows, threads: int) -> float:
    return float(score_windows(load_seed(root), windows.windows, threads=threads).mixture.mean())


def _single_losses(ensemble: Ensemble, windows: np.ndarray, threads: int) -> list[float] | None:
    """Each expert alone on every window; None for large ensembles, where it would cost more than training minutes."""
    if ensemble.num_experts > SINGLE_EXPERTS_UP_TO:
        return None
    every = np.tile(np.arange(ensemble.num_experts, dtype=np.int64), (len(windows), 1))
    return score_windows(ensemble, windows, experts=every, threads=threads).experts.mean(axis=0).tolist()


def loss_matrix(root: Path, *, threads: int = 1, progress: Progress | None = None) -> dict[str, Any] | None:
    """Every expert on held-out windows of every cluster; kept in ``RUN/results/matrix.json``. None for large N."""
    run = SomaRun.open(root)
    ensemble, corpus = load_ensemble(root), run.open_corpus()
    num_experts, size = ensemble.num_experts, run.config.clusters.window_bytes
    if num_experts > MATRIX_UP_TO:
        return None
    matrix, counts = np.empty((num_experts, num_experts)), []
    every = np.arange(num_experts, dtype=np.int64)
    # choice: nothing is routed here, but the same targets count as in the test; of short windows a quarter is passed.
    ensemble = replace(ensemble, prefix_bytes=min(ensemble.prefix_bytes, size // 4))
    for cluster in range(num_experts):
        held_out = run.expert_members(cluster).validation
        evenly = np.linspace(0, len(held_out) - 1, min(len(held_out), run.config.scoring.matrix_windows))
        held_out = held_out[np.unique(evenly.astype(np.int64))]
        windows = corpus.train.gather(held_out * size, length=size + 1)
        chosen = np.tile(every, (len(windows), 1))
        losses = score_windows(ensemble, windows, experts=chosen, threads=threads, progress=progress)
        matrix[:, cluster] = losses.experts.mean(axis=0)
        counts.append(len(windows))
    best = matrix.argmin(axis=0)
    record = {
        "loss_nats_per_byte": matrix.tolist(),
        "windows_per_cluster": counts,
        "own_is_best": [bool(best[cluster] == cluster) for cluster in range(num_experts)],
        "best_expert": best.tolist(),
    }
    write_json(run.folder.results / "matrix.json", record)
    return record
