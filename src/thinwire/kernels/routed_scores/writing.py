"""Texts that experts read and continue, a byte at a time, sampling included: one compiled loop (Eq. 1).

A byte of one text passes through its k experts one after the other, rows of their matrices in the lanes; their packed
weights (four at d = 32: 560 KB) stay in a core's cache from byte to byte.  Texts that share all their experts go
together, up to four.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
from numba import njit

from thinwire.kernels.compiled import compiled
from thinwire.kernels.expert_shape import VOCABULARY
from thinwire.kernels.lane_layout import Sizes
from thinwire.kernels.routed_scores.resident import ResidentExperts
from thinwire.kernels.routed_scores.stream_forward import (
    STREAMS_TOGETHER,
    forward_streams,
    rooms_of,
    state_floats,
    stream_scratch,
)


class Reading(NamedTuple):
    """One text as one expert has read it.

    Attributes:
        state: float32 [state_floats].
        probability: float32 [256], of the next byte.
    """

    state: np.ndarray
    probability: np.ndarray


class Continuation(NamedTuple):
    """What one text is continued with.

    Attributes:
        readings: of its k experts.
        weights: float64 [k], of the experts' probabilities.
        uniforms: float64 [n] in [0, 1), one for each byte to write.
    """

    readings: Sequence[Reading]
    weights: np.ndarray
    uniforms: np.ndarray


@compiled
@no_type_check
def draw_byte(probability: np.ndarray, temperature: float, uniform: float, cumulative: np.ndarray) -> int:
    """One byte from p^(1/temperature) by inverse transform; the likeliest at temperature 0.

    Args:
        probability: float64 [256], need not sum to one.
        uniform: in [0, 1).
        cumulative: float64 [256], workspace.
    """
    best = 0
    for byte in range(VOCABULARY):
        if probability[byte] > probability[best]:
            best = byte
    if temperature == 0.0:
        return best
    top, total = math.log(probability[best]), 0.0
    for byte in range(VOCABULARY):
        p = probability[byte]
        if temperature == 1.0:
            total += p
        elif p > 0.0:
            total += math.exp((math.log(p) - top) / temperature)
        cumulative[byte] = total
    for byte in range(VOCABULARY):
        if cumulative[byte] > uniform * total:
            return byte
    return VOCABULARY - 1


@njit(nogil=True)
@no_type_check
def _divide(row: np.ndarray, divisor: float, out: np.ndarray) -> None:
    """Apart from its callers, so that the compiler sees two plain vectors."""
    for index in range(len(out)):
        out[index] = row[index] / divisor


@njit(nogil=True)
@no_type_check
def _add_weighted(row: np.ndarray, weight: float, total: np.ndarray) -> None:
    for index in range(len(total)):
        total[index] += weight * row[index]


@compiled
@no_type_check
def _keep_probabilities(num_streams: int, sizes: Sizes, scratch: np.ndarray, probabilities: np.ndarray) -> None:
    """probabilities [S, 256] of the byte after the last one read."""
    rooms = rooms_of(sizes, num_streams)
    for s in range(num_streams):
        powers = scratch[rooms.powers + s * VOCABULARY : rooms.powers + (s + 1) * VOCABULARY]
        _divide(powers, scratch[rooms.sums + 2 * s + 1], probabilities[s])


@compiled
@no_type_check
def _write(
    streams: tuple[int, ...],
    experts: np.ndarray,
    packed: np.ndarray,
    tables: np.ndarray,
    decoders: np.ndarray,
    sizes: Sizes,
    states: np.ndarray,
    probabilities: np.ndarray,
    weights: np.ndarray,
    uniforms: np.ndarray,
    temperature: float,
    written: np.ndarray,
    scratch: np.ndarray,
) -> None:
    """Fill ``written`` [S, n]; states [k, S, F] and probabilities [k, S, 256] go on with it."""
    num_streams = len(streams)
    tokens = np.zeros((num_streams, 2), np.uint8)
    ignored = np.empty((num_streams, 1))
    mixture, cumulative = np.empty(VOCABULARY), np.empty(VOCABULARY)
    for index in range(written.shape[1]):
        for s in range(num_streams):
            mixture[:] = 0.0
            for slot in range(len(experts)):
                _add_weighted(probabilities[slot, s], weights[s, slot], mixture)
            byte = draw_byte(mixture, temperature, uniforms[s, index], cumulative)
            written[s, index] = byte
            tokens[s, 0] = byte
        for slot in range(len(experts)):
            expert = experts[slot]
            decoder = decoders[min(expert, len(decoders) - 1)]
            forward_streams(
                streams,
                packed[expert],
                tables[expert],
                decoder,
                sizes,
                tokens,
                0,
                states[slot],
                scratch,
                ignored,
            )
            _keep_probabilities(num_streams, sizes, scratch, probabilities[slot])


@compiled
@no_type_check
def _read(
    experts: np.ndarray,
    packed: np.ndarray,
    tables: np.ndarray,
    decoders: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    states: np.ndarray,
    probabilities: np.ndarray,
    scratch: np.ndarray,
) -> None:
    """Fill states [k, 1, F] and probabilities [k, 1, 256]; ``tokens`` [1, n + 1] end with a byte that is not read.

    Only the last position has logits.
    """
    last = tokens.shape[1] - 2
    ignored = np.empty((1, last + 1))
    for slot in range(len(experts)):
        expert = experts[slot]
        decoder = decoders[min(expert, len(decoders) - 1)]
        weights = (packed[expert], tables[expert], decoder, sizes)
        forward_streams((0,), *weights, tokens, last, states[slot], scratch, ignored)
        _keep_probabilities(1, sizes, scratch, probabilities[slot])


def read_text(model: ResidentExperts, experts: Sequence[int], text: bytes) -> list[Reading]:
    """Each of ``experts`` reads ``text`` from the zero state of a window's start.

    Raises:
        ValueError: where there is no byte, or an expert is not in 0..N-1.
    """
    if not text:
        raise ValueError("no byte to read")
    model.load(experts)
    sizes, num_experts = model.sizes, len(experts)
    states = np.zeros((num_experts, 1, state_floats(sizes)), np.float32)
    probabilities = np.empty((num_experts, 1, VOCABULARY), np.float32)
    _read(
        np.array(experts, np.int64),
        model.packed,
        model.tables,
        model.decoders,
        sizes,
        np.array([[*text, 0]], np.uint8),
        states,
        probabilities,
        stream_scratch(sizes),
    )
    return [Reading(states[slot, 0], probabilities[slot, 0]) for slot in range(num_experts)]


class Written(NamedTuple):
    """Bytes, and the experts' readings of the text with them."""

    text: bytes
    readings: list[Reading]


