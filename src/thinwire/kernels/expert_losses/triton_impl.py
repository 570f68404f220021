"""Losses of theta +- eps z_j on a GPU: one persistent kernel over (direction, sign, tile of windows).

A program takes every P-th job, P programs in all, as many as the GPU holds at once.  For a job it rebuilds the probe,
writes theta + s eps z into its own part of a workspace (bounded by P, not by the directions), builds the first block's
table beside it, and walks a tile of windows through time (``triton_forward``).  The sum over a window is kept in FP64
and the windows of a direction are added in FP64 in their order on the CPU, so that a direction's loss has the same bits
whichever directions share the call.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.base.seeds import StreamKey
from thinwire.kernels import triton_wide
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.reference import gain_words
from thinwire.kernels.triton_forward import build_table, read_windows
from thinwire.kernels.triton_parts import int64_on, store_perturbed
from thinwire.kernels.triton_plan import LARGEST_FUSED_WIDTH, plan_for, programs_for

PROBE_BLOCKS = 64
"""Blocks of 64 coordinates perturbed at a time: 16 KB."""


@triton.jit(do_not_specialize=["num_jobs", "num_windows", "length", "num_tiles"])  # compiled once for any batch
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
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    EMBED: tl.constexpr,
    PADDED: tl.constexpr,
    EMBED_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
    SIZE: tl.constexpr,
    COPY_FLOATS: tl.constexpr,
    WORKSPACE: tl.constexpr,
    BLOCKS: tl.constexpr,
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
            RESIDENT,
            "sums",
        )
        tl.store(sums + signed * num_windows + rows, total, mask=is_window)


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
    signed = [(direction, sign) for direction in directions for sign in signs]
    if shape.width > LARGEST_FUSED_WIDTH:
        triton_wide.refuse_other_precisions(precision, shape=shape)
        losses = triton_wide.expert_losses(
            theta,
            shape=shape,
            decoder=decoder,
            windows=windows,
            key=key,
            update=update,
            accumulation=accumulation,
            signed=signed,
            epsilon=epsilon,
        )
        return losses.reshape(-1, len(signs))
    plan = plan_for(shape, batch=batch, precision=precision)
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
        **plan.constants,
        SIZE=shape.num_parameters,
        COPY_FLOATS=plan.copy_floats,
        WORKSPACE=plan.workspace,
        BLOCKS=PROBE_BLOCKS,
        num_warps=plan.warps,
        num_stages=1,  # else streamed weights would be fetched ahead, several steps' worth of shared memory
    )
    num_targets = batch * (windows.shape[1] - 1)
    means = -sums.cpu().numpy().sum(axis=1) / num_targets
    return torch.from_numpy(means.reshape(-1, len(signs)))
