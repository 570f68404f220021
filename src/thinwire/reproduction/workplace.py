"""Where does an item work?  Its folder, its text, and parts and runs that are made once, so that it goes on anywhere.

A part is a JSON file with the fingerprint of what it was computed from: it is kept where that is still the same, and
computed anew where it is not. A run is an ordinary run folder, which resumes by itself.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire import __version__
from thinwire.base.files import read_json, write_json
from thinwire.base.progress import Voice
from thinwire.config.fingerprint import fingerprint
from thinwire.data.corpus import read_manifest
from thinwire.reproduction.item import Scale
from thinwire.soma.config import SomaConfig

PARTS, RUNS = "parts", "runs"


@dataclass(frozen=True)
class Workplace:
    """All that an item may read.

    Attributes:
        scale: how much work is done.
        out: the folder of all items of this scale.
        item: the item's name.
        data: a prepared folder.
        voice: bars and messages.
        threads: for arithmetic; no result depends on it.
        texts: further texts that some items score (WikiText-103); None where none were given.
        command: the command line that goes on with this work, kept in run folders for people.
    """

    scale: Scale
    out: Path
    item: str
    data: Path
    voice: Voice
    threads: int
    texts: Path | None = None
    command: str | None = None

    @property
    def folder(self) -> Path:
        """Where the item's own files lie."""
        return self.out / self.item

    def part(self, name: str, *, inputs: Any, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A piece of an item's work, from ``parts/NAME.json`` where inputs, text and version are the same.

        Args:
            name: a file's name, without a suffix.
            inputs: plain values and dataclasses, in lists or dictionaries, that decide the result.
            compute: makes the result, plain finite values.
        """
        path = self.folder / PARTS / f"{name}.json"
        wanted = fingerprint(inputs, self.data_fingerprint, __version__)
        if path.is_file():
            kept = read_json(path)
            if kept.get("inputs") == wanted:
                return kept["result"]
        started = time.perf_counter()
        result = compute()
        write_json(path, {"inputs": wanted, "seconds": time.perf_counter() - started, "result": result})
        return read_json(path)["result"]  # as a later call will see it

    def run(self, name: str, config: SomaConfig) -> Path:
        """Train a SOMA run, or go on with it; items that name the same run share it.

        Raises:
            UserError: the folder holds a run of another configuration; else as ``soma.recipe.train``.
        """
        from thinwire.soma.recipe import train

        folder = self.out / RUNS / name
        train(config, data=self.data, out=folder, preset=name, command=self.command, voice=self.voice)
        return folder

    @property
    def data_fingerprint(self) -> str:
        """Of the prepared text."""
        return read_manifest(self.data)["fingerprint"]
