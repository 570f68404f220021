"""What must context parallelism compute?  The same model in one process, dense and slow, with ordinary autograd alone.

Nothing here is shared with the code under test but the codecs' settings and the generators: rotations are built as
matrices, keys are rebuilt chunk by chunk and joined, RoPE multiplies complex numbers, and the softmax is masked.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.base.seeds import draw_words, stream_key
from thinwire.subspaces.config import CodecConfig, LlamaConfig
from thinwire.subspaces.rotation import generators

Side = str
WIRES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


ENOUGH = 40


@functools.cache
def skew_matrices(seed: int, layer: int, side: Side, *, width: int, count: int, norm: Any) -> Tensor:
    return generators(seed, layer=layer, side=side, width=width, count=count, norm=norm)  # type: ignore[arg-type]


class DenseAttention:
    """``Attend`` over a whole sequence.

    Args:
        bounds: where the chunks begin and end.
        bases: (layer, side) -> Ubar.
        psi: (layer, side) -> (weight [k, w], bias [k]).
        seed, step, first_sequence: where random thetas are drawn.
    """

    def __init__(
        self,
        model: LlamaConfig,
        *,
        codec: CodecConfig,
        bounds: Sequence[int],
        bases: Mapping[tuple[int, Side], Tensor] | None = None,
        psi: Mapping[tuple[int, Side], tuple[Tensor, Tensor]] | None = None,
        seed: int = 0,
        step: int = 0,
        first_sequence: int = 0,
    ) -> None:
        self.model, self.codec, self.bounds = model, codec, bounds
        self.bases, self.psi = bases or {}, psi or {}
        self.seed, self.step, self.first_sequence = seed, step, first_sequence

    def begin(self, layer: int, stream: int, *, hidden: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        batch = hidden.shape[0]
        first = self.first_sequence + stream * batch
        keys = self._rebuilt(hidden @ key.T, layer=layer, side="key", first=first)
        values = self._rebuilt(hidden @ value.T, layer=layer, side="value", first=first)
        return keys, values

    def finish(self, begun: tuple[Tensor, Tensor], *, query: Tensor) -> Tensor:
        group = self.model.heads // self.model.kv_heads
        keys, values = (self._heads(rows).repeat_interleave(group, dim=2) for rows in begun)
        queries, keys = self._turned(self._heads(query)), self._turned(keys)
        scores = torch.einsum("bqhw,bkhw->bhqk", queries, keys) / math.sqrt(self.model.head_width)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return torch.einsum("bhqk,bkhw->bqhw", weights, values).flatten(2)

    def _heads(self, rows: Tensor) -> Tensor:
        """[b, t, heads, head_width]."""
        return rows.unflatten(-1, (-1, self.model.head_width))

    def _turned(self, x: Tensor) -> Tensor:
        """RoPE: the pair (i, i + w/2) is a complex number."""
        half = self.model.head_width // 2
        frequencies = self.model.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies
        turns = torch.polar(torch.ones_like(angles), angles)[:, None, :]
        turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
        return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)

    def _rebuilt(self, z: Tensor, *, layer: int, side: Side, first: int) -> Tensor:
        """What readers see instead of K or V, chunk by chunk."""
        kind = "plain" if layer in self.codec.uncompressed_layers else self.codec.kind
        pieces = [z[:, a:b] for a, b in zip(self.bounds, self.bounds[1:], strict=False)]
        if kind == "subspace":
            thetas = self._thetas(pieces, layer=layer, side=side, first=first)
            frames = [self._frames(theta, layer=layer, side=side) for theta in thetas]
            pieces = [self._wired(piece @ frame) @ frame.mT for piece, frame in zip(pieces, frames, strict=True)]
        elif kind == "top_k":
            pieces = [self._wired(self._largest(piece)) for piece in pieces]
        elif kind == "quantised":
            pieces = [piece + (self._quantised(piece.detach()) - piece.detach()) for piece in pieces]
        else:
            pieces = [self._wired(piece) for piece in pieces]
        return torch.cat(pieces, dim=1)

    def _wired(self, x: Tensor) -> Tensor:
        """Rounded as it travels; the gradient passes straight through."""
        return x + (x.detach().to(WIRES[self.codec.wire]).to(x.dtype) - x.detach())

    def _thetas(self, pieces: list[Tensor], *, layer: int, side: Side, first: int) -> list[Tensor]:
        """[b, k] of every chunk."""
        codec, batch = self.codec, pieces[0].shape[0]
        zero = torch.zeros(batch, codec.generators, dtype=pieces[0].dtype)
        if codec.theta_source == "none":
            return [zero] * len(pieces)
        if codec.theta_source == "random":
            return [
                self._random(chunk, layer=layer, side=side, rows=range(first, first + batch)).to(zero)
                for chunk in range(len(pieces))
            ]
        weight, bias = self.psi[layer, side]
        raw = [(piece @ weight.T + bias).mean(dim=1) for piece in pieces]
        thetas = [codec.theta_max * torch.tanh(x / codec.theta_max) for x in raw]
        return thetas if codec.theta_source == "chunk" else [zero, *thetas[:-1]]

    def _random(self, chunk: int, *, layer: int, side: Side, rows: range) -> Tensor:
        count, address = self.codec.generators, stream_key(self.seed, "theta-random", layer)
        words = [draw_words(address, 2 * count, c1=chunk, c2=self.step, c3=row) for row in rows]
        numbers = [[int(word) / 2**31 - 1 for word in row] for row in words]
        key_part, value_part = torch.tensor(numbers, dtype=torch.float64).split(count, dim=1)
        return self.codec.theta_max * (key_part if side == "key" else value_part)

    def _frames(self, theta: Tensor, *, layer: int, side: Side) -> Tensor:
        """R(theta) Ubar, with R built: [b, w, r]."""
        basis = self.bases[layer, side]
        skew = skew_matrices(
            self.seed, layer, side, width=len(basis), count=self.codec.generators, norm=self.codec.generator_norm
        )
        turn = torch.einsum("bk,kij->bij", theta, skew.to(theta))
        rotation = term = torch.eye(len(basis), dtype=theta.dtype).expand_as(turn)
        # torch.linalg.matrix_exp is off by 1e-12 where the matrix is small, so the series is summed here.
        for power in range(1, 1 + (ENOUGH if self.codec.exponential == "exact" else self.codec.taylor_order)):
            term = term @ turn / power
            rotation = rotation + term
        return rotation @ basis

    def _largest(self, piece: Tensor) -> Tensor:
        """Zero but for the entries of largest size of each sequence's chunk."""
        entries = piece.flatten(1)
        count = max(1, round(self.codec.keep_fraction * entries.shape[1]))
        least = entries.detach().abs().sort(dim=1, descending=True).values[:, count - 1 : count]
        return torch.where(entries.abs() >= least, entries, torch.zeros_like(entries)).view_as(piece)

    def _quantised(self, piece: Tensor) -> Tensor:
        """Each group of neighbours on 2^bits levels between its ends."""
        levels = 2**self.codec.bits - 1
        groups = piece.unflatten(-1, (-1, self.codec.group))
        low = groups.amin(-1, keepdim=True).bfloat16().to(piece)
        step = ((groups.amax(-1, keepdim=True) - low) / levels).bfloat16().to(piece)
        return (low + step * ((groups - low) / step).round().clamp(0, levels)).flatten(-2)


def loss_and_gradients(module: Any, losses: Sequence[Tensor]) -> tuple[float, dict[str, Tensor]]:
    """Backward of the losses' sum; gradients by name, zero where there is none."""
    module.zero_grad(set_to_none=True)
    total = torch.stack(list(losses)).sum()
    total.backward()
    found = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in module.named_parameters()
    }
    return float(total.detach()), found