def continue_texts(
    model: ResidentExperts, *, experts: Sequence[int], texts: Sequence[Continuation], temperature: float
) -> list[Written]:
    """As many bytes for each text as it has uniforms, equally many for all; a text's bytes depend on itself alone.

    Args:
        experts: the k experts of all texts, in the order of their readings.
        temperature: 0 takes the likeliest byte; 1 samples from the mixture as it is.

    Raises:
        ValueError: where an expert is not in 0..N-1, or a text has not one reading and one weight for each expert, or
            not as many uniforms as the others.
    """
    model.load(experts)
    for text in texts:
        if not len(text.readings) == len(text.weights) == len(experts) or len(text.uniforms) != len(texts[0].uniforms):
            raise ValueError(
                f"{len(experts)} experts and {len(texts[0].uniforms)} bytes need as many readings, weights and "
                f"uniforms, not {len(text.readings)}, {len(text.weights)} and {len(text.uniforms)}"
            )
    written: list[Written] = []
    while len(written) < len(texts):
        count = next(count for count in STREAMS_TOGETHER if count <= len(texts) - len(written))
        written += _continue_together(model, experts, texts[len(written) : len(written) + count], temperature)
    return written


def _continue_together(
    model: ResidentExperts, experts: Sequence[int], texts: Sequence[Continuation], temperature: float
) -> list[Written]:
    slots = range(len(experts))
    states = np.array([[text.readings[slot].state for text in texts] for slot in slots])
    probabilities = np.array([[text.readings[slot].probability for text in texts] for slot in slots])
    uniforms = np.array([text.uniforms for text in texts])
    written = np.zeros(uniforms.shape, np.uint8)
    _write(
        (0,) * len(texts),
        np.array(experts, np.int64),
        model.packed,
        model.tables,
        model.decoders,
        model.sizes,
        states,
        probabilities,
        np.array([text.weights for text in texts], np.float64),
        uniforms,
        float(temperature),
        written,
        stream_scratch(model.sizes),
    )
    return [
        Written(written[s].tobytes(), [Reading(states[slot, s], probabilities[slot, s]) for slot in slots])
        for s in range(len(texts))
    ]
