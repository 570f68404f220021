"""What would need no training score on the same bytes?

Byte unigrams, byte bigrams and xz, in nats per byte beside the models' losses.  A window is T + 1 bytes; the scored
targets are byte indices ``prefix_bytes + 1`` to T (Table 1: 257 to 1,024 of 1,025), exactly as for the models.
"""

import lzma
import math

import numpy as np
from jaxtyping import Float64, Int64, UInt8, UInt64

VOCABULARY = 256
NATS_PER_STORED_BYTE = 8 * math.log(2.0)


def unigram_loss(
    counts: UInt64[np.ndarray, "256 256"], windows: UInt8[np.ndarray, "n T1"], *, prefix_bytes: int
) -> float:
    """Mean loss, in nats per byte, of predicting each target by its frequency in training.

    choice: add-one smoothing, so that a byte never seen in training costs much and not everything.

    Args:
        counts: byte bigrams of the training split, the row is the previous byte.
        windows: scored windows, n >= 1.
    """
    occurrences = counts.sum(axis=0).astype(np.float64)
    return _mean_loss(_smoothed_log_probabilities(occurrences)[_targets(windows, prefix_bytes)])


def bigram_loss(
    counts: UInt64[np.ndarray, "256 256"], windows: UInt8[np.ndarray, "n T1"], *, prefix_bytes: int
) -> float:
    """Mean loss, in nats per byte, of predicting each target by its frequency after the byte before it.

    choice: add-one smoothing of each row; a row never seen is uniform. Arguments as of ``unigram_loss``.
    """
    log_probabilities = _smoothed_log_probabilities(counts.astype(np.float64))
    previous = windows[:, prefix_bytes:-1]
    return _mean_loss(log_probabilities[previous, _targets(windows, prefix_bytes)])


def xz_loss(
    windows: UInt8[np.ndarray, "n T1"], *, documents: Int64[np.ndarray, " n"], stride: int | None = None
) -> float:
    """Size of xz's output, in nats per byte of its input.

    Compressed is one stream: the windows' bytes in the order given, prefixes and continuations, each byte of the text
    once (where windows of a document overlap, the repeated part is left out), with lzma's preset 9 | EXTREME. Header
    and checksum are counted. So xz is also scored on the prefixes, which models are only shown, and learns from
    earlier windows, which models may not; it has no training text, which models have.

    Args:
        documents: of each window; a document's windows stand together, in its order.
        stride: by how many bytes a document's next window begins later; None where none overlap.
    """
    length = windows.shape[1]
    new_bytes = np.full(len(windows), length)
    if stride is not None:
        new_bytes[1:][documents[1:] == documents[:-1]] = min(stride, length)
    content = b"".join(window[length - new :].tobytes() for window, new in zip(windows, new_bytes, strict=True))
    return len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)) * NATS_PER_STORED_BYTE / len(content)


def _targets(windows: UInt8[np.ndarray, "n T1"], prefix_bytes: int) -> UInt8[np.ndarray, "n s"]:
    """Byte indices ``prefix_bytes + 1`` to the last: 768 of a window of 1,025, as the models are scored."""
    return windows[:, prefix_bytes + 1 :]


def _smoothed_log_probabilities(counts: Float64[np.ndarray, "*rows 256"]) -> Float64[np.ndarray, "*rows 256"]:
    return np.log((counts + 1.0) / (counts.sum(axis=-1, keepdims=True) + VOCABULARY))


def _mean_loss(log_probabilities: Float64[np.ndarray, "n s"]) -> float:
    return -float(np.mean(log_probabilities, dtype=np.float64))
