"""What does the page say about one context-parallel run?  One function a section; each says what is not there yet."""

import json
import shlex
from collections.abc import Sequence

from thinwire.base.units import format_bytes, format_seconds
from thinwire.config.fingerprint import flatten
from thinwire.report.curve_section import curve_ends, legend
from thinwire.report.lines import Line
from thinwire.report.markup import attribute, bullets, bytes_text, definitions, figure, paragraph, table, text
from thinwire.report.subspaces import facts
from thinwire.report.subspaces.curves import (
    COST_WORDS,
    COSTS,
    THETA_NAMES,
    has_log_axis,
    loss_ceiling,
    loss_figure,
    run_lines,
    theta_figure,
    theta_lines,
    training_figure,
    training_lines,
)
from thinwire.report.subspaces.records import EXCHANGED, TAGS, LinkTime, LlamaScore, SubspacesRun
from thinwire.report.svg import inline_svg

MODEL_WORDS = (
    ("model.layers", "{} layers"),
    ("model.width", "width {}"),
    ("model.heads", "{} heads"),
    ("model.kv_heads", "{} of keys and values"),
    ("model.head_width", "{} wide"),
)
MAX_EVENTS = 40


def run_sections(run: SubspacesRun, *, name: str, level: int) -> str:
    """Every section of one run.

    Args:
        name: unique in the page, letters, digits and hyphens; the prefix of every id.
        level: of the sections' headings.
    """
    parts = (
        ("What was trained", _trained(run)),
        ("Loss curves", curve_panels((run,), name=name)),
        ("Scores", _scores(run)),
        ("Bytes on the wire", _bytes(run)),
        ("Rotation", _rotation(run, name)),
        ("What happened", _events(run)),
        ("Sample", _sample(run)),
        ("Configuration", _configuration(run)),
        ("How to continue", _commands(run)),
    )
    body = "".join(
        f"<section><h{level}>{title}</h{level}>\n{content}</section>\n" for title, content in parts if content
    )
    return _headline(run) + _missing(run) + body


# --- headline -------------------------------------------------------------------------------------------------


def _headline(run: SubspacesRun) -> str:
    tiles = _score_tiles(run)
    if run.exchange is not None:
        part = facts.part_of_plain(run, None)
        notes = [f"{part:.2%} of plain"] if part is not None and run.exchange.phase != "plain" else []
        name = f"keys and values, {run.exchange.phase}"
        tiles.append(_tile(name, format_bytes(run.exchange.exchanged), "an update", notes))
    if run.wire_bytes:
        tiles.append(_tile("sent in all, every rank", format_bytes(sum(run.wire_bytes.values())), "", []))
    return f'<div class="tiles">{"".join(tiles)}</div>\n' if tiles else ""


def _score_tiles(run: SubspacesRun) -> list[str]:
    score = run.headline
    if score is None:
        if not run.validation:
            return []
        last = run.validation[-1]
        loss, note = f"{last.loss_nats_per_token:.4f}", f"at update {last.step:,}"
        return [_tile(f"validation, {last.phase}", loss, "nats/token", [note])]
    notes = [] if score.ci95 is None else [f"95%: {score.ci95.low:.4f} to {score.ci95.high:.4f}"]
    early = facts.early_words(score)
    notes += [early] if early else []
    per_byte = [] if score.bits_per_byte is None else [f"{score.bits_per_byte:.3f} bits/byte"]
    loss = f"{score.loss_nats_per_token:.4f}"
    return [
        _tile(facts.score_name(score), loss, "nats/token", notes, style="tile first"),
        _tile("perplexity", f"{score.perplexity:.2f}", "a token", per_byte),
    ]


def _tile(name: str, value: str, unit: str, notes: Sequence[str], *, style: str = "tile") -> str:
    extra = "".join(f'<p class="quiet">{text(note)}</p>' for note in notes)
    small = f" <small>{text(unit)}</small>" if unit else ""
    number = f'<p class="value">{text(value)}{small}</p>'
    return f'<div class="{style}"><p class="quiet">{text(name)}</p>{number}{extra}</div>\n'


