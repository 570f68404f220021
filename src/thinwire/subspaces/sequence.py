"""Which rank holds which tokens, and whose keys does it need?  Chunks of one sequence and their owners (section 2.1).

Chunks belong to the model (each has a theta of its own); ranks only share them out.  So the same model runs on any
number of ranks, and a rank that is lost leaves its chunks to the others.
"""

from dataclasses import dataclass
from typing import NamedTuple

from thinwire.subspaces.config import ChunkOrder


class Slice(NamedTuple):
    """One chunk as a rank holds it.

    Attributes:
        chunk: its number in the sequence.
        first: its first row in the rank's local tokens.
        tokens: how many it has.
        position: the first row's position in the sequence.
    """

    chunk: int
    first: int
    tokens: int
    position: int


@dataclass(frozen=True)
class Layout:
    """A sequence of ``bounds[-1]`` tokens, cut at ``bounds``; chunk c lies on rank ``owners[c]``."""

    bounds: tuple[int, ...]
    owners: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return self.bounds[-1]

    @property
    def num_chunks(self) -> int:
        return len(self.owners)

    def length(self, chunk: int) -> int:
        return self.bounds[chunk + 1] - self.bounds[chunk]

    def slices(self, rank: int) -> tuple[Slice, ...]:
        """A rank's chunks in the order of the sequence, which is also the order of its local rows."""
        found, first = [], 0
        for chunk, owner in enumerate(self.owners):
            if owner == rank:
                found.append(Slice(chunk, first, self.length(chunk), self.bounds[chunk]))
                first += self.length(chunk)
        return tuple(found)

    def local_tokens(self, rank: int) -> int:
        return sum(self.length(chunk) for chunk, owner in enumerate(self.owners) if owner == rank)

    def readers(self, chunk: int) -> tuple[int, ...]:
        """Other ranks that hold a later chunk, and so attend to this one."""
        later = set(self.owners[chunk + 1 :])
        return tuple(sorted(later - {self.owners[chunk]}))

    def sent(self, *, owner: int, reader: int) -> tuple[int, ...]:
        """Chunks that travel from ``owner`` to ``reader``, in order."""
        return tuple(c for c, held_by in enumerate(self.owners) if held_by == owner and reader in self.readers(c))

    def attended_tokens(self, rank: int) -> int:
        """Query-key pairs that a rank computes: its share of the causal work."""
        return sum(s.tokens * s.position + s.tokens * (s.tokens + 1) // 2 for s in self.slices(rank))


def make_layout(
    *, num_tokens: int, num_chunks: int, num_ranks: int, order: ChunkOrder = "zigzag", shift: int = 0
) -> Layout:
    """Cut a sequence into chunks and share them out.

    zigzag folds the chunks over the ranks (0, 1, .., m-1, m-1, .., 0, 0, ..), so that with 2m chunks rank i holds i and
    2m-1-i and every rank does the same causal work.  choice: lengths differ by one token where they do not divide.

    Args:
        num_chunks: at least ``num_ranks`` and at most ``num_tokens``.
        shift: rank i plays the part of rank i - shift, so that a replica sees every position over time.

    Raises:
        ValueError: more ranks than chunks, or more chunks than tokens.
    """
    if not 1 <= num_ranks <= num_chunks <= num_tokens:
        raise ValueError(f"{num_tokens} tokens cannot make {num_chunks} chunks on {num_ranks} ranks")
    bounds = tuple(num_tokens * index // num_chunks for index in range(num_chunks + 1))
    if order == "contiguous":
        parts = [chunk * num_ranks // num_chunks for chunk in range(num_chunks)]
    else:
        folded = [chunk % (2 * num_ranks) for chunk in range(num_chunks)]
        parts = [place if place < num_ranks else 2 * num_ranks - 1 - place for place in folded]
    return Layout(bounds, tuple((part + shift) % num_ranks for part in parts))
