"""What does a run write?  The stock model continues a prompt token by token, with keys and values kept.

The paper leaves generation open.  choice: an empty prompt is read as the token that ends documents, after which texts
begin; the model never reads more tokens than it was trained on: of a longer prompt it reads the last ones, and when
the text has grown to that length it reads the newer half again and goes on.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from thinwire.base.seeds import numpy_generator
from thinwire.subspaces.full_attention import FullAttention, KeysAndValues
from thinwire.subspaces.language_model import LanguageModel


@dataclass(frozen=True)
class Generated:
    """A sample.

    Attributes:
        prompt, text: bytes given, bytes written.
        prompt_tokens: of the whole prompt.
        unread_prompt_tokens: at its beginning, where it is longer than the model's context.
    """

    prompt: bytes
    text: bytes
    prompt_tokens: int
    unread_prompt_tokens: int


class _Reader:
    """What has been read, and what comes next."""

    def __init__(self, model: LanguageModel) -> None:
        self._llama, self._context = model.stock.llama, model.context_tokens
        self._device = self._llama.lm_head.weight.device
        self._tokens: list[int] = []
        self._cache: dict[int, KeysAndValues] = {}

    def read(self, tokens: list[int]) -> Float64[np.ndarray, " vocab"]:
        """Read on; the logits of the next token."""
        self._tokens += tokens
        if len(self._tokens) > self._context:
            self._tokens = self._tokens[-max(1, self._context // 2) :]
            self._cache, tokens = {}, self._tokens
        rows = torch.tensor([tokens], dtype=torch.int64, device=self._device)
        with torch.no_grad():
            (hidden,) = self._llama.hidden([rows], FullAttention(self._llama.config, cache=self._cache))
            logits = self._llama.lm_head(hidden[0, -1])
        return logits.double().cpu().numpy()


def sample_token(logits: Float64[np.ndarray, " vocab"], *, temperature: float, uniform: float) -> int:
    """One token from softmax(logits / temperature), by inverse transform of a number in [0, 1); the likeliest at 0."""
    if temperature == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):
        weights = np.exp((logits - logits.max()) / temperature)
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right").clip(0, len(logits) - 1))


def generate(
    model: LanguageModel, prompt: bytes, *, num_bytes: int, temperature: float = 0.7, seed: int = 1
) -> Generated:
    """Continue ``prompt`` by ``num_bytes`` bytes; the last token is cut where it is longer.

    Args:
        temperature: 0 takes the likeliest token; 1 samples from the model as it is.
        seed: the same seed, model and prompt give the same text.
    """
    tokenizer = model.tokenizer
    given = tokenizer.encode(prompt).tolist()
    known = given[-model.context_tokens :] or [tokenizer.end_token]
    uniforms = numpy_generator(seed, "generate")
    reader, text = _Reader(model), bytearray()
    unread = list(known)
    while len(text) < num_bytes:
        token = sample_token(reader.read(unread), temperature=temperature, uniform=float(uniforms.random()))
        text += tokenizer.decode(_one(token))
        unread = [token]
    return Generated(prompt, bytes(text[:num_bytes]), len(given), max(0, len(given) - model.context_tokens))


def _one(token: int) -> Int64[np.ndarray, " one"]:
    return np.array([token], np.int64)
