"""How does the model get its bases, and lose them?  Plug in and unplug (sections 3.4, 3.5, appendix C.1)."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire.base.errors import RunFailedError
from thinwire.comm.collectives import broadcast, gather_json
from thinwire.comm.group import Group
from thinwire.comm.packing import pack
from thinwire.subspaces.basis import activation_basis, random_basis, weight_basis
from thinwire.subspaces.codecs.make import codec_rank
from thinwire.subspaces.codecs.subspace import SubspaceCodec
from thinwire.subspaces.full_attention import FullAttention
from thinwire.subspaces.replica import SIDES, Replica
from thinwire.subspaces.rotation import Side

Mean = Mapping[tuple[int, Side], Tensor]
"""theta's mean over text, of each layer and side: [k]."""


def plug_in(replica: Replica, group: Group, *, read_text: Callable[[], Tensor]) -> None:
    """Give every rank rank 0's bases, and the rotation heads where theta is learned.

    The bases must be equal to the bit: a reader rebuilds keys with its own copy. The paper lets each node compute its
    own; weights that drifted apart would give bases that do not fit, so they are broadcast and their hashes compared.

    Args:
        replica: with weights that are one model on all ranks.
        read_text: int64 [sequences, tokens], called on rank 0 for a basis from activations.

    Raises:
        RunFailedError: a rank holds other bases after the broadcast.
    """
    names = [(layer, side) for layer in range(replica.config.model.layers) for side in SIDES]
    like = replica.llama.model.norm.weight
    made = _bases(replica, names, read_text=read_text) if group.rank == 0 else _empty_bases(replica, names)
    received = broadcast(group, made, root=0, tag="bases")
    replica.bases = {name: basis.to(like) for name, basis in zip(names, received, strict=True)}
    hashes = gather_json(group, _digest(replica.bases.values()))
    if len(set(hashes)) != 1:
        raise RunFailedError(f"the ranks hold different bases after the plug-in: {hashes}")
    if replica.needs_heads("compressed"):
        replica.add_heads()


def _bases(replica: Replica, names: Sequence[tuple[int, Side]], *, read_text: Callable[[], Tensor]) -> list[Tensor]:
    config = replica.config
    ranks = {side: codec_rank(config.codec, side=side, model=config.model) for side in SIDES}
    if config.codec.basis == "random":
        width = config.model.kv_width
        return [
            random_basis(config.seed, layer=layer, side=side, width=width, rank=ranks[side]) for layer, side in names
        ]
    if config.codec.basis == "weight_svd":
        return [weight_basis(replica.projection(layer, side), ranks[side]).double() for layer, side in names]
    seen = _Recorder(replica)
    with torch.no_grad():
        replica.llama.hidden([read_text()], seen)
    return [activation_basis(seen.rows[name], ranks[name[1]]).double() for name in names]


def _empty_bases(replica: Replica, names: Sequence[tuple[int, Side]]) -> list[Tensor]:
    """Where a broadcast is received: the shapes of rank 0's bases."""
    config = replica.config
    return [
        torch.empty(config.model.kv_width, codec_rank(config.codec, side=side, model=config.model), dtype=torch.float64)
        for _, side in names
    ]


class _Recorder(FullAttention):
    """Keeps keys before RoPE, and values, of every layer."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica.config.model)
        self.rows: dict[tuple[int, Side], Tensor] = {}

    def begin(self, layer: int, stream: int, *, hidden: Tensor, key: Tensor, value: Tensor):  # type: ignore[no-untyped-def]
        self.rows[layer, "key"] = (hidden @ key.mT).flatten(0, 1)
        self.rows[layer, "value"] = (hidden @ value.mT).flatten(0, 1)
        return super().begin(layer, stream, hidden=hidden, key=key, value=value)


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(pack([tensor]).cpu().numpy().tobytes())
    return digest.hexdigest()


def mean_frames(replica: Replica, mean: Mean) -> dict[tuple[int, Side], Tensor]:
    """U(theta_bar) [kv_width, r] of every compressed layer and side; the basis itself where theta has no mean."""
    found = {}
    for layer, pair in enumerate(replica.codecs("compressed" if mean else "folded")):
        for side, codec in zip(SIDES, pair, strict=True):
            if isinstance(codec, SubspaceCodec):
                theta = mean.get((layer, side))
                found[layer, side] = codec.frame(None) if theta is None else codec.frame(theta[None])[0]
    return found


def folded_weights(replica: Replica, mean: Mean) -> dict[tuple[int, Side], Tensor]:
    """W = B P(theta_bar) as ``nn.Linear`` holds it: U U^T B^T, [kv_width, width].

    Where theta always is its mean this is the same function; else what its spread did is lost.
    """
    return {
        (layer, side): frame @ (frame.mT @ replica.projection(layer, side).detach())
        for (layer, side), frame in mean_frames(replica, mean).items()
    }


def fold(replica: Replica, mean: Mean) -> None:
    """Put W in the place of B, and go on with a fixed basis of the same subspace.

    W lies in the new basis, which is orthonormal where the frame is so only to the order of the exponential: the codec
    then changes nothing, and the model computes what ``folded_weights`` do.
    """
    frames, weights = mean_frames(replica, mean), folded_weights(replica, mean)
    with torch.no_grad():
        for (layer, side), weight in weights.items():
            replica.projection(layer, side).copy_(weight)
            replica.bases[layer, side] = torch.linalg.qr(frames[layer, side]).Q.contiguous()
    replica.heads = None


def drop(replica: Replica) -> None:
    """W := B: bases and heads go, the full projections stay (the paper's unplugging)."""
    replica.heads = None
    replica.bases = {}
