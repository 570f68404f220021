"""What do the numbers of context-parallel runs say?  Words and ratios computed from the records."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from thinwire.base.units import format_bytes, format_count
from thinwire.report.subspaces.records import LlamaScore, SubspacesRun

EVENT_WORDS = {
    "plug in": "plugged in",
    "unplug": "unplugged",
    "context parallel": "context parallelism began",
    "lost rank": "a rank was lost",
    "joined": "a rank joined",
    "resumed": "resumed",
    "not finite": "a loss was not finite",
}
SOURCE_WORDS = {
    "previous_chunk": "theta from the chunk before",
    "chunk": "theta from the chunk itself (it sees the chunk's future)",
    "none": "a fixed basis",
    "random": "a random rotation",
}
BASIS_WORDS = {"weight_svd": "of the weights", "activation": "of activations", "random": "drawn at random"}
DIGEST_SHOWN = 10


class Group(NamedTuple):
    """Runs whose losses can stand on one figure: the same text, sequences of the same length."""

    fingerprint: str | None
    tokens: int | None
    runs: tuple[SubspacesRun, ...]


def groups_of(runs: Sequence[SubspacesRun]) -> tuple[Group, ...]:
    """In the order in which the runs were named. A run that does not say its text stands alone."""
    found: dict[tuple[object, ...], list[SubspacesRun]] = {}
    for run in runs:
        key = (run.data_fingerprint or f"unknown: {run.name}", run.setting("sequence.tokens"))
        found.setdefault(key, []).append(run)
    return tuple(
        Group(members[0].data_fingerprint, members[0].setting("sequence.tokens"), tuple(members))
        for members in found.values()
    )


def apart_words(groups: Sequence[Group]) -> tuple[str, ...]:
    """Why the runs are not all on one figure: one sentence for each group; none where there is one group."""
    if len(groups) < 2:
        return ()
    same_text = len({group.fingerprint for group in groups}) == 1 and groups[0].fingerprint is not None
    same_length = len({group.tokens for group in groups}) == 1
    sentences = []
    for group in groups:
        words = []
        if not same_length:
            words.append(f"{_verb(group, 'reads', 'read')} sequences of {_grouped(group.tokens)} tokens")
        if not same_text:
            said = "which its folder does not say"
            print_words = f"with fingerprint {group.fingerprint[:DIGEST_SHOWN]}" if group.fingerprint else said
            words.append(f"{_verb(group, 'was', 'were')} trained on text {print_words}")
        sentences.append(f"{', '.join(run.name for run in group.runs)} {' and '.join(words)}.")
    return tuple(sentences)


def _verb(group: Group, one: str, many: str) -> str:
    return one if len(group.runs) == 1 else many


def _grouped(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def plain_of(run: SubspacesRun, runs: Sequence[SubspacesRun]) -> SubspacesRun | None:
    """The run without a codec that has the same shape: model, sequence, ranks and text; of the same seed if there is
    one."""
    if run.setting("codec.kind") == "plain":
        return None
    alike = [
        other
        for other in runs
        if other.setting("codec.kind") == "plain"
        and other.data_fingerprint == run.data_fingerprint
        and all(other.setting(key) == run.setting(key) for key in ("model", "sequence", "launch.ranks"))
    ]
    same_seed = [other for other in alike if other.setting("seed") == run.setting("seed")]
    return next(iter((*same_seed, *alike)), None)


def part_of_plain(run: SubspacesRun, plain: SubspacesRun | None) -> float | None:
    """An update's keys and values, counted, as a part of what the plain run counted, or else of the closed form that
    ``measure traffic`` wrote; None where neither is there, or nothing was counted without a validation in it."""
    own = run.exchange
    if own is None or not own.num_alone:
        return None
    if plain is not None and plain.exchange is not None and plain.exchange.num_alone and plain.exchange.exchanged > 0:
        return own.exchanged / plain.exchange.exchanged
    closed_form = run.traffic.plain_bytes.get(own.phase) if run.traffic is not None else None
    return own.exchanged / closed_form if closed_form else None


def loss_against(run: SubspacesRun, plain: SubspacesRun) -> float | None:
    """How far the test loss lies above the plain run's, on the same windows; None where that is not known."""
    mine, other = run.headline, plain.headline
    if mine is None or other is None or mine.windows_digest is None or mine.windows_digest != other.windows_digest:
        return None
    return mine.loss_nats_per_token - other.loss_nats_per_token


