"""Does a configuration get the codec it names?"""

import dataclasses
from typing import Any

import pytest
import torch

from thinwire.subspaces.basis import random_basis
from thinwire.subspaces.codecs.base import Codec
from thinwire.subspaces.codecs.make import codec_rank, make_codec
from thinwire.subspaces.codecs.plain import PlainCodec
from thinwire.subspaces.codecs.quantised import QuantisedCodec
from thinwire.subspaces.codecs.subspace import SubspaceCodec
from thinwire.subspaces.codecs.top_k import TopKCodec
from thinwire.subspaces.config import CodecConfig, LlamaConfig

GROUPED = LlamaConfig(width=48, heads=6, kv_heads=3, head_width=8)  # d_kv = 24


def _codec(*, side: Any = "key", layer: int = 0, seed: int = 1, with_basis: bool = True, **settings: Any) -> Codec:
    config = CodecConfig(**{"key_rate": 0.8, "value_rate": 0.5, **settings})
    basis = None
    if with_basis:
        rank = codec_rank(config, side=side, model=GROUPED)
        basis = random_basis(1, layer=0, side="key", width=GROUPED.kv_width, rank=rank)
    return make_codec(config, side=side, layer=layer, model=GROUPED, seed=seed, basis=basis)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("plain", PlainCodec), ("subspace", SubspaceCodec), ("top_k", TopKCodec), ("quantised", QuantisedCodec)],
)
def test_every_kind(kind: str, expected: type[Codec]) -> None:
    codec = _codec(kind=kind, group=8)
    assert type(codec) is expected
    assert codec.width == 24


def test_layers_left_uncompressed_are_plain() -> None:
    kinds = [type(_codec(kind="quantised", group=8, layer=layer, uncompressed_layers=(1, 3))) for layer in range(4)]
    assert kinds == [QuantisedCodec, PlainCodec, QuantisedCodec, PlainCodec]


def test_the_subspace_is_joint_over_the_key_and_value_heads() -> None:
    key, value = _codec(side="key"), _codec(side="value")
    assert isinstance(key, SubspaceCodec)
    assert isinstance(value, SubspaceCodec)
    assert (key.rank, value.rank) == (5, 12)
    hidden, weight = torch.randn(2, 3, 48).double(), torch.randn(24, 48).double()
    coded = key.encode(hidden, weight, theta=torch.zeros(2, 1).double())
    assert coded.carriers[0].shape == (2, 3, 5)
    assert key.decode(coded).shape == (2, 3, 24)


@pytest.mark.parametrize(("source", "count"), [("chunk", 3), ("previous_chunk", 3), ("random", 3), ("none", 0)])
def test_theta_travels_unless_the_frame_is_fixed(source: str, count: int) -> None:
    codec = _codec(theta_source=source, generators=3, wire="float32")
    assert isinstance(codec, SubspaceCodec)
    assert codec.needs_theta == (count > 0)
    assert codec.wire_bytes(batch=2, tokens=7) == 2 * 7 * 5 * 4 + 2 * count * 4


def test_bytes_are_known_without_a_frame() -> None:
    silent, complete = _codec(with_basis=False), _codec()
    for ask in ("wire_bytes", "gradient_bytes"):
        assert getattr(silent, ask)(batch=2, tokens=9) == getattr(complete, ask)(batch=2, tokens=9)
    with pytest.raises(ValueError, match="without a frame"):
        silent.encode(torch.zeros(1, 2, 48), torch.zeros(24, 48), theta=torch.zeros(1, 1))


def test_bytes_at_the_papers_size() -> None:
    """d = 2,048: keys and values of one token in 286 bytes instead of 8,192, which is 3.5%."""
    model = LlamaConfig(width=2048, heads=8, kv_heads=8, head_width=256)
    tokens = 16500
    both = {
        kind: sum(
            make_codec(
                dataclasses.replace(CodecConfig(), kind=kind), side=side, layer=0, model=model, seed=1, basis=None
            ).wire_bytes(batch=1, tokens=tokens)
            for side in ("key", "value")
        )
        for kind in ("plain", "subspace", "top_k", "quantised")
    }
    assert both["plain"] == 8192 * tokens
    assert both["subspace"] == (41 + 102) * 2 * tokens + 2 * 4
    assert both["subspace"] < 0.036 * both["plain"]
    assert both["top_k"] == 2 * (2 * round(0.1 * tokens * 2048) + tokens * 2048 // 8)  # a tenth, and the bitmap's 1/16
    assert both["quantised"] == 2 * tokens * (2048 // 2 + 2048 // 32 * 4)  # 5 bits an entry


def test_generators_follow_seed_layer_and_side() -> None:
    theta = torch.ones(1, 1).double()

    def frame(**where: Any) -> torch.Tensor:
        codec = _codec(value_rate=0.8, **where)
        assert isinstance(codec, SubspaceCodec)
        return codec.frame(theta)

    assert torch.equal(frame(), frame())
    for other in (frame(seed=2), frame(layer=1), frame(side="value")):
        assert not torch.allclose(frame(), other)


@pytest.mark.parametrize("exponential", ["taylor", "exact"])
def test_the_exponential_is_the_one_named(exponential: str) -> None:
    codec = _codec(exponential=exponential)
    assert isinstance(codec, SubspaceCodec)
    frame = codec.frame(torch.ones(1, 1).double())[0]
    defect = (frame.mT @ frame - torch.eye(5).double()).abs().max()
    assert defect > 1e-3 if exponential == "taylor" else defect < 1e-14


def test_frames_are_of_the_basis_type() -> None:
    basis = torch.eye(24)[:, :5]
    codec = make_codec(CodecConfig(key_rate=0.8), side="key", layer=0, model=GROUPED, seed=1, basis=basis)
    assert isinstance(codec, SubspaceCodec)
    assert codec.frame(torch.ones(1, 1)).dtype == torch.float32


def test_a_basis_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="the frame is"):
        make_codec(CodecConfig(), side="key", layer=0, model=GROUPED, seed=1, basis=torch.eye(24))
