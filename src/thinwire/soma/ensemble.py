"""What does a trained run say?  Experts, router and decoder as plain objects: score bytes, route a prefix (Eq. 1)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from thinwire.base.errors import UserError
from thinwire.base.progress import Progress, Silent, Task
from thinwire.kernels.dispatch import choose, device_for
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import routed_scores
from thinwire.kernels.routed_scores.resident import ResidentExperts
from thinwire.soma.model import stack_thetas
from thinwire.soma.router import Router, Routes
from thinwire.soma.run import SEED_NAME, SomaRun

REQUESTS_PER_CHUNK = 65_536
"""A request is a window under one of its experts: of 256 experts, each gets 256, so most fill the lanes of the kernel.

The scores of a chunk take 400 MB with 768 targets a window, and never more than ``SCORES_BYTES``.
"""
SCORES_BYTES = 400 * 2**20
WINDOWS_PER_MIXTURE = 256


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

    def placed_for(self, implementation: str) -> "Ensemble":
        """The same ensemble where a named implementation needs its weights: on the GPU for ``triton``.

        Raises:
            UserError: there is no such device here.
        """
        device = device_for(implementation)
        if implementation != "triton" or device.type == self.thetas.device.type:
            return self
        return replace(self, thetas=self.thetas.to(device), decoder=self.decoder.to(device))

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


def windows_at_once(per_window: int, *, num_targets: int) -> int:
    """How many windows a chunk holds, each read by ``per_window`` experts."""
    requests = min(REQUESTS_PER_CHUNK, SCORES_BYTES // (8 * max(num_targets, 1)))
    return max(requests // max(per_window, 1), 1)


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
    ensemble = ensemble.placed_for(implementation)
    per_window = experts.shape[1] if experts is not None else active_experts or ensemble.active_experts
    at_once = windows_at_once(per_window, num_targets=windows.shape[1] - 1 - ensemble.prefix_bytes)
    task = (progress or Silent()).task("score windows", len(windows))
    finished = _Finished(task, per_window=per_window)
    for start in range(0, len(windows), at_once):
        part = windows[start : start + at_once]
        if experts is None:
            prefixes = [window[: ensemble.prefix_bytes].tobytes() for window in part]
            routes = ensemble.route(prefixes, active_experts=active_experts)
            chosen, weights = routes.experts.astype(np.int64), routes.weights
        else:
            chosen = experts[start : start + at_once]
            weights = np.full(chosen.shape, 1.0 / chosen.shape[1])
        scores = scores_under(
            ensemble,
            part,
            experts=chosen,
            implementation=implementation,
            threads=threads,
            finished=finished.add,
        )
        for first in range(0, len(part), WINDOWS_PER_MIXTURE):
            some = slice(first, first + WINDOWS_PER_MIXTURE)
            mixed = torch.logsumexp(scores[some] + torch.from_numpy(np.log(weights[some]))[..., None], dim=1)
            mixture.append(-mixed.mean(dim=-1).numpy())
            single.append(-scores[some].mean(dim=-1).numpy())
        finished.all_of(start + len(part))
    task.close()
    return WindowLosses(np.concatenate(mixture), np.concatenate(single))


class _Finished:
    """Turns finished requests, of whatever windows and threads, into windows shown to a person."""

    def __init__(self, task: Task, *, per_window: int) -> None:
        self._task, self._per_window, self._lock = task, per_window, Lock()
        self._requests = self._shown = 0

    def add(self, requests: int) -> None:
        with self._lock:
            self._requests += requests
            self._show(self._requests // self._per_window)

    def all_of(self, windows: int) -> None:
        """``windows`` windows are finished, whether or not they were told one by one."""
        with self._lock:
            self._requests = windows * self._per_window
            self._show(windows)

    def _show(self, windows: int) -> None:
        if windows > self._shown:
            self._task.advance(windows - self._shown)
            self._shown = windows


def scores_under(
    ensemble: Ensemble,
    windows: UInt8[np.ndarray, "n T1"],
    *,
    experts: Int64[np.ndarray, "n k"],
    implementation: str = "auto",
    threads: int = 1,
    finished: Callable[[int], None] | None = None,
) -> Float64[Tensor, "n k S"]:
    """log p of every scored byte under each window's ``experts``; ``finished`` is told of requests that are done."""
    on_cpu = choose(implementation, like=ensemble.thetas) == "numba"
    return routed_scores(
        ensemble.thetas,
        shape=ensemble.shape,
        decoder=ensemble.decoder,
        windows=torch.tensor(windows),
        experts=torch.from_numpy(experts),
        first_target=ensemble.prefix_bytes,
        implementation=implementation,
        threads=threads,
        resident=ensemble.resident if on_cpu else None,
        finished=finished,
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
    window = np.frombuffer(text, np.uint8)[None]
    scores = scores_under(ensemble, window, experts=route.experts.astype(np.int64), threads=threads)[0]
    return torch.logsumexp(scores + torch.from_numpy(np.log(route.weights[0]))[:, None], dim=0).numpy()
