"""How does one wide expert read windows?  Weights packed once, then all groups of lanes together."""

import numpy as np

from thinwire.kernels.lane_forward import build_table, pack_weights
from thinwire.kernels.lane_layout import LANES, Sizes, lane_tokens
from thinwire.kernels.threads import for_each
from thinwire.kernels.wide_forward import forward_wide
from thinwire.kernels.wide_workspace import GROUPS_AT_ONCE, WideWorkspace

ONE = (0,)
"""One set of weights in all lanes."""


def read_windows(
    theta: np.ndarray,
    *,
    packed_decoder: np.ndarray,
    sizes: Sizes,
    tokens: np.ndarray,
    work: WideWorkspace,
    first_target: int = 0,
    hidden: np.ndarray | None = None,
) -> np.ndarray:
    """float64 [16 groups, T]: log p(byte t + 1 | bytes 0..t) of every lane's window, a view into ``work``.

    Args:
        theta: float32 [M], contiguous.
        packed_decoder: of ``pack_decoder``.
        tokens: of ``lane_tokens``, at most ``work.groups`` groups.
        first_target: columns before it are not computed.
        hidden: float32 [groups, T, d_E, 16], receives the decoder's inputs.
    """
    pack_weights(theta, sizes, work.packed[::1])
    build_table(ONE, work.packed, packed_decoder, sizes, work.table, work.scratch)
    out = np.empty((0, 0, 0, 0), np.float32) if hidden is None else hidden
    buffers = (work.state, work.activations, work.scratch, out, work.log_probability)
    forward_wide(ONE, work.packed, work.table, packed_decoder, sizes, tokens, first_target, work.steps, *buffers)
    return work.log_probability[: len(tokens)].transpose(0, 2, 1).reshape(LANES * len(tokens), -1)


def decoder_inputs(
    theta: np.ndarray, *, sizes: Sizes, packed_decoder: np.ndarray, windows: np.ndarray, threads: int
) -> np.ndarray:
    """float32 [B, T, d_E]: h at every position of windows [B, T + 1]; the same bits for any number of threads."""
    tokens, length = lane_tokens(windows), windows.shape[1] - 1
    at_once = min(GROUPS_AT_ONCE, -(-len(tokens) // max(threads, 1)))
    hidden = np.empty((len(tokens), length, sizes.embed, LANES), np.float32)

    def run(first: int, work: WideWorkspace) -> None:
        part = slice(first, first + at_once)
        read_windows(
            theta,
            packed_decoder=packed_decoder,
            sizes=sizes,
            tokens=tokens[part],
            work=work,
            first_target=length,
            hidden=hidden[part],
        )

    def workspace() -> WideWorkspace:
        return WideWorkspace.for_sizes(sizes, num_groups=at_once, input_bytes=length)

    for_each(range(0, len(tokens), at_once), run, make_workspace=workspace, threads=threads)
    by_window = hidden.transpose(0, 3, 1, 2).reshape(-1, length, sizes.embed)
    return np.ascontiguousarray(by_window[: len(windows)])
