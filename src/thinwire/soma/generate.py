"""What does a run write?  Experts chosen by the router, their probabilities averaged, one byte at a time (Eq. 1).

The paper leaves generation open.  choice: a prompt too short to route averages the experts by cluster prior; with
``refresh`` the text so far is routed anew every 256 bytes, and newly chosen experts first read what they missed.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from thinwire.base.seeds import numpy_generator
from thinwire.kernels.routed_scores.cpu_impl import ByteStepper
from thinwire.soma.ensemble import Ensemble

RouteMode = Literal["once", "refresh"]
REROUTE_BYTES = 256
CONTEXT_BYTES = 1024


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


class _Writers:
    """The chosen experts' recurrent states and weights."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.steppers: dict[int, ByteStepper] = {}
        self.weights: dict[int, float] = {}
        self.log_probabilities: dict[int, np.ndarray] = {}

    def choose(self, text: bytes) -> tuple[list[int], list[float]]:
        """Route by the last 256 bytes of ``text``; experts that join read the last 1,024."""
        route = self.ensemble.route([text[-REROUTE_BYTES:]])
        experts, weights = route.experts[0].tolist(), route.weights[0].tolist()
        self.weights = dict(zip(experts, weights, strict=True))
        self.steppers = {expert: self.steppers.get(expert) or self._new(expert, text) for expert in experts}
        return experts, weights

    def _new(self, expert: int, text: bytes) -> ByteStepper:
        ensemble = self.ensemble
        decoder = ensemble.decoder[expert] if ensemble.decoder.dim() == 3 else ensemble.decoder
        stepper = ByteStepper(ensemble.thetas[expert].numpy(), shape=ensemble.shape, decoder=decoder.numpy())
        # A window of training begins with the byte that ends a document, so an empty prompt is read as one.
        seen = text[-CONTEXT_BYTES:] or b"\x00"
        self.log_probabilities[expert] = stepper.read(np.frombuffer(seen, np.uint8))
        return stepper

    def read(self, byte: int) -> None:
        one = np.array([byte], np.uint8)
        for expert, stepper in self.steppers.items():
            self.log_probabilities[expert] = stepper.read(one)

    def mixture(self) -> np.ndarray:
        """float64 [256], the probability of the next byte."""
        return sum(
            (weight * np.exp(self.log_probabilities[expert]) for expert, weight in self.weights.items()), np.zeros(256)
        )


def sample_byte(probability: np.ndarray, *, temperature: float, uniform: float) -> int:
    """One byte from p^(1/temperature), by inverse transform of a number in [0, 1); the likeliest at temperature 0."""
    if temperature == 0:
        return int(probability.argmax())
    with np.errstate(divide="ignore", over="ignore"):
        weights = np.exp((np.log(probability) - np.log(probability.max())) / temperature)
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right").clip(0, 255))


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
    uniforms = numpy_generator(seed, "generate").random(num_bytes)
    writers, text, parts = _Writers(ensemble), bytearray(prompt), []
    for index in range(num_bytes):
        if index == 0 or (route == "refresh" and index % REROUTE_BYTES == 0):
            experts, weights = writers.choose(bytes(text))
            parts.append((index, experts, weights))
        byte = sample_byte(writers.mixture(), temperature=temperature, uniform=uniforms[index])
        text.append(byte)
        writers.read(byte)
    return Generated(prompt, bytes(text[len(prompt) :]), parts)
