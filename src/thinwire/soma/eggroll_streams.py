"""Which bytes does each stream of EGGROLL read in an update?  The next ones of its own place in the training text.

choice: streams begin evenly spaced, all moved by one offset that the seed draws, and go round at the text's end: the
paper says 256 streams and 100 bytes an update, not where they begin.  An update's bytes follow from its number alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from thinwire.base.errors import UserError
from thinwire.base.seeds import draw_below, stream_key
from thinwire.data.shards import ByteShards
from thinwire.soma.eggroll_config import EggrollTraining


class Streams(NamedTuple):
    """Attributes:
    shards: the training split.
    starts: int64 [S], where each stream reads its first byte.
    update_bytes: T, bytes read in an update.
    """

    shards: ByteShards
    starts: np.ndarray
    update_bytes: int

    def windows(self, update: int) -> UInt8[np.ndarray, "S T1"]:
        """The bytes of update 1, 2, ...: T inputs and the target behind them, which the next update reads first."""
        size = self.shards.num_bytes
        starts = (self.starts + (update - 1) * self.update_bytes) % size
        length = self.update_bytes + 1
        goes_round = starts + length > size
        windows = np.empty((len(starts), length), np.uint8)
        windows[~goes_round] = self.shards.gather(starts[~goes_round], length=length)
        for row in np.flatnonzero(goes_round):
            places = (starts[row] + np.arange(length)) % size
            windows[row] = self.shards.gather(places, length=1)[:, 0]
        return windows


def open_streams(shards: ByteShards, *, training: EggrollTraining, seed: int) -> Streams:
    """Raises UserError where the text has less than one update's bytes for every stream."""
    needed = training.streams * training.update_bytes
    if shards.num_bytes < needed:
        raise UserError(
            f"the training text has {shards.num_bytes:,} bytes; {training.streams} streams of {training.update_bytes} "
            f"bytes an update need at least {needed:,}",
            where=str(shards.folder),
            fix="prepare more text, or ask for fewer streams (--training.streams)",
        )
    offset = draw_below(stream_key(seed, "eggroll streams"), np.array([shards.num_bytes]))
    evenly = np.arange(training.streams, dtype=np.int64) * shards.num_bytes // training.streams
    return Streams(shards, (evenly + offset) % shards.num_bytes, training.update_bytes)
