"""A model that stays packed between calls: every expert's weights as tiles, and its table of 256 input rows.

For d = 32 an expert takes 140 KB packed and 164 KB of table beside its 132 KB of theta: 78 MB for N = 256. An expert
is packed when it is first chosen, and only then takes memory.
"""

from collections.abc import Iterable

import numpy as np

from thinwire.kernels.arguments import check_expert_indices, check_packable
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.lane_forward import build_table, pack_weights
from thinwire.kernels.lane_layout import VOCABULARY, aligned_floats, pack_decoder, sizes_of
from thinwire.kernels.threads import for_each

ONE = (0,)
"""One set of weights in all lanes."""


class ResidentExperts:
    """Packed experts on the CPU.

    Later changes of ``thetas`` or ``decoder`` are not seen: make a new one.

    Attributes:
        packed, tables: float32 [N, packed_floats] and [N, 256 entry_floats]; rows that were never chosen are zero.
        decoders: float32 [1 or N, 512 d_E], as ``pack_decoder`` gives them.
    """

    def __init__(self, thetas: np.ndarray, *, shape: ExpertShape, decoder: np.ndarray) -> None:
        """``thetas`` [N, M]; ``decoder`` [256, d_E], or [N, 256, d_E], one per expert; all float32.

        Raises:
            ValueError: where their shapes or dtypes do not fit.
        """
        check_packable(thetas, decoder, shape=shape)
        self.thetas, self.shape, self.sizes = np.ascontiguousarray(thetas), shape, sizes_of(shape)
        num_experts = len(thetas)
        decoders = decoder if decoder.ndim == 3 else decoder[None]
        self.decoders = aligned_floats(decoders.size * 2).reshape(len(decoders), -1)
        for packed, one in zip(self.decoders, decoders, strict=True):
            packed[:] = pack_decoder(one, sizes=self.sizes)
        # Fresh zeros are pages that the system has not handed out yet, so idle experts cost nothing.
        self.packed = aligned_floats(num_experts * self.sizes.packed_floats).reshape(num_experts, -1)
        self.tables = aligned_floats(num_experts * VOCABULARY * self.sizes.entry_floats).reshape(num_experts, -1)
        self._is_loaded = np.zeros(num_experts, np.bool_)

    def check_holds(self, num_experts: int, *, shape: ExpertShape, num_decoders: int) -> None:
        """Raises ValueError where these are not so many experts of this shape with so many decoders."""
        if (num_experts, num_decoders) != (len(self.thetas), len(self.decoders)) or shape != self.shape:
            raise ValueError(
                f"resident holds {len(self.thetas)} experts of {self.shape} and {len(self.decoders)} decoders, not "
                f"{num_experts} of {shape} and {num_decoders}"
            )

    @property
    def num_bytes(self) -> int:
        """Memory of what is packed."""
        one = self.sizes.packed_floats + VOCABULARY * self.sizes.entry_floats
        return 4 * (int(self._is_loaded.sum()) * one + self.decoders.size)

    def decoder(self, expert: int) -> np.ndarray:
        """The expert's own, or the shared one."""
        return self.decoders[min(expert, len(self.decoders) - 1)]

    def load(self, experts: Iterable[int], *, threads: int = 1) -> None:
        """Pack those of ``experts`` that are not packed yet. Raises ValueError for one outside 0..N-1."""
        wanted = list(experts)
        check_expert_indices(wanted, num_experts=len(self.thetas))
        missing = [expert for expert in wanted if not self._is_loaded[expert]]

        def run(expert: int, scratch: np.ndarray) -> None:
            packed, table = self.packed[expert], self.tables[expert]
            pack_weights(self.thetas[expert], self.sizes, packed[::1])
            build_table(ONE, packed, self.decoder(expert), self.sizes, table, scratch)
            self._is_loaded[expert] = True

        for_each(missing, run, make_workspace=lambda: aligned_floats(self.sizes.scratch_floats), threads=threads)