def _missing(run: SubspacesRun) -> str:
    missing = [*facts.missing_parts(run), *run.damage]
    if not missing:
        return ""
    return f'<div class="notice" role="note"><p>What is not here</p>{bullets(missing)}</div>\n'


# --- what was trained -----------------------------------------------------------------------------------------


def _trained(run: SubspacesRun) -> str:
    shape = [words.format(run.setting(key)) for key, words in MODEL_WORDS if run.setting(key) is not None]
    pairs: list[tuple[str, object]] = [("Preset", run.preset), ("Model", ", ".join(shape))]
    if isinstance(run.manifest.get("num_parameters"), int):
        pairs.append(("Parameters", f"{run.manifest['num_parameters']:,}"))
    pairs.append(("Sequence", _sequence_words(run)))
    pairs.append(("Codec", facts.codec_words(run)))
    pairs.append(("Updates", facts.phase_words(run) or "none"))
    pairs.append(("Synchronisation", facts.sync_words(run)))
    if run.steps:
        pairs.append(("Tokens", f"{facts.tokens_words(run.steps[-1].tokens)} read"))
    if run.validation:
        pairs.append(("Time", f"{format_seconds(run.validation[-1].seconds)}, validations included"))
    if run.setting("launch.link_bits_per_s"):
        rate = run.setting("launch.link_bits_per_s") / 1e6
        pairs.append(("Link", f"a model of {rate:,.6g} Mbit/s per {run.setting('launch.link_per')}"))
    pairs.append(("Random seed", run.setting("seed")))
    return definitions(pairs)


def _sequence_words(run: SubspacesRun) -> str:
    tokens, chunks = run.setting("sequence.tokens"), run.setting("sequence.chunks")
    ranks, order = run.setting("launch.ranks"), run.setting("sequence.order")
    return f"{tokens:,} tokens in {chunks} chunks over {ranks} ranks ({order})"


# --- curves ---------------------------------------------------------------------------------------------------


def curve_panels(runs: Sequence[SubspacesRun], *, name: str) -> str:
    """A panel for each cost and one of the training loss, with one legend; ``name`` is the prefix of their ids."""
    lines = run_lines(runs)
    if not any(line.points for line in lines):
        return paragraph("No validation loss has been logged yet.", style="quiet")
    whose = ", ".join(run.name for run in runs)
    panels = [
        figure(
            inline_svg(
                loss_figure(runs, costs=(cost,), legend="none"),
                name=f"{name}-{cost.replace('_', '-')}",
                description=attribute(f"Validation loss of {whose} against {COST_WORDS[cost]}: {curve_ends(lines)}"),
            ),
            caption="",
        )
        for cost in COSTS
    ]
    training = training_lines(runs)
    if any(line.points for line in training):
        described = attribute(f"Training loss of {whose} against updates: {curve_ends(training)}")
        drawn = inline_svg(training_figure(runs, legend="none"), name=f"{name}-training", description=described)
        panels.append(figure(drawn, caption=""))
    return legend(lines) + f'<div class="panels">{"".join(panels)}</div>\n' + paragraph(_words(lines), style="quiet")


def _words(lines: Sequence[Line]) -> str:
    words = (
        "Validation goes through the codec, as the model is trained; in the warm-up without. Bytes are what all ranks "
        "sent until the update, validations included: all of them (gradients or weights too), and keys, values, their "
        "gradients and theta alone."
    )
    if any(has_log_axis(lines, cost) for cost in COSTS):
        words += " An axis of bytes is logarithmic where the runs lie far apart; it begins where something was sent."
    if any(line.level is not None for line in lines):
        words += " The dashed line is the stock model's loss on the test windows."
    ceiling = loss_ceiling(lines)
    if ceiling is not None:
        words += f" Losses above {ceiling:.2f}, at the very start, are cut off."
    return words


# --- scores ---------------------------------------------------------------------------------------------------


