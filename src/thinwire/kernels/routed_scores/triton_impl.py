"""Experts at work on a GPU: requests grouped by expert, one expert's weights a program, the same fused time loop.

A request is a window under one of its experts.  Requests are sorted by expert and cut into tiles of ROWS windows; a
persistent program takes every P-th tile, builds the table of that tile's expert in its own workspace, and walks the
windows through time (``triton_forward``), storing log-probabilities or the decoder's inputs.
"""

from typing import NamedTuple, no_type_check

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.kernels import triton_wide
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.triton_forward import build_table, read_windows
from thinwire.kernels.triton_parts import int64_on
from thinwire.kernels.triton_plan import LARGEST_FUSED_WIDTH, plan_for, programs_for


@triton.jit(
    do_not_specialize=["num_tiles", "per_window", "length", "first_target", "decoder_stride"]
)  # compiled once for any batch
@no_type_check
def _read_requests(
    thetas,
    decoders,
    windows,
    tile_experts,
    requests,
    workspace,
    results,
    num_tiles,
    per_window,
    length,
    first_target,
    decoder_stride,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    EMBED: tl.constexpr,
    PADDED: tl.constexpr,
    EMBED_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
    SIZE: tl.constexpr,
    TABLE_FLOATS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """results [requests, length - first_target], or [requests, length, EMBED] of the decoder's inputs."""
    table = workspace + tl.program_id(0).to(tl.int64) * TABLE_FLOATS
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        expert = tl.load(tile_experts + tile)
        theta, decoder = thetas + expert * SIZE, decoders + expert * decoder_stride
        tl.debug_barrier()  # the last tile's table is no longer read
        build_table(theta, decoder, table, WIDTH, DEPTH, EMBED, PADDED, EMBED_PADDED, ROWS, PRECISION)
        tl.debug_barrier()
        request = tl.load(requests + tile * ROWS + tl.arange(0, ROWS))
        is_request = request >= 0
        request = tl.where(is_request, request, 0)
        read_windows(
            theta,
            decoder,
            table,
            windows,
            request // per_window * (length + 1),
            is_request,
            length,
            results,
            request * (length - first_target),
            first_target,
            WIDTH,
            DEPTH,
            EMBED,
            PADDED,
            EMBED_PADDED,
            ROWS,
            PRECISION,
            RESIDENT,
            KEEP,
        )


class Tiles(NamedTuple):
    """int64 [tiles] experts, and [tiles * rows] requests (window * k + slot; -1 fills an expert's last tile)."""

    experts: np.ndarray
    requests: np.ndarray


def tiles_of(experts: np.ndarray, *, num_experts: int, rows: int) -> Tiles:
    """Every request of experts [n, k] once, sorted by expert."""
    flat = experts.reshape(-1)
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=num_experts)
    tiles = -(-counts // rows)
    shift = (np.cumsum(tiles) - tiles) * rows - (np.cumsum(counts) - counts)
    requests = np.full(int(tiles.sum()) * rows, -1, np.int64)
    requests[np.arange(len(flat)) + shift[flat[order]]] = order
    return Tiles(np.repeat(np.arange(num_experts), tiles), requests)


def _run(
    thetas: Tensor,
    results: Tensor,
    *,
    shape: ExpertShape,
    decoder: Tensor,
    windows: Tensor,
    experts: np.ndarray,
    first_target: int,
    precision: str,
    keep: str,
) -> None:
    device, num_experts = thetas.device, len(thetas)
    per_expert = -(-experts.size // max(1, len(np.unique(experts))))
    plan = plan_for(shape, batch=per_expert, precision=precision)
    tiles = tiles_of(experts, num_experts=num_experts, rows=plan.rows)
    programs = min(programs_for(device), len(tiles.experts))
    _read_requests[(programs,)](
        thetas.contiguous(),
        decoder.contiguous(),
        windows.to(device).contiguous(),
        int64_on(tiles.experts, device=device),
        int64_on(tiles.requests, device=device),
        torch.empty(programs * plan.table_floats, dtype=torch.float32, device=device),
        results,
        len(tiles.experts),
        experts.shape[1],
        windows.shape[1] - 1,
        first_target,
        decoder[0].numel() if decoder.dim() == 3 else 0,
        **plan.constants,
        SIZE=shape.num_parameters,
        TABLE_FLOATS=plan.table_floats,
        KEEP=keep,
        num_warps=plan.warps,
        num_stages=1,
    )


def _wide_scores(
    thetas: Tensor, *, shape: ExpertShape, decoder: Tensor, windows: Tensor, experts: Tensor, first_target: int
) -> Tensor:
    """As ``routed_scores``, an expert at a time, layer by layer."""
    experts = experts.cpu()
    scores = torch.empty(*experts.shape, windows.shape[1] - 1 - first_target, dtype=torch.float64)
    for expert in torch.unique(experts).tolist():
        rows, slots = torch.nonzero(experts == expert, as_tuple=True)
        one = decoder[expert] if decoder.dim() == 3 else decoder
        read = windows.cpu()[rows].to(thetas.device)
        log_p = triton_wide.log_probabilities(thetas[expert : expert + 1], shape=shape, decoder=one, windows=read)
        scores[rows, slots] = log_p[0, :, first_target:].double().cpu()
    return scores


def routed_scores(
    thetas: Tensor,
    *,
    shape: ExpertShape,
    decoder: Tensor,
    windows: Tensor,
    experts: Tensor,
    first_target: int,
    precision: str,
) -> Tensor:
    """float64 [n, k, S] on the CPU; arguments as in ``api``."""
    if shape.width > LARGEST_FUSED_WIDTH:
        triton_wide.refuse_other_precisions(precision, shape=shape)
        return _wide_scores(
            thetas, shape=shape, decoder=decoder, windows=windows, experts=experts, first_target=first_target
        )
    length = windows.shape[1] - 1
    scores = torch.empty(*experts.shape, length - first_target, dtype=torch.float32, device=thetas.device)
    _run(
        thetas,
        scores,
        shape=shape,
        decoder=decoder,
        windows=windows,
        experts=experts.cpu().numpy(),
        first_target=first_target,
        precision=precision,
        keep="scores",
    )
    return scores.cpu().double()


def decoder_inputs(theta: Tensor, *, shape: ExpertShape, decoder: Tensor, windows: Tensor, precision: str) -> Tensor:
    """float32 [B, T, d_E] on theta's device: h at every position of windows [B, T + 1]."""
    if shape.width > LARGEST_FUSED_WIDTH:
        triton_wide.refuse_other_precisions(precision, shape=shape)
        inputs = windows[:, :-1].to(theta.device)
        return triton_wide.decoder_inputs(theta[None], shape=shape, decoder=decoder, inputs=inputs)[0]
    num_windows, length = len(windows), windows.shape[1] - 1
    hidden = torch.empty(num_windows, length, shape.embed_width, dtype=torch.float32, device=theta.device)
    _run(
        theta[None],
        hidden,
        shape=shape,
        decoder=decoder,
        windows=windows,
        experts=np.zeros((num_windows, 1), np.int64),
        first_target=0,
        precision=precision,
        keep="hidden",
    )
    return hidden
