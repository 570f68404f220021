"""How good is the ensemble, and beside what?  The headline numbers, and a figure and table for each evaluation."""

from thinwire.base.units import bits_per_byte
from thinwire.report.facts import baseline_name, count_of, early_words, format_loss, score_sentence
from thinwire.report.figures import scores_figure
from thinwire.report.markup import attribute, figure, paragraph, table, text
from thinwire.report.records import Run, Score
from thinwire.report.svg import inline_svg

MAX_TABLE_EXPERTS = 16


def headline(run: Run) -> str:
    """The test loss with its interval beside the seed run and the baselines, as tiles and as one sentence."""
    score = run.headline
    if score is None:
        return paragraph("Not scored yet.", style="quiet")
    interval = "" if score.ci95 is None else f"95%: {format_loss(score.ci95.low)} to {format_loss(score.ci95.high)}"
    notes = [note for note in (interval, early_words(run, score)) if note]
    tiles = [_tile(f"{score.system}, {score.name}", score.loss_nats_per_byte, *notes, style="tile first")]
    if score.seed_loss_nats_per_byte is not None:
        tiles.append(_tile("seed run alone", score.seed_loss_nats_per_byte))
    tiles += [_tile(baseline_name(key), loss) for key, loss in _ordered_baselines(score)]
    return f'<div class="tiles">{"".join(tiles)}</div>\n' + paragraph(score_sentence(score))


def _ordered_baselines(score: Score) -> list[tuple[str, float]]:
    return sorted(score.baselines.items(), key=lambda item: item[1])


def _tile(name: str, loss: float, *notes: str, style: str = "tile") -> str:
    extra = "".join(f'<p class="quiet">{text(note)}</p>' for note in notes)
    return (
        f'<div class="{style}"><p class="quiet">{text(name)}</p>'
        f'<p class="value">{format_loss(loss)} <small>nats/byte</small></p>'
        f'<p class="quiet">{bits_per_byte(loss):.3f} bits/byte</p>{extra}</div>\n'
    )


def scores_section(run: Run, *, name: str) -> str:
    """Every evaluation: figure, table, and the loss by source."""
    if not run.scores:
        return paragraph("Nothing is scored yet. The command is below, under How to continue.", style="quiet")
    return "".join(_score(run, score, f"{name}-score-{index}") for index, score in enumerate(run.scores))


def _score(run: Run, score: Score, name: str) -> str:
    counts = [count_of(score.scored_targets, "scored byte")] if score.scored_targets is not None else []
    counts += [count_of(score.windows, "window")] if score.windows is not None else []
    if score.active_experts is not None and score.system == "ensemble":
        counts.append(f"{score.active_experts} of {score.num_experts} experts active")
    protocol = f", {score.protocol}" if score.protocol else ""
    caption = f"{score.name}{protocol}" + (f": {', '.join(counts)}" if counts else "")
    if score.ci95 is not None:
        interval = f"{format_loss(score.ci95.low)} to {format_loss(score.ci95.high)}"
        caption += f". The blue bar, {interval}, is the 95% interval from a bootstrap over documents"
    early = early_words(run, score)
    if early:
        caption += f". The {score.system} was {early}"
    picture = inline_svg(scores_figure(score), name=name, description=attribute(score_sentence(score)))
    drawn = figure(picture, caption=f"{caption}.")
    columns = ("System", "nats/byte", "bits/byte", "difference")
    content = table(columns, _score_table(score), caption=f"Scores, {score.name} (difference: to the {score.system})")
    if score.by_source:
        rows = [(source, format_loss(loss), f"{bits_per_byte(loss):.3f}") for source, loss in score.by_source.items()]
        content += table(
            ("Source", "nats/byte", "bits/byte"), rows, caption=f"The {score.system} by source, {score.name}"
        )
    return f'<div class="pair">{drawn}<div>{content}</div></div>\n'


def _score_table(score: Score) -> list[tuple[str, ...]]:
    systems = [(score.system, score.loss_nats_per_byte)]
    if score.seed_loss_nats_per_byte is not None:
        systems.append(("seed run", score.seed_loss_nats_per_byte))
    single = score.single_expert_loss_nats_per_byte
    if len(single) <= MAX_TABLE_EXPERTS:
        systems += [(f"expert {expert} alone", loss) for expert, loss in enumerate(single)]
    else:
        ordered = sorted(range(len(single)), key=lambda expert: single[expert])
        for word, expert in (("best", ordered[0]), ("middle", ordered[len(ordered) // 2]), ("worst", ordered[-1])):
            systems.append((f"{word} expert alone ({expert})", single[expert]))
    systems += [(baseline_name(key), loss) for key, loss in _ordered_baselines(score)]
    ensemble = score.loss_nats_per_byte
    return [
        (system, format_loss(loss), f"{bits_per_byte(loss):.3f}", "" if index == 0 else f"{loss - ensemble:+.3f}")
        for index, (system, loss) in enumerate(systems)
    ]
