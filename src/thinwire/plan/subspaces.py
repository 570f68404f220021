"""Which codec fits a link and a deadline?  A table of codecs and links from closed forms (section 5.2)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from thinwire.comm.link import Link
from thinwire.plan.step_time import StepTime, step_flops, step_time, tokens_per_step
from thinwire.subspaces.codecs.make import codec_rank
from thinwire.subspaces.config import (
    CodecConfig,
    SubspacesConfig,
)
from thinwire.subspaces.schedule import Phase
from thinwire.subspaces.traffic import Exchange, Traffic, num_parameters, step_traffic

HIDDEN_FRACTION = 0.95
"""An exchange counts as hidden where a step keeps this part of the speed it has without any link."""
RATES = (0.8, 0.9, 0.95, 0.98, 0.99)


class Goal(NamedTuple):
    """What is to be trained by when.

    Attributes:
        num_tokens: to train on.
        seconds: until it is done.
    """

    num_tokens: int
    seconds: float


@dataclass(frozen=True)
class Question:
    """What is planned.

    Attributes:
        config: model, sequence, ranks, synchronisation, and the codec that is wanted.
        links: where the ranks may meet.
        vocab_size: of the tokenizer.
        compute_seconds: of a step without any link; 0 where unknown.
        goal: None asks which exchange hides behind the compute.
        exchange: who receives a chunk.
    """

    config: SubspacesConfig
    links: tuple[Link, ...]
    vocab_size: int
    compute_seconds: float = 0.0
    goal: Goal | None = None
    exchange: Exchange = "needed"

    def allowed_step_seconds(self) -> float | None:
        """The longest step that meets the goal; without one, that hides the exchange; None where neither is known."""
        if self.goal is not None:
            return self.goal.seconds * tokens_per_step(self.config) / self.goal.num_tokens
        return self.compute_seconds / HIDDEN_FRACTION if self.compute_seconds > 0 else None

    def traffic(self, config: SubspacesConfig, phase: Phase) -> Traffic:
        return step_traffic(config, vocab_size=self.vocab_size, phase=phase, exchange=self.exchange)

    def time(self, variant: "Variant", traffic: Traffic, link: Link) -> StepTime:
        return step_time(variant.config, traffic, link=link, phase=variant.phase, compute_seconds=self.compute_seconds)


class Variant(NamedTuple):
    """One codec: its name in words, the configuration with it, and the phase that uses it."""

    name: str
    config: SubspacesConfig
    phase: Phase


def variants(config: SubspacesConfig) -> list[Variant]:
    """The codecs worth comparing: none, the configuration's own, subspaces at other rates, and the baselines."""
    codec = config.codec
    rates = [(codec.key_rate, codec.value_rate), *((rate, rate) for rate in RATES)]
    return [
        Variant("plain", config, "plain"),
        *(_subspace(config, key_rate=key, value_rate=value) for key, value in dict.fromkeys(rates)),
        Variant(f"top {codec.keep_fraction:.0%}", _with(config, replace(codec, kind="top_k")), "compressed"),
        Variant(f"{codec.bits}-bit", _with(config, replace(codec, kind="quantised")), "compressed"),
    ]


def _subspace(config: SubspacesConfig, *, key_rate: float, value_rate: float) -> Variant:
    codec = replace(config.codec, kind="subspace", key_rate=key_rate, value_rate=value_rate)
    return Variant(f"subspace K -{100 * key_rate:.4g}% V -{100 * value_rate:.4g}%", _with(config, codec), "compressed")


def _with(config: SubspacesConfig, codec: CodecConfig) -> SubspacesConfig:
    return replace(config, codec=codec)


def gentlest_rank(question: Question, *, link: Link) -> int | None:
    """The largest r, the same for keys and values, whose overlapped step is short enough; None where not even 1 is, or
    where nothing says how long a step may take."""
    config, allowed = question.config, question.allowed_step_seconds()

    def fits(rank: int) -> bool:
        rate = 1.0 - rank / config.model.kv_width
        variant = _subspace(_any_rank(config), key_rate=rate, value_rate=rate)
        time = question.time(variant, question.traffic(variant.config, variant.phase), link)
        return allowed is not None and time.overlapped <= allowed

    low, high = 0, config.model.kv_width
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None


def _any_rank(config: SubspacesConfig) -> SubspacesConfig:
    """So that every rank can be tried."""
    return _with(config, replace(config.codec, min_rank=1))


def plan(question: Question) -> dict[str, Any]:
    """The whole table, as plain values."""
    config = question.config
    plain = question.traffic(config, "plain")
    rows = []
    for variant in variants(config):
        traffic = question.traffic(variant.config, variant.phase)
        rows += [_row(question, variant, traffic, link=link, plain=plain) for link in question.links]
    ranks: Sequence[int | None] = [gentlest_rank(question, link=link) for link in question.links]
    return {
        "kind": "plan-subspaces",
        "ranks": config.launch.ranks,
        "tokens_per_step": tokens_per_step(config),
        "parameters": num_parameters(config, vocab_size=question.vocab_size),
        "vocab_size": question.vocab_size,
        "sync_every": config.sync.every,
        "flops_per_step": step_flops(config, vocab_size=question.vocab_size),
        "exchange": question.exchange,
        "compute_seconds": question.compute_seconds or None,
        "goal": None if question.goal is None else question.goal._asdict(),
        "allowed_step_seconds": question.allowed_step_seconds(),
        "links": [
            {
                **asdict(link),
                "gentlest_rank": rank,
                "gentlest_rate": None if rank is None else 1 - rank / config.model.kv_width,
            }
            for link, rank in zip(question.links, ranks, strict=True)
        ],
        "options": rows,
    }


def _row(question: Question, variant: Variant, traffic: Traffic, *, link: Link, plain: Traffic) -> dict[str, Any]:
    """One codec on one link."""
    config, time, allowed = variant.config, question.time(variant, traffic, link), question.allowed_step_seconds()
    is_subspace = variant.phase == "compressed" and config.codec.kind == "subspace"
    num_tokens, is_known = tokens_per_step(config), question.compute_seconds > 0
    return {
        "codec": variant.name,
        "key_rank": codec_rank(config.codec, side="key", model=config.model) if is_subspace else None,
        "value_rank": codec_rank(config.codec, side="value", model=config.model) if is_subspace else None,
        "link_per": link.per,
        "link_bits_per_s": link.bits_per_s,
        "wire_bytes": traffic.exchange_bytes,
        "wire_bytes_by_tag": traffic.by_tag(),
        "fraction_of_plain": traffic.exchange_bytes / plain.exchange_bytes if plain.exchange_bytes else 1.0,
        "received_bytes_by_rank": sum(part.sum(axis=0) for part in traffic.exchanges()).tolist(),
        "sync_bytes_per_step": traffic.sync_bytes_per_step,
        "exchange_seconds": time.exchange,
        "sync_seconds": time.sync,
        "step_seconds_overlapped": time.overlapped,
        "step_seconds_serial": time.serial,
        "tokens_per_s_overlapped": num_tokens / time.overlapped if time.overlapped > 0 else None,
        "tokens_per_s_serial": num_tokens / time.serial if is_known else None,
        "is_bound_by_weights": time.sync > max(time.exchange, time.compute),
        "fraction_of_unlinked_speed": time.compute / time.overlapped if is_known else None,
        "training_seconds": None if question.goal is None else time.overlapped * question.goal.num_tokens / num_tokens,
        "fits": None if allowed is None else time.overlapped <= allowed,
    }
