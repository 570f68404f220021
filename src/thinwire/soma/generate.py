"""What does a run write?  Experts chosen by the router, their probabilities averaged, one byte at a time (Eq. 1).

The paper leaves generation open.  choice: a prompt too short to route averages the experts by cluster prior; with
``refresh`` the text so far is routed anew every 256 bytes, and newly chosen experts first read what they missed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from thinwire.base.seeds import numpy_generator
from thinwire.kernels.routed_scores.stream_forward import STREAMS_TOGETHER
from thinwire.kernels.routed_scores.writing import Continuation, Reading, continue_texts, draw_byte, read_text
from thinwire.kernels.threads import for_each
from thinwire.soma.ensemble import Ensemble

RouteMode = Literal["once", "refresh"]
REROUTE_BYTES = 256
CONTEXT_BYTES = 1024
MOST_TOGETHER = max(STREAMS_TOGETHER)


@dataclass(frozen=True)
class Generated:
    """A sample.

    Attributes:
        prompt, text: bytes given, bytes written.
        experts: the experts that wrote each part, in order: (first byte of the part, experts, weights).
    """

    prompt: bytes
    text: bytes
    experts: list[tuple[int, list[int], list[float]]]


@dataclass
class _Draft:
    """A text being written: its bytes so far, the experts of each part, and their readings of it."""

    prompt: bytes
    text: bytearray
    parts: list[tuple[int, list[int], list[float]]] = field(default_factory=list)
    weights: dict[int, float] = field(default_factory=dict)
    readings: dict[int, Reading] = field(default_factory=dict)

    @property
    def experts(self) -> tuple[int, ...]:
        """By number, so that the sum of their probabilities is the same whoever is nearest."""
        return tuple(sorted(self.weights))

    def continuation(self, uniforms: np.ndarray) -> Continuation:
        experts = self.experts
        weights = np.array([self.weights[expert] for expert in experts])
        return Continuation([self.readings[expert] for expert in experts], weights, uniforms)


def sample_byte(probability: np.ndarray, *, temperature: float, uniform: float) -> int:
    """One byte from p^(1/temperature), by inverse transform of a number in [0, 1); the likeliest at temperature 0."""
    return int(draw_byte(probability, float(temperature), float(uniform), np.empty(256)))


def generate(
    ensemble: Ensemble,
    prompt: bytes,
    *,
    num_bytes: int,
    temperature: float = 0.7,
    seed: int = 1,
    route: RouteMode = "refresh",
) -> Generated:
    """Continue ``prompt`` by ``num_bytes`` bytes.

    Args:
        temperature: 0 takes the likeliest byte; 1 samples from the mixture as it is.
        seed: the same seed, run and prompt give the same bytes.
        route: ``once`` keeps the first choice of experts; ``refresh`` routes anew every 256 bytes.
    """
    (written,) = generate_batch(
        ensemble, [prompt], num_bytes=num_bytes, temperature=temperature, seed=seed, route=route
    )
    return written


def generate_batch(
    ensemble: Ensemble,
    prompts: Sequence[bytes],
    *,
    num_bytes: int,
    temperature: float = 0.7,
    seed: int = 1,
    route: RouteMode = "refresh",
    threads: int = 1,
) -> list[Generated]:
    """Continue every prompt, each as ``generate`` would alone with this seed, whatever the others are.

    A text is written by one thread; those that share all their experts go through them together.
    """
    uniforms = numpy_generator(seed, "generate").random(num_bytes)
    drafts = [_Draft(prompt, bytearray(prompt)) for prompt in prompts]
    for start in range(0, num_bytes, REROUTE_BYTES):
        if start == 0 or route == "refresh":
            _choose(ensemble, drafts, first_byte=start, threads=threads)
        _write(ensemble, drafts, uniforms[start : start + REROUTE_BYTES], temperature=temperature, threads=threads)
    return [Generated(draft.prompt, bytes(draft.text[len(draft.prompt) :]), draft.parts) for draft in drafts]


def _choose(ensemble: Ensemble, drafts: list[_Draft], *, first_byte: int, threads: int) -> None:
    """Route every text by its last 256 bytes; experts that join read the last 1,024."""
    routes = ensemble.route([bytes(draft.text[-REROUTE_BYTES:]) for draft in drafts])
    for draft, experts, weights in zip(drafts, routes.experts.tolist(), routes.weights.tolist(), strict=True):
        draft.parts.append((first_byte, experts, weights))
        draft.weights = dict(zip(experts, weights, strict=True))
        draft.readings = {expert: known for expert, known in draft.readings.items() if expert in draft.weights}
    ensemble.resident.load(np.unique(routes.experts).tolist(), threads=threads)

    def read(draft: _Draft, _: None) -> None:
        joining = [expert for expert in draft.experts if expert not in draft.readings]
        if joining:
            # A window of training begins with the byte that ends a document, so an empty prompt is read as one.
            seen = bytes(draft.text[-CONTEXT_BYTES:]) or b"\x00"
            draft.readings |= dict(zip(joining, read_text(ensemble.resident, joining, seen), strict=True))

    for_each(drafts, read, make_workspace=lambda: None, threads=threads)


def _write(ensemble: Ensemble, drafts: list[_Draft], uniforms: np.ndarray, *, temperature: float, threads: int) -> None:
    """One byte for each of ``uniforms``; texts of the same experts together."""
    by_experts: dict[tuple[int, ...], list[_Draft]] = {}
    for draft in drafts:
        by_experts.setdefault(draft.experts, []).append(draft)
    groups = [
        drafts_alike[first : first + MOST_TOGETHER]
        for drafts_alike in by_experts.values()
        for first in range(0, len(drafts_alike), MOST_TOGETHER)
    ]

    def run(together: list[_Draft], _: None) -> None:
        experts = together[0].experts
        texts = [draft.continuation(uniforms) for draft in together]
        written = continue_texts(ensemble.resident, experts=experts, texts=texts, temperature=temperature)
        for draft, result in zip(together, written, strict=True):
            draft.text += result.text
            draft.readings = dict(zip(experts, result.readings, strict=True))

    for_each(groups, run, make_workspace=lambda: None, threads=threads)
