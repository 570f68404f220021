"""Which tokens does this rank read at a step?  A pure function of the step's address and the rank's place."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.base.seeds import stream_key
from thinwire.data.tokens import TokenStream, draw_sequences
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.sequence import Layout


class Batch(NamedTuple):
    """Tokens and targets, int64 [b, local tokens] each."""

    tokens: Tensor
    targets: Tensor


def local_part(sequences: np.ndarray, layout: Layout, *, rank: int) -> Batch:
    """A rank's chunks of whole sequences [b, n + 1], in the order of its rows."""
    columns = np.concatenate([np.arange(s.position, s.position + s.tokens) for s in layout.slices(rank)])
    return Batch(torch.from_numpy(sequences[:, columns]), torch.from_numpy(sequences[:, columns + 1]))


def step_sequences(stream: TokenStream, config: SubspacesConfig, *, step: int) -> np.ndarray:
    """All sequences of an update, int64 [sequences_per_step, n + 1]; every rank draws the same."""
    key = stream_key(config.seed, "sequences")
    size = config.sequence
    return draw_sequences(stream, key=key, step=step, count=size.sequences_per_step, tokens=size.tokens)


def warmup_batch(stream: TokenStream, config: SubspacesConfig, *, step: int, rank: int, num_ranks: int) -> Batch | None:
    """A rank's short sequences of a warm-up step; together they hold about the tokens of a long step.

    None for a rank that has none, where there are more ranks than short sequences.
    """
    length = config.phases.warmup_tokens
    count = warmup_sequences(config)
    key = stream_key(config.seed, "warm-up")
    drawn = draw_sequences(stream, key=key, step=step, count=count, tokens=length)[rank::num_ranks]
    if not len(drawn):
        return None
    return Batch(torch.from_numpy(drawn[:, :-1].copy()), torch.from_numpy(drawn[:, 1:].copy()))


def warmup_sequences(config: SubspacesConfig) -> int:
    """Short sequences of a warm-up step, over all ranks."""
    size = config.sequence
    return max(1, size.sequences_per_step * size.tokens // config.phases.warmup_tokens)


def step_targets(config: SubspacesConfig, *, is_warmup: bool) -> int:
    """Targets of one update over all ranks."""
    if is_warmup:
        return warmup_sequences(config) * config.phases.warmup_tokens
    return config.sequence.sequences_per_step * config.sequence.tokens
