"""Under which name is a score kept?  One JSON file a text in ``RUN/results``.

No text's is overwritten by another's.
"""

from pathlib import Path
from typing import Any

from thinwire.base.files import read_json, write_json
from thinwire.runs.layout import RunFolder

OWN_RESULTS = frozenset(
    {"test", "matrix", "sample", "done", "traffic", "variance", "active-experts", "complementarity", "throughput"}
)
"""Names in RUN/results that no text of one's own may take."""


def text_name(on: Path | None) -> str:
    """A result's name: the text's; ``test`` for the test split of the run's own data."""
    stem = "test" if on is None else on.resolve().stem
    return f"text-{stem}" if on is not None and stem in OWN_RESULTS else stem


def keep_result(root: Path, record: dict[str, Any]) -> None:
    """Write a record to ``RUN/results/NAME.json``; another text of the same name gets its digest added to its own.

    Args:
        record: with ``name``, and with ``windows_digest``, which tells what was scored.

    Raises:
        OSError: the run cannot be written.
    """
    folder = RunFolder(root).results
    path = folder / f"{record['name']}.json"
    is_other = path.is_file() and read_json(path).get("windows_digest") != record["windows_digest"]
    if is_other and record["name"] not in OWN_RESULTS:
        path = folder / f"{record['name']}-{record['windows_digest'][:8]}.json"
    write_json(path, record)
