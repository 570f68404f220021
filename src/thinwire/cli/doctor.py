"""``thinwire doctor``: what this machine has, which kernels it uses, what is missing and how to get it."""

import importlib.metadata
import importlib.util
import shutil
from dataclasses import dataclass
from typing import Any

import torch

import thinwire
from thinwire.base.units import format_bytes
from thinwire.cli.terminal import print_json, print_table
from thinwire.config.parse import parse
from thinwire.kernels.dispatch import choose
from thinwire.kernels.lane_rows import LANES, TILE_ROWS
from thinwire.kernels.throughput import measure
from thinwire.launch.local import available_cores

EXTRAS = {"matplotlib": "plots", "pyarrow": "parquet", "datasets": "hf", "transformers": "hf"}


@dataclass(frozen=True)
class Arguments:
    """Look the machine over; ends in a few seconds."""

    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire doctor")
    record = examine()
    if arguments.json:
        print_json(record)
        return
    missing = [f"{name} (pip install 'thinwire[{extra}]')" for name, extra in record["missing"].items()]
    versions = [f"{name} {number}" for name, number in record["packages"].items()]
    print_table(
        [
            ("thinwire", record["thinwire"]),
            ("packages", ", ".join(versions[:3])),
            ("", ", ".join(versions[3:])),
            ("cores", str(record["cores"])),
            ("accelerators", ", ".join(record["accelerators"]) or "none found; everything runs on the CPU"),
            ("kernels", f"{record['implementation']}: {record['lanes']} lanes, tiles of {record['tile_rows']} rows"),
            (
                "speed",
                f"{record['byte_forwards_per_s'] / 1e6:.2f}M byte-forwards/s on {record['cores']} threads (d = 32)",
            ),
            ("first call", f"{record['first_call_seconds']:.1f} s, compilation included where it is not on disk yet"),
            ("free disk here", format_bytes(record["free_disk_bytes"])),
            ("missing", "; ".join(missing) or "nothing"),
        ]
    )


def examine() -> dict[str, Any]:
    """Everything ``doctor`` prints, as plain values."""
    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    packages = ("torch", "numpy", "numba", "scikit-learn", "scipy")
    speed = measure(threads=available_cores())
    return {
        "thinwire": thinwire.__version__,
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "cores": available_cores(),
        "accelerators": devices,
        "implementation": choose("auto", like=torch.zeros(1)),
        "lanes": LANES,
        "tile_rows": TILE_ROWS,
        "byte_forwards_per_s": speed.byte_forwards_per_s,
        "first_call_seconds": speed.first_call_seconds,
        "free_disk_bytes": shutil.disk_usage(".").free,
        "missing": {name: extra for name, extra in EXTRAS.items() if importlib.util.find_spec(name) is None},
    }
