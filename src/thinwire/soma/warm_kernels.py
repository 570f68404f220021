"""Who compiles the kernels?  The process that starts the workers, once, in sight; the workers find them on disk.

Compiled code depends on the shape of an update (how many directions share the lanes), so the calls here have the
run's shapes, on two bytes of text.
"""

import time

import numpy as np
import torch

from thinwire.base.progress import Voice
from thinwire.base.seeds import stream_key
from thinwire.base.units import format_seconds
from thinwire.kernels.dispatch import choose
from thinwire.kernels.expert_losses.api import expert_losses
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.kernels.routed_scores.api import decoder_inputs, routed_scores
from thinwire.kernels.sign_probe.api import ProbeAddress, weighted_probe_sum
from thinwire.soma.config import TrainingConfig
from thinwire.soma.model import Expert
from thinwire.soma.spsa import SIGNS

NOTICEABLE_SECONDS = 2.0


def warm_kernels(
    expert: Expert, *, config: TrainingConfig, shape: ExpertShape, implementation: str, voice: Voice
) -> float:
    """Call every kernel of an update and of a validation once; returns the seconds it took.

    A cache that holds them makes this a moment, and nothing is said.
    """
    if choose(implementation, like=expert.theta) != "numba":
        return 0.0
    started, task = time.perf_counter(), voice.progress.task("kernels", 3)
    task.note("compiled where they are not on disk yet")
    address = ProbeAddress(stream_key(0, "warm"), 0)
    windows = torch.zeros(config.batch, 2, dtype=torch.uint8)
    if config.estimator == "spsa":
        expert_losses(
            expert.theta,
            shape=shape,
            decoder=expert.decoder,
            windows=windows,
            address=address,
            directions=range(1),
            epsilon=config.epsilon,
            signs=SIGNS[config.difference],
            implementation=implementation,
        )
        weighted_probe_sum(np.ones(1), address=address, shape=shape)
    task.advance(2)
    held_out = torch.zeros(config.validation_windows, 2, dtype=torch.uint8)
    experts = torch.zeros(len(held_out), 1, dtype=torch.int64)
    routed_scores(
        expert.theta[None],
        shape=shape,
        decoder=expert.decoder,
        windows=held_out,
        experts=experts,
        first_target=0,
        implementation=implementation,
    )
    if config.decoder == "trained":
        decoder_inputs(
            expert.theta, shape=shape, decoder=expert.decoder, windows=windows, implementation=implementation
        )
    task.advance()
    task.close()
    seconds = time.perf_counter() - started
    if seconds >= NOTICEABLE_SECONDS:
        voice.say(f"kernels: compiled in {format_seconds(seconds)}; the next run finds them on disk")
    return seconds
