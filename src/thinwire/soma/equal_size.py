"""How wide are N experts that together hold as many weights as one model?  Bodies and heads counted (Table 2)."""

from dataclasses import replace

from thinwire.kernels.expert_shape import ExpertShape
from thinwire.soma.config import DecoderMode, ModelConfig

NARROWEST = 2


def ensemble_size(shape: ExpertShape, *, num_experts: int, decoder: DecoderMode) -> int:
    """Weights of an ensemble: N bodies, and one head where it is frozen and shared, N where each trains its own."""
    heads = num_experts if decoder == "trained" else 1
    return num_experts * shape.num_parameters + heads * shape.num_decoder_parameters


def width_for_size(model: ModelConfig, *, total: int, num_experts: int, decoder: DecoderMode) -> ModelConfig:
    """The width whose ensemble comes nearest to ``total`` weights, about ``sqrt(total / (16 D N))``.

    Args:
        model: gives depth and d_E.

    Raises:
        ValueError: even the narrowest experts hold more than ``total`` weights.
    """

    def size(width: int) -> int:
        shape = ExpertShape(width=width, depth=model.depth, embed_width=model.embed_width)
        return ensemble_size(shape, num_experts=num_experts, decoder=decoder)

    if size(NARROWEST) > total:
        raise ValueError(f"{num_experts} experts of width {NARROWEST} hold {size(NARROWEST):,} weights")
    # choice: at d_t = d_E there are no projections, so the size steps down there; both neighbours of the crossing and
    # d_E itself are compared.
    low, high = NARROWEST, NARROWEST + 1
    while size(high) < total:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < total else (low, middle)
    nearest = min({low, high, model.embed_width}, key=lambda width: (abs(size(width) - total), width))
    return replace(model, width=nearest)