def against_plain_sentence(run: SubspacesRun, plain: SubspacesRun) -> str:
    """Loss and bytes beside the plain run."""
    parts = []
    difference = loss_against(run, plain)
    if difference is not None:
        side = "above" if difference >= 0 else "below"
        change = math.expm1(difference)
        parts.append(f"its test loss lies {abs(difference):.4f} {side} (perplexity {change:+.2%})")
    else:
        mine, other = ({v.step: v.loss_nats_per_token for v in one.validation} for one in (run, plain))
        step = max(set(mine) & set(other), default=0)
        if step:
            gap = mine[step] - other[step]
            side = "above" if gap >= 0 else "below"
            parts.append(f"its validation loss at update {step:,} lies {abs(gap):.4f} {side}")
    part = part_of_plain(run, plain)
    if part is not None:
        parts.append(f"an update sends {part:.2%} of the keys and values")
    return f"{run.name} beside {plain.name}: {' and '.join(parts)}." if parts else ""


def codec_words(run: SubspacesRun) -> str:
    """What travels, in words."""
    kind, wire = run.setting("codec.kind"), str(run.setting("codec.wire", "")).replace("_", " ")
    if kind == "plain":
        return f"none: keys and values travel whole, {wire} on the wire"
    if kind == "top_k":
        return f"the largest {run.setting('codec.keep_fraction', 0):.0%} of entries, {wire} on the wire"
    if kind == "quantised":
        return f"{run.setting('codec.bits')} bits an entry, groups of {run.setting('codec.group')}"
    if kind != "subspace":
        return str(kind)
    source, basis = run.setting("codec.theta_source"), run.setting("codec.basis")
    key, value = (100 * run.setting(f"codec.{side}_rate", 0) for side in ("key", "value"))
    words = [
        f"subspace: {key:.4g}% of K and {value:.4g}% of V left out",
        f"basis {BASIS_WORDS.get(str(basis), basis)}",
        SOURCE_WORDS.get(str(source), str(source)),
        f"{wire} on the wire",
    ]
    return ", ".join(words)


def codec_name(run: SubspacesRun) -> str:
    """A few characters for a table."""
    kind = run.setting("codec.kind")
    if kind == "subspace":
        rates = f"K −{100 * run.setting('codec.key_rate', 0):.4g}% V −{100 * run.setting('codec.value_rate', 0):.4g}%"
        source = run.setting("codec.theta_source")
        return f"subspace {rates}" + ("" if source == "previous_chunk" else f", theta {source}")
    if kind == "top_k":
        return f"top {run.setting('codec.keep_fraction', 0):.0%}"
    return f"{run.setting('codec.bits')}-bit" if kind == "quantised" else str(kind)


def sync_words(run: SubspacesRun) -> str:
    every = run.setting("sync.every")
    if every == 1:
        return "gradients are summed at every update"
    fragments = run.setting("sync.fragments")
    outer = ", with an outer Nesterov step" if run.setting("sync.outer") == "nesterov" else ""
    return f"weights are averaged every {_grouped(every)} updates in {fragments} fragments{outer}"


def phase_words(run: SubspacesRun) -> str:
    """What the updates were, in their order."""
    spans: list[list[object]] = []
    for step in run.steps:
        if spans and spans[-1][0] == step.phase:
            spans[-1][2] = step.step
        else:
            spans.append([step.phase, step.step, step.step])
    return ", ".join(f"{phase} {_grouped(first)} to {_grouped(last)}" for phase, first, last in spans)


def missing_parts(run: SubspacesRun) -> tuple[str, ...]:
    """One sentence for everything the run folder does not hold yet."""
    missing = []
    if not run.steps:
        missing.append("No update has been logged yet.")
    elif not run.is_finished:
        missing.append(f"The training is not finished, at update {run.last_step:,} of {run.planned_steps or 0:,}.")
    if run.steps and not run.validation:
        missing.append("No validation loss has been logged yet.")
    if not run.scores:
        missing.append("Nothing is scored yet: there is no test loss and no perplexity.")
    return tuple(missing)


def early_words(score: LlamaScore) -> str:
    """At which update the model was scored, where that is before the planned end; else nothing."""
    if score.step is None or score.planned_steps is None or score.step >= score.planned_steps:
        return ""
    return f"scored at update {score.step:,} of {score.planned_steps:,}"


def score_name(score: LlamaScore) -> str:
    return f"{'folded' if score.model == 'folded' else 'stock'} model, {score.name}"


def counted_words(run: SubspacesRun) -> str:
    """Whether the counted bytes were compared with the closed form."""
    if run.traffic is None:
        return ""
    found = run.traffic
    if found.is_equal:
        return f"The bytes counted in {found.updates_compared:,} updates equal the closed form exactly."
    return "The counted bytes differ from the closed form; results/traffic.json says where."


def bytes_words(num_bytes: float | None) -> str:
    return "" if num_bytes is None else format_bytes(num_bytes)


def tokens_words(count: int | None) -> str:
    return "" if count is None else format_count(float(count))
