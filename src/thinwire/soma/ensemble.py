"""What does a trained run say?  Experts, router and decoder as plain objects: score bytes, route a prefix (Eq. 1)."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Silent
from thinwire.kernels.dispatch import choose
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import routed_scores
from thinwire.kernels.routed_scores.resident import ResidentExperts
from thinwire.soma.model import stack_thetas
from thinwire.soma.router import Router, Routes
from thinwire.soma.run import SEED_NAME, SomaRun

WINDOWS_PER_CHUNK = 1024
"""With 256 experts and four a window, about 16 windows an expert. Scores of a chunk: 25 MB."""


@dataclass(frozen=True)
class Ensemble:
    """Everything inference needs.

    Attributes:
        thetas: float32 [N, M], the experts' bodies.
        decoder: E [256, d_E] where it is shared and frozen, [N, 256, d_E] where each expert trains its own.
        shape: sizes of an expert.
        router: the fitted clustering pipeline.
        active_experts: k.
        prefix_bytes: what the router sees of a scored window; not scored.
    """

    thetas: Tensor
    decoder: Tensor
    shape: ExpertShape
    router: Router
    active_experts: int
    prefix_bytes: int

    @property
    def num_experts(self) -> int:
        return self.thetas.shape[0]

    @cached_property
    def resident(self) -> ResidentExperts:
        """The experts packed for the CPU, kept from call to call; each is packed when it is first chosen."""
        return ResidentExperts(self.thetas.numpy(), shape=self.shape, decoder=self.decoder.numpy())

    def route(self, prefixes: list[bytes], *, active_experts: int | None = None) -> Routes:
        """Which experts answer for each prefix; ``active_experts`` overrides k."""
        wanted = self.active_experts if active_experts is None else active_experts
        return self.router.route(prefixes, active_experts=wanted)


def load_ensemble(root: Path) -> Ensemble:
    """A trained run, from its folder. Raises UserError where a part is missing or damaged."""
    run = SomaRun.open(root)
    experts = [run.final_expert(str(index)) for index in range(run.num_experts)]
    shared = run.config.experts.decoder == "frozen"
    decoder = experts[0].decoder if shared else torch.stack([expert.decoder for expert in experts])
    routing = run.config.routing
    return Ensemble(
        stack_thetas(experts), decoder, run.shape, run.router(), routing.active_experts, routing.prefix_bytes
    )


def load_seed(root: Path) -> Ensemble:
    """The seed run as an ensemble of one."""
    run = SomaRun.open(root)
    seed = run.final_expert(SEED_NAME)
    router = Router.single()
    return Ensemble(seed.theta[None], seed.decoder, run.shape, router, 1, run.config.routing.prefix_bytes)


class WindowLosses(NamedTuple):
    """Mean loss of each window, nats per byte.

    Attributes:
        mixture: [n], of the weighted average of the chosen experts' probabilities.
        experts: [n, k], of each chosen expert alone.
    """

    mixture: Float64[np.ndarray, " n"]
    experts: Float64[np.ndarray, "n k"]


def score_windows(
    ensemble: Ensemble,
    windows: UInt8[np.ndarray, "n T1"],
    *,
    experts: Int64[np.ndarray, "n k"] | None = None,
    active_experts: int | None = None,
    threads: int = 1,
    implementation: str = "auto",
    progress: Progress | None = None,
) -> WindowLosses:
    """Losses of windows of T + 1 bytes: the first ``prefix_bytes`` route, the T - ``prefix_bytes`` targets after the
    byte behind them are scored (Table 1: 768 of 1,024).

    Args:
        experts: read by these experts, equally weighted, instead of those the router chooses.
        active_experts: overrides k.

    FP32 forward; FP64 mixture and reduction; the state starts from zero in every window.
    """
    mixture, single = [], []
    task = (progress or Silent()).task("score windows", len(windows))
    for start in range(0, len(windows), WINDOWS_PER_CHUNK):
        part = windows[start : start + WINDOWS_PER_CHUNK]
        if experts is None:
            prefixes = [window[: ensemble.prefix_bytes].tobytes() for window in part]
            routes = ensemble.route(prefixes, active_experts=active_experts)
            chosen, weights = routes.experts.astype(np.int64), routes.weights
        else:
            chosen = experts[start : start + WINDOWS_PER_CHUNK]
            weights = np.full(chosen.shape, 1.0 / chosen.shape[1])
        scores = _scores(ensemble, torch.tensor(part), experts=chosen, implementation=implementation, threads=threads)
        mixed = torch.logsumexp(scores + torch.from_numpy(np.log(weights))[..., None], dim=1)
        mixture.append(-mixed.mean(dim=-1).numpy())
        single.append(-scores.mean(dim=-1).numpy())
        task.advance(len(part))
    task.close()
    return WindowLosses(np.concatenate(mixture), np.concatenate(single))


def _scores(
    ensemble: Ensemble, windows: Tensor, *, experts: np.ndarray, implementation: str, threads: int
) -> Float64[Tensor, "n k S"]:
    """log p of every scored byte under each window's experts."""
    on_cpu = choose(implementation, like=ensemble.thetas) == "numba"
    return routed_scores(
        ensemble.thetas,
        shape=ensemble.shape,
        decoder=ensemble.decoder,
        windows=windows,
        experts=torch.from_numpy(experts),
        first_target=ensemble.prefix_bytes,
        implementation=implementation,
        threads=threads,
        resident=ensemble.resident if on_cpu else None,
    )


def score_bytes(
    ensemble: Ensemble, text: bytes, *, active_experts: int | None = None, threads: int = 1
) -> Float64[np.ndarray, " s"]:
    """log p of each byte of one text after its routed prefix, nats; the text is one window, however long.

    The first scored byte has index ``prefix_bytes + 1``, as in the paper's windows.

    Raises:
        UserError: the text is not longer than ``prefix_bytes + 1`` bytes.
    """
    if len(text) <= ensemble.prefix_bytes + 1:
        raise UserError(
            f"the text has {len(text)} bytes; its first {ensemble.prefix_bytes + 1} route and are not scored",
            where="text",
            fix=f"give at least {ensemble.prefix_bytes + 2} bytes",
        )
    route = ensemble.route([text[: ensemble.prefix_bytes]], active_experts=active_experts)
    window = torch.frombuffer(bytearray(text), dtype=torch.uint8)[None]
    scores = _scores(ensemble, window, experts=route.experts.astype(np.int64), implementation="auto", threads=threads)[
        0
    ]
    return torch.logsumexp(scores + torch.from_numpy(np.log(route.weights[0]))[:, None], dim=0).numpy()
