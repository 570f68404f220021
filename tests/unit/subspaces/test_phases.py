"""Does a model get the bases it should, and lose them without changing what they left?"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from thinwire.base.errors import RunFailedError
from thinwire.comm.group import alone
from thinwire.subspaces import phases
from thinwire.subspaces.config import BasisKind, CodecConfig, LlamaConfig, SubspacesConfig
from thinwire.subspaces.replica import Replica
from thinwire.subspaces.rotation import orthonormality_defect, principal_angles

CONFIG = SubspacesConfig(
    seed=2,
    model=LlamaConfig(layers=2, width=16, heads=4, kv_heads=2, head_width=6, hidden=20),
    codec=CodecConfig(key_rate=0.7, value_rate=0.5, generators=2, wire="float64"),
)


def plugged(config: SubspacesConfig = CONFIG, *, text: Tensor | None = None) -> Replica:
    replica = Replica(config, vocab_size=9).double()

    def read_text() -> Tensor:
        assert text is not None
        return text

    phases.plug_in(replica, alone(), read_text=read_text)
    return replica


def texts(num: int) -> Tensor:
    return torch.randint(0, 9, (num, 20), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["weight_svd", "activation", "random"])
def test_every_layer_and_side_gets_an_orthonormal_basis(kind: BasisKind) -> None:
    replica = plugged(replace(CONFIG, codec=replace(CONFIG.codec, basis=kind)), text=texts(4))
    assert {name: tuple(basis.shape) for name, basis in replica.bases.items()} == {
        (layer, side): (12, rank) for layer in (0, 1) for side, rank in (("key", 4), ("value", 6))
    }
    assert all(float(orthonormality_defect(basis)) < 1e-12 for basis in replica.bases.values())
    again = plugged(replace(CONFIG, codec=replace(CONFIG.codec, basis=kind)), text=texts(4))
    assert all(torch.equal(replica.bases[name], again.bases[name]) for name in replica.bases)


@pytest.mark.parametrize("kind", ["weight_svd", "activation", "random"])
def test_a_subspace_may_have_one_direction(kind: BasisKind) -> None:
    """A matrix of one column may keep a stride that says nothing."""
    codec = replace(CONFIG.codec, basis=kind, key_rate=1.0, value_rate=1.0)
    replica = plugged(replace(CONFIG, codec=codec), text=texts(4))
    assert {tuple(basis.shape) for basis in replica.bases.values()} == {(12, 1)}
    assert all(float(orthonormality_defect(basis)) < 1e-12 for basis in replica.bases.values())


def test_a_basis_of_weights_spans_their_top_directions() -> None:
    replica = plugged()
    for (layer, side), basis in replica.bases.items():
        weight = replica.projection(layer, side).detach()
        left = torch.linalg.svd(weight).U[:, : basis.shape[1]]
        assert float(principal_angles(basis, left).max()) < 1e-7


def test_a_basis_of_activations_rebuilds_what_was_seen_better() -> None:
    """Than one of weights, on the same text."""
    text = texts(6)
    seen = phases._Recorder(plugged())
    with torch.no_grad():
        plugged().llama.hidden([text], seen)
    lost = {}
    for kind in ("activation", "weight_svd"):
        replica = plugged(replace(CONFIG, codec=replace(CONFIG.codec, basis=kind)), text=text)  # type: ignore[arg-type]
        lost[kind] = [float((seen.rows[n] - seen.rows[n] @ b @ b.mT).norm()) for n, b in replica.bases.items()]
    assert all(one < other for one, other in zip(lost["activation"], lost["weight_svd"], strict=True))


@pytest.mark.parametrize("source", ["chunk", "previous_chunk", "none", "random"])
def test_heads_come_where_theta_is_learned(source: str) -> None:
    replica = plugged(replace(CONFIG, codec=replace(CONFIG.codec, theta_source=source)))  # type: ignore[arg-type]
    assert (replica.heads is not None) == (source in ("chunk", "previous_chunk"))


def test_different_bases_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "gather_json", lambda *_: ["one hash", "another"])
    with pytest.raises(RunFailedError, match="different bases"):
        plugged()


def means(replica: Replica, theta: float) -> dict:
    return {name: torch.full((2,), theta, dtype=torch.float64) for name in replica.bases}


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_folded_weights_lie_in_the_frame(theta: float) -> None:
    replica = plugged()
    mean = means(replica, theta)
    weights = {name: replica.projection(*name).detach().clone() for name in replica.bases}
    frames = phases.mean_frames(replica, mean)
    phases.fold(replica, mean)
    for name, before in weights.items():
        after, basis, frame = replica.projection(*name).detach(), replica.bases[name], frames[name]
        torch.testing.assert_close(after, frame @ frame.mT @ before, rtol=0, atol=1e-12)
        torch.testing.assert_close(basis @ basis.mT @ after, after, rtol=0, atol=1e-12)
        assert float(orthonormality_defect(basis)) < 1e-12
        assert torch.linalg.matrix_rank(after) == basis.shape[1]
    assert replica.heads is None


def test_folding_twice_changes_nothing_more() -> None:
    replica = plugged()
    phases.fold(replica, means(replica, 0.2))
    before = {name: weight.clone() for name, weight in replica.weights().items()}
    phases.fold(replica, {})
    for name, weight in replica.weights().items():
        if "proj" in name:
            torch.testing.assert_close(weight, before[name], rtol=0, atol=1e-12)


def test_only_compressed_layers_are_folded() -> None:
    replica = plugged(replace(CONFIG, codec=replace(CONFIG.codec, uncompressed_layers=(1,))))
    before = replica.projection(1, "key").detach().clone()
    assert {layer for layer, _ in phases.folded_weights(replica, means(replica, 0.1))} == {0}
    phases.fold(replica, means(replica, 0.1))
    assert torch.equal(replica.projection(1, "key"), before)


def test_dropping_keeps_the_full_projections() -> None:
    replica = plugged()
    before = {name: weight.clone() for name, weight in replica.llama.named_parameters()}
    phases.drop(replica)
    assert replica.heads is None
    assert replica.bases == {}
    assert all(torch.equal(weight, before[name]) for name, weight in replica.llama.named_parameters())
