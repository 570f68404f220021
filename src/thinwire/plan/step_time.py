"""How long does a context-parallel step take on a link?  From its closed-form bytes and a compute time (section 5.2).

A step is a pass forward and a pass backward through all layers. In each, a link per node is as slow as the busiest
node's in or out direction, a link per pair as the busiest pair. Directions are independent (full duplex).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from thinwire.base.errors import UserError
from thinwire.base.files import read_json_lines
from thinwire.comm.link import Link
from thinwire.subspaces.config import SubspacesConfig
from thinwire.subspaces.schedule import Phase, codec_in_force
from thinwire.subspaces.traffic import Bytes, Traffic, num_parameters


@dataclass(frozen=True)
class StepTime:
    """One update on a link, in seconds.

    Attributes:
        exchange: keys, values and their gradients, all passes, with the link's delays.
        sync: gradients or weights, on average over the steps between two sums.
        compute: without any link; 0 where unknown.
        serial: nothing overlaps.
        overlapped: at best: the exchange and averages of weights run behind the compute (two streams or more);
            summed gradients still wait for its end.
    """

    exchange: float
    sync: float
    compute: float
    serial: float
    overlapped: float


def link_seconds(sent: Bytes, *, link: Link) -> float:
    """How long the busiest link needs for these messages, all sent at once."""
    busiest = sent.max() if link.per == "pair" else max(sent.sum(axis=0).max(), sent.sum(axis=1).max())
    return float(busiest) * 8.0 / link.bits_per_s


def step_time(
    config: SubspacesConfig, traffic: Traffic, *, link: Link, phase: Phase = "compressed", compute_seconds: float = 0.0
) -> StepTime:
    """What a step takes where its bytes meet a link.

    choice: the delay counts once for each layer and direction of every accumulated pass (twice where theta is handed
    on first), because a layer cannot attend before its keys are there.

    Args:
        config: of the run.
        traffic: of one of its steps.
        link: rate, delay, and whether it is per node or per pair.
        phase: the traffic's.
        compute_seconds: of a step without any link.
    """
    exchange = sum(link_seconds(part, link=link) for part in traffic.exchanges())
    if traffic.num_ranks > 1:
        exchange += link.delay_seconds * config.sequence.accumulation * _waits(config, phase)
    sync = link_seconds(traffic.sync, link=link) / traffic.sync_every
    if traffic.sync_every == 1:
        overlapped = max(compute_seconds, exchange) + sync
    else:
        overlapped = max(compute_seconds, exchange + sync)
    return StepTime(exchange, sync, compute_seconds, compute_seconds + exchange + sync, overlapped)


def _waits(config: SubspacesConfig, phase: Phase) -> int:
    """Messages of a pass that wait for each other, there and back."""
    codec = codec_in_force(config.codec, phase)
    is_handed_on = codec.kind == "subspace" and codec.theta_source == "previous_chunk"
    return 2 * config.model.layers * (1 + is_handed_on)


def step_flops(config: SubspacesConfig, *, vocab_size: int) -> int:
    """Floating-point operations of an update, all ranks together: 6 a weight and token in matrix products (forward and
    backward), and 6 n^2 (heads x head width) a layer in causal attention."""
    model, size = config.model, config.sequence
    gains = model.width * (2 * model.layers + 1)
    looked_up = 0 if model.tied else vocab_size * model.width
    weights = num_parameters(config, vocab_size=vocab_size) - gains - looked_up
    attention = 6 * size.tokens**2 * model.heads * model.head_width * model.layers
    return size.sequences_per_step * (6 * weights * size.tokens + attention)


def tokens_per_step(config: SubspacesConfig) -> int:
    return config.sequence.tokens * config.sequence.sequences_per_step


def measured_step_seconds(log: Path) -> float:
    """Median seconds of an update in a run's ``log.jsonl``, outside the warm-up; 0 where there is none.

    Raises:
        UserError: a record's seconds are no time.
    """
    records = [found for found in read_json_lines(log) if found.get("kind") == "step"]
    seconds = [found["seconds"] for found in records if found.get("phase") != "warm-up" and "seconds" in found]
    for one in seconds:
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 <= one < math.inf:
            fix = "restore log.jsonl from a copy of the run, or remove this line"
            raise UserError(f"a record of an update is damaged: seconds = {one!r}", where=str(log), fix=fix)
    return float(median(seconds)) if seconds else 0.0
