"""How good is a run, beside what?  The paper's protocol on held-out windows, with intervals and baselines (Table 1)."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thinwire.base.bootstrap import interval
from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.base.progress import Progress
from thinwire.base.seeds import stream_key
from thinwire.base.units import bits_per_byte
from thinwire.data.corpus import MANIFEST, Corpus
from thinwire.data.protocols import Protocol, detect_protocol, text_windows, wikitext_windows
from thinwire.data.sources import read_documents
from thinwire.data.windows import EvaluationWindows, document_windows
from thinwire.runs.results import text_name
from thinwire.soma.baselines import bigram_loss, unigram_loss, xz_loss
from thinwire.soma.config import SomaConfig
from thinwire.soma.ensemble import Ensemble, load_ensemble, load_seed, score_windows
from thinwire.soma.run import SomaRun

SINGLE_EXPERTS_UP_TO = 16
MATRIX_UP_TO = 32


def corpus_windows(config: SomaConfig, corpus: Corpus) -> EvaluationWindows:
    """The test split: one window a document, chosen by address. Raises UserError where no document is long enough."""
    return document_windows(
        corpus.test,
        window_bytes=config.scoring.window_bytes,
        max_windows=config.scoring.max_windows,
        key=stream_key(config.seed, "test windows"),
    )


class ScoredText(NamedTuple):
    """What is scored.

    Attributes:
        windows: uint8 [n, T + 1] with their documents and sources.
        protocol: how the text was cut.
        stride: bytes between a document's windows; None where each has one.
        source_names: the names that the windows' sources index.
    """

    windows: EvaluationWindows
    protocol: Protocol
    stride: int | None
    source_names: list[str]


def _test_split(run: SomaRun, corpus: Corpus) -> ScoredText:
    names = [source["name"] for source in corpus.manifest["sources"]]
    return ScoredText(corpus_windows(run.config, corpus), "documents", None, names)


def text_to_score(run: SomaRun, text: Path, *, protocol: Protocol | None) -> ScoredText:
    """Windows of a data folder's test split, or of any text.

    Raises:
        UserError: the text is missing, unreadable or too short for one window.
    """
    if (text / MANIFEST).is_file():
        return _test_split(run, Corpus.open(text))
    payloads = [document.payload for document in read_documents(str(text))]
    chosen = protocol or (detect_protocol(payloads[0]) if len(payloads) == 1 else "documents")
    window_bytes = run.config.scoring.window_bytes
    stride = window_bytes - run.config.routing.prefix_bytes
    try:
        if chosen == "wikitext":
            windows = wikitext_windows(b"".join(payloads), window_bytes=window_bytes, stride=stride)
        else:
            windows = text_windows(payloads, window_bytes=window_bytes, stride=stride)
    except UserError as error:
        raise UserError(error.what, where=str(text), fix=error.fix) from error
    return ScoredText(windows, chosen, stride, [text.name])


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
    ensemble = load_ensemble(root)
    text = _test_split(run, run.open_corpus()) if on is None else text_to_score(run, on, protocol=protocol)
    windows = text.windows
    losses = score_windows(
        ensemble, windows.windows, active_experts=active_experts, threads=threads, progress=progress
    ).mixture
    return _summary(run, ensemble, losses, windows) | {
        "name": name or result_name(on, active_experts=active_experts),
        "windows_digest": hashlib.sha256(windows.windows.tobytes()).hexdigest()[:16],
        "expert_updates": [run.last_update(str(index)) for index in range(run.num_experts)],
        "planned_updates": run.config.experts.updates,
        "protocol": text.protocol,
        "active_experts": ensemble.active_experts if active_experts is None else active_experts,
        "by_source": _by_source(losses, windows.sources, text.source_names),
        "baselines": _baselines(run.bigrams(), text, ensemble.prefix_bytes),
        "seed_loss_nats_per_byte": _seed_loss(root, windows, threads),
        "single_expert_loss_nats_per_byte": _single_losses(ensemble, windows.windows, threads),
    }


def _summary(run: SomaRun, ensemble: Ensemble, losses: np.ndarray, windows: EvaluationWindows) -> dict[str, Any]:
    loss = float(losses.mean())
    low, high = interval(losses, windows.documents, draws=run.config.scoring.bootstrap_draws, seed=run.config.seed)
    targets = windows.windows.shape[1] - 1 - ensemble.prefix_bytes
    return {
        "loss_nats_per_byte": loss,
        "bits_per_byte": bits_per_byte(loss),
        "ci95": [low, high],
        "scored_targets": len(losses) * targets,
        "windows": len(losses),
        "documents": len(np.unique(windows.documents)),
        "num_experts": ensemble.num_experts,
    }


def _by_source(losses: np.ndarray, sources: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    return {names[index]: float(losses[sources == index].mean()) for index in np.unique(sources)}


def _baselines(bigrams: np.ndarray, text: ScoredText, prefix_bytes: int) -> dict[str, float]:
    """Byte counts of the run's training split; xz on the windows' own bytes."""
    windows, documents, _ = text.windows
    return {
        "byte_unigram": unigram_loss(bigrams, windows, prefix_bytes=prefix_bytes),
        "byte_bigram": bigram_loss(bigrams, windows, prefix_bytes=prefix_bytes),
        "xz": xz_loss(windows, documents=documents, stride=text.stride),
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
