"""What is said of losses on held-out windows?  Mean, interval, sources and baselines, for every method alike."""

import hashlib
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt64

from thinwire.base.bootstrap import interval
from thinwire.base.units import bits_per_byte
from thinwire.soma.baselines import bigram_loss, unigram_loss, xz_loss
from thinwire.soma.scored_text import Cut, ScoredText


def score_record(
    losses: Float64[np.ndarray, " n"], text: ScoredText, *, cut: Cut, bigrams: UInt64[np.ndarray, "256 256"]
) -> dict[str, Any]:
    """The entries of ``RUN/results/*.json`` that follow from one loss a window.

    Args:
        losses: mean loss of each window's targets, nats per byte.
        text: the windows.
        bigrams: byte counts of the run's training split, for the baselines.
    """
    loss, windows = float(losses.mean()), text.windows
    low, high = interval(losses, windows.documents, draws=cut.scoring.bootstrap_draws, seed=cut.seed)
    return {
        "loss_nats_per_byte": loss,
        "bits_per_byte": bits_per_byte(loss),
        "ci95": [low, high],
        "scored_targets": len(losses) * (windows.windows.shape[1] - 1 - cut.prefix_bytes),
        "windows": len(losses),
        "documents": len(np.unique(windows.documents)),
        "windows_digest": hashlib.sha256(windows.windows.tobytes()).hexdigest()[:16],
        "protocol": text.protocol,
        "by_source": _by_source(losses, text),
        "baselines": _baselines(bigrams, text, prefix_bytes=cut.prefix_bytes),
    }


def _by_source(losses: np.ndarray, text: ScoredText) -> dict[str, float]:
    sources = text.windows.sources
    return {text.source_names[index]: float(losses[sources == index].mean()) for index in np.unique(sources)}


def _baselines(bigrams: np.ndarray, text: ScoredText, *, prefix_bytes: int) -> dict[str, float]:
    """Byte counts of the run's training split; xz on the windows' own bytes."""
    windows, documents, _ = text.windows
    return {
        "byte_unigram": unigram_loss(bigrams, windows, prefix_bytes=prefix_bytes),
        "byte_bigram": bigram_loss(bigrams, windows, prefix_bytes=prefix_bytes),
        "xz": xz_loss(windows, documents=documents, stride=text.stride),
    }
