"""Do one-sided differences cost next to no variance on a trained body?  (design: at most 1.1 at eps = 1e-3)"""

import argparse
import inspect

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.base.seeds import stream_key
from thinwire.kernels.expert_losses import reference
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.sign_probe.api import ProbeAddress
from thinwire.soma.model import Expert, initial_expert
from thinwire.soma.spsa import Difference, differences_of, gradient_from_differences

SHAPE = ExpertShape(width=16, embed_width=16)
EPSILON, DIRECTIONS, UPDATES = 1e-3, 64, 24


def text_windows(count: int, *, length: int, seed: int) -> Tensor:
    """uint8 [count, length + 1] of a text that every Python installation carries."""
    text = np.frombuffer(inspect.getsource(argparse).encode(), np.uint8)
    starts = np.random.default_rng(seed).integers(0, len(text) - length, count)
    return torch.from_numpy(text[starts[:, None] + np.arange(length + 1)].copy())


@pytest.fixture(scope="module")
def trained() -> Expert:
    """A body and its E after 120 updates of BPTT: well below a uniform guess (5.55 nats per byte)."""
    torch.set_num_threads(1)
    start = initial_expert(SHAPE, seed=0)
    weights = [start.theta.clone().requires_grad_(True), start.decoder.clone().requires_grad_(True)]
    optimizer = torch.optim.Adam(weights, lr=1e-2)
    loss = torch.zeros(())
    for step in range(120):
        optimizer.zero_grad()
        windows = text_windows(16, length=24, seed=step)
        loss = reference.mean_loss(weights[0][None], shape=SHAPE, decoder=weights[1], windows=windows)[0]
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 3.2
    return Expert(weights[0].detach(), weights[1].detach())


def test_one_sided_has_the_same_mean_and_at_most_1_1_times_the_variance(trained: Expert) -> None:
    windows = text_windows(8, length=48, seed=1000)
    estimates: dict[Difference, list[np.ndarray]] = {"central": [], "one_sided": []}
    coefficients: dict[Difference, list[np.ndarray]] = {"central": [], "one_sided": []}
    for update in range(UPDATES):
        address = ProbeAddress(stream_key(2, "probe", 0), update)
        losses = expert_losses(
            trained.theta,
            shape=SHAPE,
            decoder=trained.decoder,
            windows=windows,
            address=address,
            directions=range(DIRECTIONS),
            epsilon=EPSILON,
            implementation="numba",
        )
        for difference, columns in (("central", losses), ("one_sided", losses[:, :1].contiguous())):
            batch = differences_of(columns, difference=difference)
            coefficients[difference].append(batch.differences * (0.5 if difference == "central" else 1.0))
            gradient = gradient_from_differences(
                [batch.differences], addresses=[address], shape=SHAPE, epsilon=EPSILON, difference=difference
            )
            estimates[difference].append(gradient.numpy())
    central, one_sided = (np.stack(estimates[difference]) for difference in ("central", "one_sided"))
    ratio = one_sided.var(axis=0, ddof=1).sum() / central.var(axis=0, ddof=1).sum()
    # the shared probes cancel most of the sampling error; n/(n-1) alone makes 1.016
    assert 0.95 < ratio < 1.1
    correlation = np.corrcoef(np.ravel(coefficients["central"]), np.ravel(coefficients["one_sided"]))[0, 1]
    assert correlation > 0.95
    apart = one_sided - central
    shift = apart.mean(axis=0) / np.maximum(apart.std(axis=0, ddof=1) / np.sqrt(UPDATES), 1e-30)
    # z-scores of M coordinates, t-distributed with 23 degrees of freedom: mean square 23 / 21
    assert abs(float((shift**2).mean()) - 23 / 21) < 0.25
