"""Is the data that a run was started on still there, and the same?"""

from pathlib import Path

from thinwire.base.errors import UserError
from thinwire.data.corpus import Corpus


def reopen(recorded: dict[str, str]) -> Corpus:
    """Open the folder that a run's manifest names.

    Args:
        recorded: ``folder`` and ``fingerprint``.

    Raises:
        UserError: the folder is gone, or holds something else now.
    """
    folder = Path(recorded["folder"])
    if not folder.is_dir():
        raise UserError(
            "the data folder of this run is not where it was",
            where=str(folder),
            fix="give the training command of this run again, with --data where the folder lies now",
        )
    corpus = Corpus.open(folder)
    if corpus.fingerprint != recorded["fingerprint"]:
        raise UserError(
            "the data folder has changed since this run began",
            where=recorded["folder"],
            fix="prepare the same data again, or start another run",
        )
    return corpus
