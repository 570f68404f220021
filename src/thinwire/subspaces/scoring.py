"""How well does the stock model predict?  Perplexity with plain causal attention, document-bootstrap interval (5.2).

The stock model is what a run leaves: no codec, and attention that sees nothing of the future. While a codec is at work
the model is scored as it was trained as well, on the same windows: where theta comes from a chunk's own mean it tells
of tokens to come, and that loss flatters; the stock model's cannot.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch.nn import functional

from thinwire.base.bootstrap import interval
from thinwire.base.progress import Progress, Silent
from thinwire.base.units import bits_per_byte
from thinwire.comm.group import alone
from thinwire.data.protocols import Protocol
from thinwire.data.reopen import reopen
from thinwire.runs.layout import RunFolder
from thinwire.runs.results import text_name
from thinwire.subspaces import saving
from thinwire.subspaces.attention import ContextAttention
from thinwire.subspaces.device import scoring_device
from thinwire.subspaces.exchange import Place
from thinwire.subspaces.full_attention import FullAttention
from thinwire.subspaces.language_model import LanguageModel, load_language_model
from thinwire.subspaces.llama import Attend, Llama
from thinwire.subspaces.replica import Replica
from thinwire.subspaces.schedule import Phase
from thinwire.subspaces.sequence import make_layout
from thinwire.subspaces.stock import THETA_PREFIX
from thinwire.subspaces.texts import ScoredText, Window, split_to_score, text_to_score
from thinwire.subspaces.theta import ThetaAddress

BOOTSTRAP_DRAWS = 10_000
BATCH_TOKENS = 8192
"""Read together, where windows are shorter."""
LOGITS_AT_ONCE = 1 << 24
"""64 MB of them, whatever the vocabulary and the length."""


class Scored(NamedTuple):
    """What the windows cost, one number a window.

    Attributes:
        losses: nats, summed over its targets.
        targets: how many it has.
        documents: the groups of the bootstrap.
        num_bytes: of text in all targets together.
        digest: SHA-256 of all windows, in hexadecimal.
    """

    losses: Float64[np.ndarray, " n"]
    targets: Float64[np.ndarray, " n"]
    documents: np.ndarray
    num_bytes: int
    digest: str

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.losses.sum() / self.targets.sum())


def evaluate(
    run: Path,
    *,
    on: Path | None = None,
    name: str | None = None,
    protocol: Protocol | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score the newest checkpoint of a run as a stock model; nothing is written.

    Args:
        on: a data folder (its test split), or any text (every token of it); None is the test split of the run's own
            data.
        name: of the result; by default the text's.
        protocol: how a text is cut, see ``text_to_score``.
        threads: for arithmetic.

    Returns:
        Plain values: ``loss_nats_per_token``, ``perplexity``, ``ci95`` (of the loss, over documents),
        ``loss_nats_per_byte``, ``bits_per_byte``, what was scored and by which checkpoint; with a codec at work
        ``loss_nats_per_token_as_trained``, and under ``as_trained`` how it was found.

    Raises:
        UserError: the run has no checkpoint, a file is damaged, or the text is missing or too short.
    """
    model = load_language_model(run)
    config = model.stock.config
    if on is None:
        corpus = reopen(RunFolder(run).read_data_record())
        text = split_to_score(corpus, config, tokenizer=model.tokenizer)
    else:
        text = text_to_score(model, on, protocol=protocol)
    with _threads(threads):
        found = score_windows(model, text, progress=progress)
        trained = _as_trained(model, text, found, progress=progress)
    loss, per_byte = found.loss, float(found.losses.sum()) / found.num_bytes
    low, high = interval(found.losses, found.documents, draws=BOOTSTRAP_DRAWS, seed=config.seed, counts=found.targets)
    return {
        "name": name or text_name(on),
        "windows_digest": found.digest[:16],
        "protocol": text.protocol,
        "model": "folded" if model.is_folded else "plain",
        "loss_nats_per_token": loss,
        "perplexity": math.exp(loss),
        "ci95": [low, high],
        "loss_nats_per_byte": per_byte,
        "bits_per_byte": bits_per_byte(per_byte),
        "scored_targets": int(found.targets.sum()),
        "scored_bytes": found.num_bytes,
        "windows": len(found.losses),
        "documents": len(np.unique(found.documents)),
        "codec": config.codec.kind,
        "phase": model.stock.phase,
        "step": model.stock.step,
        "planned_steps": config.optimizer.steps,
        "num_parameters": model.num_parameters,
        **trained,
    }


