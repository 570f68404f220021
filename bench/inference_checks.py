"""Is inference right?  Shared cases against FP64; then the ensemble that is timed, against eager PyTorch and itself."""

import numpy as np
import torch

from thinwire.kernels.expert_losses.cases import CASES, LossCase, inputs_for
from thinwire.kernels.routed_scores.api import routed_scores
from thinwire.soma.ensemble import Ensemble, score_windows
from thinwire.soma.generate import generate, generate_batch

SCORE_TOLERANCE = {"usual": 5e-6, "extreme": 2e-3}
"""Nats of a log-probability; extreme weights reach -100s and pass saturated gates."""
RELATIVE_TOLERANCE = 2e-6
CHECKED_WINDOWS, CHECKED_BYTES, WRITTEN_BYTES = 4, 300, 40
NUM_EXPERTS = 3


def _scores(case: LossCase, *, implementation: str, dtype: torch.dtype, threads: int, rows: slice) -> torch.Tensor:
    theta, decoder, windows = inputs_for(case)
    generator = np.random.default_rng(7)
    thetas = (theta * (1 + 0.2 * generator.standard_normal((NUM_EXPERTS, 1)))).astype(np.float32)
    experts = np.stack([generator.permutation(NUM_EXPERTS)[:2] for _ in windows])
    return routed_scores(
        torch.from_numpy(thetas).to(dtype),
        shape=case.shape,
        decoder=torch.from_numpy(decoder).to(dtype),
        windows=torch.from_numpy(windows[rows]),
        experts=torch.from_numpy(experts[rows]),
        first_target=0,
        implementation=implementation,
        threads=threads,
    )


def failures(implementation: str) -> list[str]:
    """What is wrong on the shared cases; empty where nothing is."""
    wrong, every = [], slice(None)
    for case in CASES:
        exact = _scores(case, implementation="reference", dtype=torch.float64, threads=1, rows=every)
        actual = _scores(case, implementation=implementation, dtype=torch.float32, threads=1, rows=every)
        allowed = SCORE_TOLERANCE[case.weights] + RELATIVE_TOLERANCE * exact.abs()
        if not bool(((actual - exact).abs() <= allowed).all()):
            wrong.append(f"{case.name}: {float((actual - exact).abs().max()):.1e} nats away from FP64")
        if not torch.equal(
            actual, _scores(case, implementation=implementation, dtype=torch.float32, threads=2, rows=every)
        ):
            wrong.append(f"{case.name}: two threads give other bits than one")
        last = slice(case.batch - 1, case.batch)
        alone = _scores(case, implementation=implementation, dtype=torch.float32, threads=1, rows=last)
        if not torch.equal(actual[last], alone):
            wrong.append(f"{case.name}: a window alone gets other bits than in a batch")
    return wrong


def disagreements(ensemble: Ensemble, windows: np.ndarray, *, implementation: str) -> list[str]:
    """As ``failures``, on the ensemble that is timed, and of the texts it writes."""
    few = windows[:CHECKED_WINDOWS, : CHECKED_BYTES + 1]
    eager = score_windows(ensemble, few, implementation="reference").mixture
    actual = score_windows(ensemble, few, implementation=implementation).mixture
    wrong = []
    error = float(np.abs(actual / eager - 1).max())
    if not error <= RELATIVE_TOLERANCE:
        wrong.append(f"losses are {error:.1e} away from the eager reference")
    many = windows[:, : CHECKED_BYTES + 1]
    if not np.array_equal(
        score_windows(ensemble, many, implementation=implementation, threads=2).mixture[: len(few)], actual
    ):
        wrong.append("a window among many gets other bits than among few")
    prompts = [window[:length].tobytes() for window, length in zip(windows, (256, 40, 256, 100, 0), strict=False)]
    together = generate_batch(ensemble, prompts, num_bytes=WRITTEN_BYTES, threads=2)
    if together != [generate(ensemble, prompt, num_bytes=WRITTEN_BYTES) for prompt in prompts]:
        wrong.append("a text written beside others differs from the same text written alone")
    return wrong
