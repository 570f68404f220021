"""Where does each file of a run folder lie?  One place names them all."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.base.errors import UserError
from thinwire.base.files import read_json
from thinwire.base.locks import exclusive_lock

RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class JobFolder:
    """One training job: the seed run or one expert."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def scalars(self) -> Path:
        return self.root / "scalars.log"

    @property
    def log(self) -> Path:
        return self.root / "log.jsonl"

    @property
    def exchange(self) -> Path:
        """What ranks that trained the job together sent, a line a validation, counted since they began with it."""
        return self.root / "exchange.jsonl"

    @property
    def done(self) -> Path:
        """Written when the job has made its last update; holds the fingerprint of its inputs."""
        return self.root / "done.json"


@dataclass(frozen=True)
class RunFolder:
    """A whole run."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def log(self) -> Path:
        return self.root / "log.jsonl"

    @property
    def router(self) -> Path:
        return self.root / "router"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def seed(self) -> JobFolder:
        return JobFolder(self.root / "seed")

    def expert(self, index: int) -> JobFolder:
        return JobFolder(self.root / "experts" / f"{index:03d}")

    def read_config(self) -> dict[str, Any]:
        """``config.json``; raises UserError where this is no run folder, or the file is damaged."""
        if not self.config.is_file():
            raise UserError(
                "this is not a run folder: it has no config.json",
                where=str(self.root),
                fix="give the folder that 'thinwire train ... --out' wrote",
            )
        record = read_json(self.config)
        if not isinstance(record, dict):
            fix = "restore it from a copy"
            raise UserError("config.json does not describe a run", where=str(self.config), fix=fix)
        return record

    def read_data_record(self) -> dict[str, str]:
        """Folder and fingerprint of the data, from the manifest; raises UserError where they are not in it."""
        manifest = read_json(self.manifest)
        record = manifest.get("data") if isinstance(manifest, dict) else None
        if not isinstance(record, dict) or not {"folder", "fingerprint"} <= record.keys():
            fix = "restore manifest.json from a copy"
            raise UserError("the manifest does not name the run's data", where=str(self.manifest), fix=fix)
        return record


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a folder alone; a second process is told who holds it. The lock dies with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / "lock", place=folder):
        yield


@contextmanager
def patiently_exclusive(folder: Path, *, seconds: float) -> Iterator[None]:
    """As ``exclusive``, but a holder that is about to end is waited for.

    Raises:
        UserError: the folder was not free within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(exclusive(folder))
                break
            except UserError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
        yield
