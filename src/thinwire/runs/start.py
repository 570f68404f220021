"""May this folder become, or go on as, this run?  New, the same run again, or refused with the settings that differ."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import thinwire
from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.config.fingerprint import differing_keys
from thinwire.runs.layout import RunFolder

UNFINISHED_START = {"lock", "manifest.json", "manifest.json.tmp", "config.json.tmp"}
"""All that a kill before the first config.json can leave in a run folder."""
PACKAGES = ("torch", "numpy", "numba", "scikit-learn", "scipy", "safetensors")


@dataclass(frozen=True)
class Start:
    """A run that is asked for.

    Attributes:
        kind: the method, e.g. ``soma``.
        preset: the name kept beside the settings.
        config: all settings, plain.
        data_folder, data_fingerprint: what it trains on.
        num_parameters: of one model.
        cores: of this machine, for the manifest.
        command: the command line that goes on with this run, kept for people.
    """

    kind: str
    preset: str
    config: dict[str, Any]
    data_folder: Path
    data_fingerprint: str
    num_parameters: int
    cores: int
    command: str | None = None


def refuse_foreign_folder(out: Path) -> None:
    """Raises UserError where ``out`` is a file, or a folder with other things in it than a run."""
    if RunFolder(out).config.is_file() or not out.exists():
        return
    if not out.is_dir() or {path.name for path in out.iterdir()} - UNFINISHED_START:
        raise UserError("--out exists and is not a run folder", where=str(out), fix="give a new or empty folder")


def start_or_go_on(
    folder: RunFolder,
    start: Start,
    *,
    results_of: Callable[[dict[str, Any]], dict[str, Any]],
    is_extension: Callable[[str], bool],
) -> None:
    """Write ``manifest.json`` and ``config.json`` of a new run, or check that the run there is the same.

    Args:
        results_of: what of a configuration the results depend on.
        is_extension: whether a line of ``differing_keys`` is a wish for more of the same.

    Raises:
        UserError: the folder holds a run of another kind, configuration or data, or something else.
    """
    if folder.config.is_file():
        _refuse_another(folder, start, results_of=results_of, is_extension=is_extension)
    refuse_foreign_folder(folder.root)
    write_json(folder.manifest, _manifest(start))
    write_json(folder.config, {"kind": start.kind, "preset": start.preset, "config": start.config})


def _refuse_another(
    folder: RunFolder,
    start: Start,
    *,
    results_of: Callable[[dict[str, Any]], dict[str, Any]],
    is_extension: Callable[[str], bool],
) -> None:
    record = folder.read_config()
    if record.get("kind") != start.kind:
        raise UserError(
            f"this folder holds a run of kind '{record.get('kind')}', not {start.kind}",
            where=str(folder.config),
            fix="give another --out",
        )
    differences = differing_keys(results_of(record["config"]), results_of(start.config))
    differences = [line for line in differences if not is_extension(line)]
    if differences:
        listed = "\n    ".join(["", *differences])
        raise UserError(
            f"this folder holds a run of another configuration:{listed}",
            where=str(folder.config),
            fix="give another --out, or the same settings to go on with this run",
        )
    if folder.read_data_record()["fingerprint"] != start.data_fingerprint:
        raise UserError(
            "this folder holds a run on other data",
            where=str(folder.manifest),
            fix="give another --out, or the data this run was started on",
        )


def _manifest(start: Start) -> dict[str, Any]:
    return {
        "data": {"folder": str(start.data_folder.resolve()), "fingerprint": start.data_fingerprint},
        "num_parameters": start.num_parameters,
        "versions": {"thinwire": thinwire.__version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "machine": {"system": platform.platform(), "processor": processor_name(), "cores": start.cores},
        "command": start.command,
        "working_folder": str(Path.cwd()),
    }


def processor_name() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
