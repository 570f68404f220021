"""What does the page say about several context-parallel runs?  One figure where losses compare, and what each sent."""

from collections.abc import Sequence

from thinwire.base.units import format_bytes
from thinwire.report.markup import bullets, paragraph, table
from thinwire.report.subspaces import facts
from thinwire.report.subspaces.facts import Group
from thinwire.report.subspaces.panels import curve_panels
from thinwire.report.subspaces.records import TAGS, PhaseBytes, SubspacesRun


def comparison_section(runs: Sequence[SubspacesRun], *, level: int) -> str:
    """Curves of all runs together, a table of losses, one of bytes, and sentences against the plain run."""
    groups = facts.groups_of(runs)
    shown = "".join(
        _group(group, index, is_only=len(groups) == 1) for index, group in enumerate(groups) if len(group.runs) > 1
    )
    notes = [
        words
        for run in runs
        if (plain := facts.plain_of(run, runs)) is not None
        for words in [facts.against_plain_sentence(run, plain)]
        if words
    ]
    for run in runs:
        early = "" if run.headline is None else facts.early_words(run.headline)
        notes += [f"{run.name} was {early}."] if early else []
    return (
        f"<section><h{level}>Comparison</h{level}>\n{_apart(groups)}{bullets(notes) if notes else ''}{shown}"
        f"{_losses(runs)}{_bytes(runs)}</section>\n"
    )


def _apart(groups: Sequence[Group]) -> str:
    reasons = facts.apart_words(groups)
    if not reasons:
        return ""
    return (
        '<div class="notice" role="note"><p>Not all runs are on one figure: losses compare only on the same text and '
        f"at the same sequence length</p>{bullets(reasons)}</div>\n"
    )


def _group(group: Group, index: int, *, is_only: bool) -> str:
    names = ", ".join(run.name for run in group.runs)
    head = "" if is_only else paragraph(f"Together: {names}.")
    seeds = {run.setting("seed") for run in group.runs}
    counts = {run.setting("validation_sequences") for run in group.runs}
    notes = ""
    if len(seeds) > 1 or len(counts) > 1:
        why = "seeds" if len(seeds) > 1 else "numbers of validation sequences"
        notes = paragraph(
            f"The runs have different {why}, so their held-out sequences differ, of the same text.", style="quiet"
        )
    return head + curve_panels(group.runs, name=f"comparison-{index}") + notes


def _losses(runs: Sequence[SubspacesRun]) -> str:
    columns = ("Run", "Codec", "Update", "Validation", "Test", "95% interval", "Perplexity", "above plain")
    rows = []
    for run in runs:
        score, plain = run.headline, facts.plain_of(run, runs)
        difference = None if plain is None else facts.loss_against(run, plain)
        last = run.validation[-1] if run.validation else None
        rows.append(
            (
                run.name,
                facts.codec_name(run),
                f"{run.last_step:,}",
                "" if last is None else f"{last.loss_nats_per_token:.4f}",
                "not scored" if score is None else f"{score.loss_nats_per_token:.4f}",
                "" if score is None or score.ci95 is None else f"{score.ci95.low:.4f} to {score.ci95.high:.4f}",
                "" if score is None else f"{score.perplexity:.3f}",
                "" if difference is None else f"{difference:+.4f}",
            )
        )
    caption = "Losses in nats per token: validation with the codec, test of the stock model"
    return table(columns, rows, caption=caption, numeric_from=2)


def _bytes(runs: Sequence[SubspacesRun]) -> str:
    columns = ("Run", "K/V an update", "of plain", "sync an update", *TAGS, "all")
    rows, is_unknown = [], False
    for run in runs:
        part = facts.part_of_plain(run, facts.plain_of(run, runs))
        is_plain = run.setting("codec.kind") == "plain"
        exchange, sent = run.exchange, run.wire_bytes
        is_missing = part is None and exchange is not None and not is_plain
        is_unknown |= is_missing
        rows.append(
            (
                run.name,
                _exchange_words(exchange),
                "not measured" if is_missing else "" if part is None or is_plain else f"{part:.2%}",
                "" if exchange is None else format_bytes(exchange.per_update["sync"]),
                *(format_bytes(sent.get(tag, 0)) for tag in TAGS),
                format_bytes(sum(sent.values())),
            )
        )
    caption = "Bytes sent by all ranks: an update, then counted in all by what they were for"
    why = (
        "Of plain: needs a plain run of the same shape on this page, or thinwire measure traffic RUN, and an update "
        "that no validation follows."
    )
    return table(columns, rows, caption=caption) + (paragraph(why, style="quiet") if is_unknown else "")


def _exchange_words(exchange: PhaseBytes | None) -> str:
    """Keys and values of an update alone."""
    if exchange is None:
        return ""
    return format_bytes(exchange.exchanged) if exchange.num_alone else "not counted alone"