def _scores(run: SubspacesRun) -> str:
    if not run.scores:
        return paragraph("Nothing is scored yet. The command is below, under How to continue.", style="quiet")
    columns = ("Text", "nats/token", "95% interval", "perplexity", "bits/byte", "as trained", "scored tokens")
    rows = [_score_row(score) for score in run.scores]
    listed = table(columns, rows, caption="Scores of the stock model: no codec, plain causal attention")
    notes = []
    for score in run.scores:
        early = facts.early_words(score)
        protocol = f"{score.name}: {score.protocol}" if score.protocol else ""
        notes += [f"{words}." for words in (protocol, f"{score.name} was {early}" if early else "") if words]
        if score.as_trained_loss_nats_per_token is not None and score.stock_loss_nats_per_token is not None:
            notes.append(_as_trained_words(score))
    if any(score.ci95 is not None for score in run.scores):
        notes.append("Intervals are from a bootstrap over documents.")
    return listed + "".join(paragraph(note, style="quiet") for note in notes)


def _score_row(score: LlamaScore) -> tuple[str, ...]:
    interval = "" if score.ci95 is None else f"{score.ci95.low:.4f} to {score.ci95.high:.4f}"
    trained = score.as_trained_loss_nats_per_token
    return (
        score.name,
        f"{score.loss_nats_per_token:.4f}",
        interval,
        f"{score.perplexity:.3f}",
        "" if score.bits_per_byte is None else f"{score.bits_per_byte:.4f}",
        "" if trained is None else f"{trained:.4f}",
        "" if score.scored_targets is None else f"{score.scored_targets:,}",
    )


def _as_trained_words(score: LlamaScore) -> str:
    trained, stock = score.as_trained_loss_nats_per_token or 0.0, score.stock_loss_nats_per_token or 0.0
    leak = " Its theta sees its own chunk's future, which flatters it." if score.theta_source == "chunk" else ""
    return (
        f"As trained, with the codec, {score.name} costs {trained:.4f} nats/token; the stock model on the same windows "
        f"{stock:.4f} ({stock - trained:+.4f}).{leak}"
    )


# --- bytes ----------------------------------------------------------------------------------------------------


def _bytes(run: SubspacesRun) -> str:
    if not run.steps:
        return paragraph("Nothing has been counted yet.", style="quiet")
    rows = [
        (
            phase.phase,
            f"{phase.num_steps:,}",
            *(format_bytes(phase.per_update[tag]) for tag in TAGS),
            format_bytes(phase.exchanged),
        )
        for phase in run.phases
    ]
    total = run.wire_bytes
    exchanged = sum(total[tag] for tag in EXCHANGED)
    rows.append(
        (
            "counted in all",
            f"{run.steps[-1].step:,}",
            *(format_bytes(total[tag]) for tag in TAGS),
            format_bytes(exchanged),
        )
    )
    columns = ("Phase", "updates", *TAGS, "keys and values")
    words = (
        "What all ranks send in one update of a phase, counted where it is sent (sync: the mean over the phase), and "
        "in all, validations included. kv-forward are coded keys and values, kv-backward their gradients, sync "
        "gradients or weights, control heartbeats and agreements; the last column adds the first three. Bases are "
        "sent once and are not in this table."
    )
    notes = [words, facts.counted_words(run)]
    if run.traffic is not None:
        notes += map(_link_words, run.traffic.links)
    shown = table(columns, rows, caption="Bytes of an update, all ranks together")
    return shown + "".join(paragraph(note, style="quiet") for note in notes if note)


def _link_words(link: LinkTime) -> str:
    rate = f"{link.bits_per_s / 1e6:,.6g} Mbit/s per {link.per}"
    words = f"On a link of {rate} an update's exchange takes {_time(link.exchange_seconds)}"
    plain = f", without a codec {_time(link.plain_exchange_seconds)}" if link.phase != "plain" else ""
    return f"{words}{plain} (closed form)."


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{1000 * seconds:.1f} ms"


# --- rotation and events --------------------------------------------------------------------------------------


