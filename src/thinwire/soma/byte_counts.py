"""Where does a run keep its own copy of the training split's byte pairs, so that any text has its baselines?"""

import io
from pathlib import Path

import numpy as np
from jaxtyping import UInt64

from thinwire.base.errors import UserError
from thinwire.base.files import atomic_write
from thinwire.data.reopen import reopen
from thinwire.runs.layout import RunFolder

BIGRAMS = "bigrams.npy"


def save_array(path: Path, array: np.ndarray) -> None:
    """A ``.npy`` file, whole or absent. Raises OSError, e.g. of a full disk."""
    whole = io.BytesIO()  # NumPy's own write to a full disk raises an error without a number
    np.save(whole, array, allow_pickle=False)
    atomic_write(path, whole.getvalue())


def keep_bigrams(folder: RunFolder, bigrams: UInt64[np.ndarray, "256 256"]) -> None:
    save_array(folder.root / BIGRAMS, bigrams)


def load_bigrams(folder: RunFolder) -> UInt64[np.ndarray, "256 256"]:
    """Byte-bigram counts, the row is the previous byte; from the data folder where the run has no copy.

    Raises:
        UserError: the copy is damaged, or there is none and the data folder is gone or has changed.
    """
    path = folder.root / BIGRAMS
    if not path.is_file():
        return reopen(folder.read_data_record()).bigrams
    try:
        return np.load(path, allow_pickle=False).reshape(256, 256)
    except (ValueError, EOFError) as error:
        fix = "remove it: the counts are then read from the data folder"
        raise UserError("the byte counts are damaged", where=str(path), fix=fix) from error
