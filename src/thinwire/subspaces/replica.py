"""What does one rank train?  The model, its rotation heads and bases, and the codecs made of them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from thinwire.subspaces.codecs.make import make_codec
from thinwire.subspaces.config import CodecConfig, SubspacesConfig
from thinwire.subspaces.exchange import CodecPair
from thinwire.subspaces.llama import Llama, initialise
from thinwire.subspaces.rotation import Side
from thinwire.subspaces.schedule import Phase, codec_in_force, has_heads
from thinwire.subspaces.theta import RotationHeads

SIDES: tuple[Side, ...] = ("key", "value")
MODEL_PREFIX, HEADS_PREFIX, BASIS_PREFIX = "llama.", "heads.", "bases."


class Replica(nn.Module):
    """The weights of one rank.

    Attributes:
        llama: the model.
        heads: psi, from the plug-in to the unplugging, where theta is learned.
        bases: (layer, side) -> [kv_width, r]; empty before the plug-in.
    """

    def __init__(self, config: SubspacesConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.llama = Llama(config.model, vocab_size=vocab_size)
        initialise(self.llama, seed=config.seed)
        self.heads: RotationHeads | None = None
        self.bases: dict[tuple[int, Side], Tensor] = {}

    def needs_heads(self, phase: Phase) -> bool:
        return has_heads(self.config.codec, phase)

    def add_heads(self) -> None:
        """New rotation heads: theta is zero until they learn."""
        model = self.config.model
        heads = RotationHeads(layers=model.layers, width=model.kv_width, generators=self.config.codec.generators)
        weight = self.llama.model.norm.weight
        self.heads = heads.to(device=weight.device, dtype=weight.dtype)

    def codec_config(self, phase: Phase) -> CodecConfig:
        """The settings in force."""
        return codec_in_force(self.config.codec, phase)

    def codecs(self, phase: Phase) -> list[CodecPair]:
        """One pair a layer, made of the bases as they are now."""
        settings, config = self.codec_config(phase), self.config
        return [
            CodecPair(
                *(
                    make_codec(
                        settings,
                        side=side,
                        layer=layer,
                        model=config.model,
                        seed=config.seed,
                        basis=self.bases.get((layer, side)),
                    )
                    for side in SIDES
                )
            )
            for layer in range(config.model.layers)
        ]

    def projection(self, layer: int, side: Side) -> nn.Parameter:
        """The weight of a layer's keys or values, [kv_width, width]."""
        attention = self.llama.model.layers[layer].self_attn
        return attention.k_proj.weight if side == "key" else attention.v_proj.weight  # type: ignore[union-attr,return-value]

    def weights(self) -> dict[str, Tensor]:
        """Every tensor of the one model by name; tied ones once, bases included."""
        found = {name: parameter.detach() for name, parameter in self.named_parameters()}
        return found | {f"{BASIS_PREFIX}{layer}.{side}": basis for (layer, side), basis in self.bases.items()}

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over ``weights()`` of another time; heads and bases appear where they are among them."""
        if any(name.startswith(HEADS_PREFIX) for name in tensors) and self.heads is None:
            self.add_heads()
        if self.heads is not None and not any(name.startswith(HEADS_PREFIX) for name in tensors):
            self.heads = None
        like = self.llama.model.norm.weight
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(tensors[name])
        self.bases = {}
        for name, tensor in tensors.items():
            if name.startswith(BASIS_PREFIX):
                layer, side = name.removeprefix(BASIS_PREFIX).split(".")
                self.bases[int(layer), "key" if side == "key" else "value"] = tensor.to(like)
