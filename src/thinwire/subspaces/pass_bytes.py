"""How many bytes does each pass of a run send, whatever it is for?  Updates, validations, theta's mean (3.4, 3.5).

An update goes forward and backward and is synchronised; a validation, and the passes that find theta's mean before the
subspace is folded, only go forward, one sequence at a time. What weights cost between two sums depends on which
fragment leaves at which update.
"""

from collections import Counter
from dataclasses import dataclass, replace

import torch

from thinwire.comm.collectives import sum_bytes
from thinwire.subspaces.averaging import cut, leaving_fragment
from thinwire.subspaces.codecs.make import WIRE_DTYPES
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.llama import Llama
from thinwire.subspaces.schedule import Phase, has_heads, is_settling_step, layout_shift, phase_of
from thinwire.subspaces.theta import RotationHeads
from thinwire.subspaces.traffic import Traffic, step_traffic
from thinwire.subspaces.trainer import THETA_SEQUENCES

EXCHANGED = ("kv-forward", "kv-backward", "theta")
"""Tags of everything that a pass sends."""


@dataclass
class PassBytes:
    """Closed forms of one run, remembered.

    Attributes:
        config: the run's.
        vocab_size: of its tokenizer.
    """

    config: SubspacesConfig
    vocab_size: int

    def __post_init__(self) -> None:
        one = replace(self.config.sequence, batch=1, streams=1, accumulation=1)
        self._one_sequence = replace(self.config, sequence=one)
        self._known: dict[tuple[bool, Phase, int, int], Traffic] = {}
        self._fragments: dict[Phase, list[int]] = {}

    def update(self, step: int, *, ranks: int) -> Counter[str]:
        """What all ranks send for keys, values and theta in an update."""
        found = self._traffic("update", step, phase=phase_of(step, self.config), ranks=ranks).by_tag()
        return Counter({tag: found[tag] for tag in EXCHANGED})

    def forward(self, sequences: int, *, after: int, phase: Phase, ranks: int) -> Counter[str]:
        """Sequences that are only read, one by one, between an update and the next."""
        one = self._traffic("forward", after + 1, phase=phase, ranks=ranks)
        forward, theta = int(one.kv_forward.sum()), int(one.theta_forward.sum())
        return Counter({"kv-forward": sequences * forward, "theta": sequences * theta})

    def theta_mean(self, *, after: int, ranks: int) -> Counter[str]:
        """The passes that find theta's mean at the unplugging; none where theta is not learned."""
        learns = has_heads(self.config.codec, "compressed")
        return self.forward(THETA_SEQUENCES if learns else 0, after=after, phase="compressed", ranks=ranks)

    def sync(self, step: int, *, settled_at: int, ranks: int) -> int:
        """Gradients or weights that leave after an update.

        Args:
            settled_at: the last update before, after which all weights were averaged.
        """
        sync, phase = self.config.sync, phase_of(step, self.config)
        if sync.every == 1:
            return int(self._traffic("update", step, phase=phase, ranks=ranks).sync.sum())
        fragments = self._fragment_sizes(phase)
        if is_settling_step(step, self.config):
            leaving = sum(fragments)
        else:
            index = leaving_fragment(step, config=sync, settled_at=settled_at)
            leaving = fragments[index] if index is not None and index < len(fragments) else 0
        return sum_bytes(leaving, size=ranks, wire=WIRE_DTYPES[sync.wire])

    def plain_update(self, *, ranks: int) -> int:
        """Keys, values and their gradients of an update without a codec."""
        return step_traffic(self.config, vocab_size=self.vocab_size, num_ranks=ranks, phase="plain").exchange_bytes

    def _traffic(self, what: str, step: int, *, phase: Phase, ranks: int) -> Traffic:
        shift = layout_shift(step, self.config) % ranks
        key = (what == "update", phase, ranks, shift)
        if key not in self._known:
            config = self.config if what == "update" else self._one_sequence
            self._known[key] = step_traffic(
                config, vocab_size=self.vocab_size, num_ranks=ranks, phase=phase, shift=shift
            )
        return self._known[key]

    def _fragment_sizes(self, phase: Phase) -> list[int]:
        if phase not in self._fragments:
            model, codec = self.config.model, self.config.codec
            with torch.device("meta"):
                weights = list(Llama(model, vocab_size=self.vocab_size).parameters())
                if has_heads(codec, phase):
                    heads = RotationHeads(layers=model.layers, width=model.kv_width, generators=codec.generators)
                    weights += heads.parameters()
            groups = cut(weights, self.config.sync.fragments)
            self._fragments[phase] = [sum(weight.numel() for weight in group) for group in groups]
        return self._fragments[phase]
