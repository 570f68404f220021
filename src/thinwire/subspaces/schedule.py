"""What holds at a step?  The phase (sections 3.4, 3.5), the learning rate (section 5.1), when ranks hold one model."""

from dataclasses import replace
from typing import Literal

from thinwire.subspaces.config import LEARNED_SOURCES, CodecConfig, OptimizerConfig, SubspacesConfig

Phase = Literal["warm-up", "compressed", "folded", "plain"]


def phase_of(step: int, config: SubspacesConfig) -> Phase:
    """The phase of an update, 1..steps.

    warm-up: short sequences, no exchange. compressed: the codec of the configuration. folded: the subspace with theta
    frozen at its mean. plain: no codec, because there is none or because it was dropped.
    """
    if step <= config.phases.warmup_steps:
        return "warm-up"
    if config.codec.kind == "plain":
        return "plain"
    if step <= last_compressed_step(config):
        return "compressed"
    return "folded" if config.phases.unplug == "fold" else "plain"


def last_compressed_step(config: SubspacesConfig) -> int:
    """The step before the codec is unplugged.

    choice: only a subspace can be folded; the other codecs stay to the end under ``fold``.
    """
    steps, phases = config.optimizer.steps, config.phases
    stays = phases.unplug == "never" or (phases.unplug == "fold" and config.codec.kind != "subspace")
    # At least one step is compressed: what was never plugged in cannot be unplugged.
    first = min(steps, phases.warmup_steps + 1)
    return steps if stays else max(first, steps - round(phases.unplug_fraction * steps))


def codec_in_force(codec: CodecConfig, phase: Phase) -> CodecConfig:
    """The settings that hold in a phase: plain without a codec, theta frozen where the subspace is folded."""
    if phase in ("warm-up", "plain"):
        return replace(codec, kind="plain")
    return replace(codec, theta_source="none") if phase == "folded" else codec


def has_heads(codec: CodecConfig, phase: Phase) -> bool:
    """Whether psi is there: theta is learned while the subspace turns."""
    return phase == "compressed" and codec.kind == "subspace" and codec.theta_source in LEARNED_SOURCES


def learning_rate(step: int, config: OptimizerConfig) -> float:
    """Linear from zero to the peak over ``ramp_steps``, then linear to ``final_fraction`` of it at the last step.

    Args:
        step: 1..steps; the first has a rate above zero.
    """
    if step <= config.ramp_steps:
        return config.learning_rate * step / config.ramp_steps
    left = (config.steps - step) / max(1, config.steps - config.ramp_steps)
    return config.learning_rate * (config.final_fraction + (1.0 - config.final_fraction) * left)


def is_settling_step(step: int, config: SubspacesConfig) -> bool:
    """Whether the replicas must be one model after this update: a phase ends, or a checkpoint is written."""
    last = step == config.optimizer.steps
    return last or step % config.checkpoint_every == 0 or phase_of(step, config) != phase_of(step + 1, config)


def layout_shift(step: int, config: SubspacesConfig) -> int:
    """How far the ranks have moved over the chunks; it changes where weights are averaged."""
    return (step - 1) // config.sync.every if config.sync.rotate and config.sync.every > 1 else 0
