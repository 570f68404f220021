"""How is an expert laid out on a GPU?  Padded sizes, windows and warps a program, what stays in shared memory.

The warps follow from the registers that the compiler reports for sm_90 (d = 32, D = 2): with 64 windows a program, the
matrix instructions (wgmma) take four warps and 172 KB of shared memory, FP32 multiply-adds need eight warps to fit
255 registers a thread; with 16 windows eight warps share out the columns and nothing spills.
"""

from typing import Any, NamedTuple

import torch

from thinwire.kernels.expert_shape import VOCABULARY, ExpertShape

LARGEST_FUSED_WIDTH = 64
SMALLEST_PADDED = 16
MOST_WINDOWS = 64
TABLE_ENTRY = 5
RESIDENT_BYTES = 160 * 1024
"""Of the 227 KB of an H100's or H200's shared memory: the rest holds left factors and exchanged sums."""


class Plan(NamedTuple):
    """The constants of a launch, and the floats of one program's workspace: a copy of the weights, then the table."""

    constants: dict[str, Any]
    rows: int
    warps: int
    copy_floats: int
    table_floats: int

    @property
    def workspace(self) -> int:
        return self.copy_floats + self.table_floats


def padded_size(size: int) -> int:
    """The next power of two, at least what a matrix unit takes."""
    return max(SMALLEST_PADDED, 1 << (size - 1).bit_length())


def resident_bytes(shape: ExpertShape, *, precision: str) -> int:
    """Shared memory of all factors that a step uses; ``tf32x3`` keeps two FP32 parts of each weight."""
    padded = padded_size(shape.width)
    floats = (16 * shape.depth - 4) * padded**2 + VOCABULARY * padded_size(shape.embed_width)
    return floats * (8 if precision == "tf32x3" else 4)


def plan_for(shape: ExpertShape, *, batch: int, precision: str) -> Plan:
    """Depends on the expert, the windows and the precision alone, so that no split of directions changes a bit."""
    padded = padded_size(shape.width)
    rows = min(MOST_WINDOWS, padded_size(batch))
    constants = {
        "WIDTH": shape.width,
        "DEPTH": shape.depth,
        "EMBED": shape.embed_width,
        "PADDED": padded,
        "EMBED_PADDED": padded_size(shape.embed_width),
        "ROWS": rows,
        "PRECISION": precision,
        "RESIDENT": resident_bytes(shape, precision=precision) <= RESIDENT_BYTES,
    }
    warps = 4 if rows == MOST_WINDOWS and precision != "ieee" else 8
    copy_floats = -(-shape.num_parameters // 64) * 64
    return Plan(constants, rows, warps, copy_floats, VOCABULARY * TABLE_ENTRY * padded)


def programs_for(device: torch.device) -> int:
    """One a multiprocessor: its weights take most of the shared memory. Three in the interpreter: each loops."""
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count
