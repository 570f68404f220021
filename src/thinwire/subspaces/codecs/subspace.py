"""How do keys and values travel in r numbers a token?  Coefficients in a rotated frame, and theta (sections 3, 3.4).

The owner sends Z_comp = Z U(theta) and theta; a reader rebuilds Z_comp U(theta)^T.  The frame spans all key or value
heads jointly, and is applied before RoPE, so that W = B U U^T is an ordinary Llama weight.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinwire.comm.packing import TensorSpec
from thinwire.subspaces.codecs.base import Codec, Coded
from thinwire.subspaces.rotation import Rotation


class SubspaceCodec(Codec):
    """Carriers: (coefficients [b, t, r], theta [b, k]), or the coefficients alone without generators.

    Args:
        width: w = d_kv.
        wire: how a coefficient travels.
        rank: r, at most w.
        num_generators: k; 0 is a fixed frame, for which no theta travels.
        rotation: the frame of a theta; where k = 0, the frame itself. None makes a codec that only tells bytes.

    Raises:
        ValueError: rank is not within 1..w, or the frame has another shape.
    """

    def __init__(
        self, *, width: int, wire: torch.dtype, rank: int, num_generators: int, rotation: Rotation | Tensor | None
    ) -> None:
        super().__init__(width=width, wire=wire)
        if not 1 <= rank <= width:
            raise ValueError(f"a subspace of rank {rank} does not fit into d_kv = {width}")
        basis = rotation.basis if isinstance(rotation, Rotation) else rotation
        if basis is not None and tuple(basis.shape) != (width, rank):
            raise ValueError(f"the frame is {tuple(basis.shape)}, not ({width}, {rank})")
        self.rank, self.num_generators = rank, num_generators
        self.needs_theta = num_generators > 0
        self.rotation, self.basis = rotation, basis
        self.theta_wire = torch.float64 if wire == torch.float64 else torch.float32

    def frame(self, theta: Float[Tensor, "b k"] | None) -> Tensor:
        """U(theta) [b, w, r]; without a theta the fixed Ubar [w, r]."""
        if self.basis is None:
            raise ValueError("this codec was made without a frame; it can only tell bytes")
        if theta is None:
            return self.basis
        if not isinstance(self.rotation, Rotation):
            raise ValueError("this codec has no generators; it takes no theta")
        # Not in the lower precision of mixed products: owner and readers, forward and backward, use the same frame.
        with torch.autocast(theta.device.type, enabled=False):
            return self.rotation.rotate(theta)

    def encode(self, hidden: Tensor, weight: Tensor, *, theta: Tensor | None) -> Coded:
        if (theta is not None) != self.needs_theta:
            raise ValueError("a theta is needed" if self.needs_theta else "a fixed frame takes no theta")
        coefficients = _project_into(hidden, weight, self.frame(theta))
        return Coded((coefficients,) if theta is None else (coefficients, theta))

    def pack(self, coded: Coded) -> tuple[Tensor, ...]:
        return tuple(
            carrier.detach().to(dtype) for carrier, dtype in zip(coded.carriers, self._wire_types(), strict=True)
        )

    def unpack(self, wire: Sequence[Tensor], *, tokens: int, dtype: torch.dtype) -> Coded:  # noqa: ARG002
        coefficients, *theta = wire
        wide = torch.promote_types(dtype, torch.float32)
        return Coded(
            (coefficients.detach().to(dtype, copy=True), *(each.detach().to(wide, copy=True) for each in theta))
        )

    def decode(self, coded: Coded) -> Tensor:
        coefficients, *theta = coded.carriers
        frame = self.frame(theta[0] if theta else None)
        return coefficients @ frame.mT.to(coefficients.dtype)

    def wire_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        shapes = ((batch, tokens, self.rank), (batch, self.num_generators))
        return tuple(TensorSpec(shape, dtype) for shape, dtype in zip(shapes, self._wire_types(), strict=False))

    def gradient_specs(self, *, batch: int, tokens: int) -> tuple[TensorSpec, ...]:
        return self.wire_specs(batch=batch, tokens=tokens)

    def _wire_types(self) -> tuple[torch.dtype, ...]:
        return (self.wire, self.theta_wire) if self.needs_theta else (self.wire,)


def _project_into(hidden: Tensor, weight: Tensor, frame: Tensor) -> Tensor:
    """X B U: (X)(B U), or (X B) U where the chunk is so short that this takes fewer products.

    One sequence takes d w r + t d r products the first way and t d w + t w r the second; at t = d = w = 512, r = 26
    that is a tenth.
    """
    tokens, (width, model_width), rank = hidden.shape[1], weight.shape, frame.shape[-1]
    frame = frame.to(weight.dtype)
    if model_width * rank * (width + tokens) <= tokens * width * (model_width + rank):
        return hidden @ (weight.mT @ frame).to(hidden.dtype)
    return hidden @ weight.mT.to(hidden.dtype) @ frame.to(hidden.dtype)