def score_windows(model: LanguageModel, text: ScoredText, *, progress: Progress | None = None) -> Scored:
    """Every window with full causal attention, in single precision.  Memory is that of one batch."""
    device = scoring_device(model.stock.config.launch)
    llama = model.stock.llama.to(device)
    task = (progress or Silent()).task("scoring (bytes)", text.num_bytes)
    losses: list[float] = []
    targets, documents, num_bytes, digest = [], [], 0, hashlib.sha256()
    for batch in _batches(text.windows()):
        losses += _losses(llama, batch, FullAttention(llama.config), device=device)
        for window in batch:
            targets.append(len(window.tokens) - 1)
            documents.append(window.document)
            digest.update(window.tokens.tobytes())
            num_bytes += window.num_bytes
        task.advance(sum(window.num_bytes for window in batch))
    task.close()
    return Scored(np.array(losses), np.array(targets, np.float64), np.array(documents), num_bytes, digest.hexdigest())


def _batches(windows: Iterator[Window]) -> Iterator[list[Window]]:
    """Neighbours of equal length, as many as are read together."""
    batch: list[Window] = []
    for window in windows:
        length = len(window.tokens)
        if batch and (len(batch[0].tokens) != length or (len(batch) + 1) * length > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _losses(llama: Llama, windows: list[Window], attend: Attend, *, device: torch.device) -> list[float]:
    """Summed cross entropy of each window; the logits of some rows at a time."""
    tokens = torch.from_numpy(np.stack([window.tokens for window in windows])).to(device)
    rows_at_once = max(1, LOGITS_AT_ONCE // llama.vocab_size)
    with torch.no_grad():
        (hidden,) = llama.hidden([tokens[:, :-1]], attend)
        rows, wanted = hidden.flatten(0, 1), tokens[:, 1:].flatten()
        parts = [
            functional.cross_entropy(llama.lm_head(some), target, reduction="none").double()
            for some, target in zip(rows.split(rows_at_once), wanted.split(rows_at_once), strict=True)
        ]
    return torch.cat(parts).view(len(windows), -1).sum(dim=1).tolist()


def _as_trained(model: LanguageModel, text: ScoredText, found: Scored, *, progress: Progress | None) -> dict[str, Any]:
    """The loss with codecs and chunks as in training, in one process, beside the stock model's on the same windows.

    choice: windows of the training length alone, at most ``test_sequences`` of them: chunks keep their length.
    """
    config, phase = model.stock.config, model.stock.phase
    if phase not in ("compressed", "folded"):
        return {}
    is_whole = found.targets == config.sequence.tokens
    chosen = np.flatnonzero(is_whole)[: config.test_sequences]
    if not len(chosen):
        return {}
    passes = _TrainedPasses(model)
    task = (progress or Silent()).task("scoring as trained", len(chosen))
    wanted = {int(index) for index in chosen}
    losses: list[float] = []
    for index, window in enumerate(text.windows()):
        if index in wanted:
            losses.append(passes.loss(window, number=len(losses)))
            task.advance()
            if len(losses) == len(chosen):
                break
    task.close()
    targets = float(found.targets[chosen].sum())
    loss = math.fsum(losses) / targets
    stock = float(found.losses[chosen].sum()) / targets
    return {
        "loss_nats_per_token_as_trained": loss,
        "as_trained": {
            "loss_nats_per_token": loss,
            "stock_loss_nats_per_token": stock,
            "windows": len(chosen),
            "theta_source": passes.codec.theta_source if passes.codec.kind == "subspace" else None,
        },
    }


class _TrainedPasses:
    """The model of the newest checkpoint with its codecs, on one rank."""

    def __init__(self, model: LanguageModel) -> None:
        self._config, self._step = model.stock.config, model.stock.step
        phase: Phase = model.stock.phase
        self._device = scoring_device(self._config.launch)
        saved = saving.load_weights(model.run, step=self._step).tensors
        self._replica = Replica(self._config, vocab_size=model.stock.llama.vocab_size).eval()
        self._replica.to(self._device)
        self._replica.load_weights({name: t for name, t in saved.items() if not name.startswith(THETA_PREFIX)})
        self.codec = self._replica.codec_config(phase)
        self._codecs = self._replica.codecs(phase)
        size = self._config.sequence
        layout = make_layout(num_tokens=size.tokens, num_chunks=size.chunks, num_ranks=1, order=size.order)
        self._place = Place(alone(), layout, 1, 1, torch.float32, self._device)

    def loss(self, window: Window, *, number: int) -> float:
        """Nats, summed over the window's targets."""
        attend = ContextAttention(
            self._place,
            model=self._config.model,
            codecs=self._codecs,
            codec=self.codec,
            heads=self._replica.heads,
            address=ThetaAddress(self._config.seed, self._step + 1, number),
        )
        return _losses(self._replica.llama, [window], attend, device=self._device)[0]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads for arithmetic, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
