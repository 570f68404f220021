"""What does a rank train, and is it the same after it was written down?"""

from dataclasses import replace

import pytest
import torch

from thinwire.comm.group import alone
from thinwire.subspaces import phases
from thinwire.subspaces.codecs.plain import PlainCodec
from thinwire.subspaces.codecs.quantised import QuantisedCodec
from thinwire.subspaces.codecs.subspace import SubspaceCodec
from thinwire.subspaces.codecs.top_k import TopKCodec
from thinwire.subspaces.config import CodecConfig, LlamaConfig, SubspacesConfig
from thinwire.subspaces.replica import Replica

CONFIG = SubspacesConfig(
    seed=2,
    model=LlamaConfig(layers=2, width=16, heads=2, kv_heads=2, head_width=8, hidden=20),
    codec=CodecConfig(key_rate=0.7, value_rate=0.5, group=4, uncompressed_layers=(1,)),
)


def made(*, is_plugged: bool = False, config: SubspacesConfig = CONFIG) -> Replica:
    replica = Replica(config, vocab_size=9)
    if is_plugged:
        phases.plug_in(replica, alone(), read_text=lambda: torch.zeros(1, 4, dtype=torch.int64))
    return replica


def test_replicas_of_one_seed_are_equal() -> None:
    one, same, other = made(), made(), made(config=replace(CONFIG, seed=3))
    assert all(torch.equal(a, b) for a, b in zip(one.weights().values(), same.weights().values(), strict=True))
    assert not torch.equal(one.llama.lm_head.weight, other.llama.lm_head.weight)


def test_a_tied_weight_is_kept_once() -> None:
    names = set(made().weights())
    assert "llama.model.embed_tokens.weight" in names
    assert "llama.lm_head.weight" not in names


def test_weights_written_down_come_back_with_heads_and_bases() -> None:
    plugged = made(is_plugged=True)
    with torch.no_grad():
        for parameter in plugged.parameters():
            parameter.add_(0.01)
    for other in (made(), made(is_plugged=True)):
        other.load_weights(plugged.weights())
        assert other.weights().keys() == plugged.weights().keys()
        assert all(torch.equal(other.weights()[name], tensor) for name, tensor in plugged.weights().items())
        assert other.bases.keys() == plugged.bases.keys()


def test_weights_without_heads_and_bases_take_them_away() -> None:
    plugged, plain = made(is_plugged=True), made()
    plugged.load_weights(plain.weights())
    assert plugged.heads is None
    assert plugged.bases == {}
    assert plugged.weights().keys() == plain.weights().keys()


@pytest.mark.parametrize(
    ("kind", "expected"), [("subspace", SubspaceCodec), ("top_k", TopKCodec), ("quantised", QuantisedCodec)]
)
def test_codecs_follow_the_phase(kind: str, expected: type) -> None:
    config = replace(CONFIG, codec=replace(CONFIG.codec, kind=kind))  # type: ignore[arg-type]
    replica = made(is_plugged=True, config=config)
    first, last = replica.codecs("compressed")
    assert isinstance(first.key, expected)
    assert isinstance(first.value, expected)
    assert isinstance(last.key, PlainCodec)
    for phase in ("warm-up", "plain"):
        assert all(isinstance(codec, PlainCodec) for pair in replica.codecs(phase) for codec in pair)  # type: ignore[arg-type]


def test_theta_is_frozen_once_folded() -> None:
    replica = made(is_plugged=True)
    assert replica.codecs("compressed")[0].key.needs_theta
    assert not replica.codecs("folded")[0].key.needs_theta
    assert replica.codec_config("folded").theta_source == "none"
    assert replica.codec_config("compressed") == CONFIG.codec


def test_projections_are_the_models_own_weights() -> None:
    replica = made()
    assert replica.projection(1, "key") is replica.llama.model.layers[1].self_attn.k_proj.weight  # type: ignore[union-attr]
    assert replica.projection(0, "value") is replica.llama.model.layers[0].self_attn.v_proj.weight  # type: ignore[union-attr]