def _rotation(run: SubspacesRun, name: str) -> str:
    if not run.thetas:
        return ""
    last = run.thetas[-1]
    angles = [value for side in last.angle_degrees.values() for value in side if value is not None]
    defects = [value for side in last.orthonormality_defect.values() for value in side if value is not None]
    if not angles:
        return ""
    words = (
        f"At update {last.step:,} the subspaces are turned by {min(angles):.2f} to {max(angles):.2f} degrees from "
        f"their bases, over layers, keys and values; the largest entry of UᵀU − I is {max(defects, default=0.0):.1e}."
    )
    panels = "".join(
        figure(
            inline_svg(
                theta_figure(run, kinds=(kind,)),
                name=f"{name}-{kind.replace('_', '-')}",
                description=attribute(f"{shown}, each layer, over updates. {words}"),
            ),
            caption="",
        )
        for kind, shown in THETA_NAMES.items()
    )
    return paragraph(words) + legend(theta_lines(run)) + f'<div class="panels">{panels}</div>\n'


def _events(run: SubspacesRun) -> str:
    if not run.events:
        return ""
    rows = [
        (facts.EVENT_WORDS.get(event.what, event.what), f"{event.step:,}", _details(event.details))
        for event in run.events
    ]
    note = paragraph(f"The last {MAX_EVENTS} of {len(rows)}.", style="quiet") if len(rows) > MAX_EVENTS else ""
    columns = ("What", "after update", "")
    return table(columns, rows[-MAX_EVENTS:], caption="Phases, lost and new ranks, resumptions", numeric_from=3) + note


def _details(details: dict[str, object]) -> str:
    words = []
    for key, value in details.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(shown if key in ("phase", "reason") else f"{key} {shown}")
    return "; ".join(words)


def _sample(run: SubspacesRun) -> str:
    sample = run.sample
    if sample is None:
        return ""
    words = [f"{format_bytes(float(len(sample.continuation)))} generated"]
    words += [f"temperature {sample.temperature:g}"] if sample.temperature is not None else []
    words += [f"seed {sample.seed}"] if sample.seed is not None else []
    prompt = f'<strong class="prompt">{text(sample.prompt)}</strong>' if sample.prompt else ""
    note = paragraph(f"{'The prompt is bold. ' if sample.prompt else ''}{', '.join(words)}.", style="quiet")
    return note + f'<div class="sample">{prompt}{bytes_text(sample.continuation)}</div>\n'


# --- settings and commands ------------------------------------------------------------------------------------


def _configuration(run: SubspacesRun) -> str:
    shown = ""
    for content, title in ((run.config, "Every setting of the run"), (run.manifest, "Inputs, versions and machine")):
        rows = [(key, _plain(value)) for key, value in sorted(flatten(content).items())]
        if rows:
            listed = table(("Key", "Value"), rows, caption=title, numeric_from=2)
            shown += f"<details><summary>{text(title)}</summary>{listed}</details>\n"
    return shown


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _commands(run: SubspacesRun) -> str:
    folder = shlex.quote(str(run.folder))
    given, place = run.manifest.get("command"), run.manifest.get("working_folder")
    program = shlex.quote(shlex.split(given)[0]) if isinstance(given, str) and given else "thinwire"
    train = given or f"{program} train {shlex.quote(run.preset)} --data DATA --out {folder}"
    where = f" (in the folder {place}, where it was given first)" if given and isinstance(place, str) and place else ""
    pairs = (
        (f"Go on training, or finish what was interrupted{where}", str(train)),
        ("Score it on another text", f"{program} evaluate {folder} --on TEXT"),
        ("Let it write", f'{program} generate {folder} --prompt "The " --bytes 400 --temperature 0.8 --seed 1'),
        ("Compare the counted bytes with the closed form", f"{program} measure traffic {folder}"),
        ("Write it as a stock Hugging Face Llama", f"{program} export {folder} --out DIR"),
        ("Make this page again", f"{program} report {folder} --out DIR"),
    )
    return definitions(pairs).replace("<dl>", '<dl class="commands">', 1)
