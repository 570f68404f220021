"""Which codec does a configuration ask for?  One for the keys or the values of one layer."""

import torch
from jaxtyping import Float
from torch import Tensor

from thinwire.subspaces.codecs.base import Codec
from thinwire.subspaces.codecs.plain import PlainCodec
from thinwire.subspaces.codecs.quantised import QuantisedCodec
from thinwire.subspaces.codecs.subspace import SubspaceCodec
from thinwire.subspaces.codecs.top_k import TopKCodec
from thinwire.subspaces.config import CodecConfig, LlamaConfig, WireType, rank_of
from thinwire.subspaces.rotation import Rotation, Side, generators

WIRE_DTYPES: dict[WireType, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def make_codec(
    config: CodecConfig, *, side: Side, layer: int, model: LlamaConfig, seed: int, basis: Float[Tensor, "w r"] | None
) -> Codec:
    """The codec of one layer's keys or values; plain in ``uncompressed_layers``.

    Args:
        config: what travels.
        side: keys or values, which have rates and generators of their own.
        layer: the decoder block.
        model: gives d_kv.
        seed: the run's, for the generators.
        basis: Ubar, needed by ``subspace`` alone; its dtype and device are those of all frames. Without it the codec
            tells shapes and bytes, and nothing else.

    Raises:
        ValueError: the rank does not fit into d_kv, or the basis has another shape.
    """
    wire = WIRE_DTYPES[config.wire]
    kind = "plain" if layer in config.uncompressed_layers else config.kind
    if kind == "plain":
        return PlainCodec(width=model.kv_width, wire=wire)
    if kind == "top_k":
        return TopKCodec(width=model.kv_width, wire=wire, keep_fraction=config.keep_fraction)
    if kind == "quantised":
        return QuantisedCodec(width=model.kv_width, wire=wire, bits=config.bits, group=config.group)
    return SubspaceCodec(
        width=model.kv_width,
        wire=wire,
        rank=codec_rank(config, side=side, model=model),
        num_generators=0 if config.theta_source == "none" else config.generators,
        rotation=None if basis is None else _rotation(config, side=side, layer=layer, seed=seed, basis=basis),
    )


def codec_rank(config: CodecConfig, *, side: Side, model: LlamaConfig) -> int:
    """r of the keys or the values."""
    rate = config.key_rate if side == "key" else config.value_rate
    return rank_of(rate, kv_width=model.kv_width, min_rank=config.min_rank)


def _rotation(config: CodecConfig, *, side: Side, layer: int, seed: int, basis: Tensor) -> Rotation | Tensor:
    if config.theta_source == "none":
        return basis
    skew = generators(
        seed, layer=layer, side=side, width=basis.shape[0], count=config.generators, norm=config.generator_norm
    )
    return Rotation(basis, skew, exponential=config.exponential, order=config.taylor_order, theta_max=config.theta_max)
