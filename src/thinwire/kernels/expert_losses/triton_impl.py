"""Losses of theta +- eps z_j on a GPU: one persistent kernel over (direction, sign, tile of windows).

A program takes every P-th job, P programs in all, as many as the GPU holds at once.  For a job it rebuilds the probe,
writes theta + s eps z into its own part of a workspace (bounded by P, not by the directions), builds the first block's
table beside it, and walks a tile of windows through time (``triton_forward``).  The sum over a window is kept in FP64
and the windows of a direction are added in FP64 in their order on the CPU, so that a direction's loss has the same bits
whichever directions share the call.
"""

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.base.seeds import StreamKey
from thinwire.kernels.expert_shape import VOCABULARY, ExpertShape
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.triton_forward import build_table, read_windows
from thinwire.kernels.triton_parts import int64_on, store_perturbed

LARGEST_FUSED_WIDTH = 64
PROBE_BLOCKS = 64
TABLE_ENTRY = 5


class Plan(NamedTuple):
    """The constants of a launch; ``programs`` run at once, each with ``workspace`` floats."""

    padded: int
    embed_padded: int
    rows: int
    warps: int
    copy_floats: int
    table_floats: int

    @property
    def workspace(self) -> int:
        return self.copy_floats + self.table_floats


def plan_for(shape: ExpertShape, *, batch: int) -> Plan:
    """Depends on the expert and the batch alone, so that no split of directions changes a bit."""
    padded, embed_padded = (max(16, triton.next_power_of_2(size)) for size in (shape.width, shape.embed_width))
    rows = 64 if batch > 32 else max(16, triton.next_power_of_2(batch))
    copy_floats = -(-shape.num_parameters // 64) * 64
    return Plan(padded, embed_padded, rows, 4, copy_floats, VOCABULARY * TABLE_ENTRY * padded)


@triton.jit
@no_type_check
def _window_sums(
    theta,
    always,
    decoder,
    windows,
    address,
    directions,
    steps,
    workspace,
    sums,
    num_jobs,
    num_windows,
    length,
    num_tiles,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    EMBED: tl.constexpr,
    PADDED: tl.constexpr,
    EMBED_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COPY_FLOATS: tl.constexpr,
    WORKSPACE: tl.constexpr,
    BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """sums [J, num_windows] float64: each window's summed log-probability under each of J signed directions."""
    copy = workspace + tl.program_id(0).to(tl.int64) * WORKSPACE
    table = copy + COPY_FLOATS
    for job in range(tl.program_id(0), num_jobs, tl.num_programs(0)):
        signed, tile = job // num_tiles, job % num_tiles
        tl.debug_barrier()  # the last job's table is no longer read
        direction, step = tl.load(directions + signed), tl.load(steps + signed)
        store_perturbed(theta, always, address, direction, step, copy, SIZE, BLOCKS)
        tl.debug_barrier()
        build_table(copy, decoder, table, WIDTH, DEPTH, EMBED, PADDED, EMBED_PADDED, ROWS, PRECISION)
        tl.debug_barrier()
        rows = tile * ROWS + tl.arange(0, ROWS)
        is_window = rows < num_windows
        first_bytes = rows.to(tl.int64) * (length + 1)
        total = read_windows(
            copy,
            decoder,
            table,
            windows,
            first_bytes,
            is_window,
            length,
            sums,
            first_bytes,
            0,
            WIDTH,
            DEPTH,
            EMBED,
            PADDED,
            EMBED_PADDED,
            ROWS,
            PRECISION,
            False,
        )
        tl.store(sums + signed.to(tl.int64) * num_windows + rows, total, mask=is_window)


def programs_for(device: torch.device) -> int:
    """One program per multiprocessor: its weights take most of the shared memory.  A few in the interpreter."""
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count


def expert_losses(
    theta: Tensor,
    *,
    shape: ExpertShape,
    decoder: Tensor,
    windows: Tensor,
    key: StreamKey,
    update: int,
    accumulation: int,
    directions: range,
    epsilon: float,
    signs: Sequence[int],
    precision: str,
) -> Tensor:
    """float64 [n, S] on the CPU; arguments as in ``api``."""
    device, batch = theta.device, len(windows)
    plan = plan_for(shape, batch=batch)
    signed = [(direction, sign) for direction in directions for sign in signs]
    step = torch.tensor(epsilon, dtype=torch.float32)
    num_tiles = -(-batch // plan.rows)
    programs = min(programs_for(device), len(signed) * num_tiles)
    sums = torch.empty(len(signed), batch, dtype=torch.float64, device=device)
    _window_sums[(programs,)](
        theta.contiguous(),
        int64_on(gain_words(shape), device=device),
        decoder.contiguous(),
        windows.to(device).contiguous(),
        int64_on([*key, update, accumulation], device=device),
        int64_on([direction for direction, _ in signed], device=device),
        torch.stack([step * sign for _, sign in signed]).to(device),
        torch.empty(programs * plan.workspace, dtype=torch.float32, device=device),
        sums,
        len(signed) * num_tiles,
        batch,
        windows.shape[1] - 1,
        num_tiles,
        SIZE=shape.num_parameters,
        WIDTH=shape.width,
        DEPTH=shape.depth,
        EMBED=shape.embed_width,
        PADDED=plan.padded,
        EMBED_PADDED=plan.embed_padded,
        ROWS=plan.rows,
        COPY_FLOATS=plan.copy_floats,
        WORKSPACE=plan.workspace,
        BLOCKS=PROBE_BLOCKS,
        PRECISION=precision,
        num_warps=plan.warps,
    )
    num_targets = batch * (windows.shape[1] - 1)
    means = -sums.cpu().numpy().sum(axis=1) / num_targets
    return torch.from_numpy(means.reshape(-1, len(signs)))
