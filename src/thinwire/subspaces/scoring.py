"""How well does the stock model predict?  Perplexity with plain causal attention, document-bootstrap interval."""

from pathlib import Path
from typing import Any

from thinwire.base.progress import Progress


def evaluate(run: Path, *, threads: int, progress: Progress | None = None) -> dict[str, Any]:
    raise NotImplementedError
