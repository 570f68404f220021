"""What does the page say about one context-parallel run?  One function a section; each says what is not there yet."""

import json
import shlex
from collections.abc import Sequence

from thinwire.base.units import format_bytes, format_seconds
from thinwire.config.fingerprint import flatten
from thinwire.report.markup import bullets, bytes_text, definitions, paragraph, table, text
from thinwire.report.subspaces import facts
from thinwire.report.subspaces.panels import curve_panels
from thinwire.report.subspaces.records import LlamaScore, SubspacesRun
from thinwire.report.subspaces.wire_sections import bytes_section, events_section, rotation_section

MODEL_WORDS = (
    ("model.layers", "{} layers"),
    ("model.width", "width {}"),
    ("model.heads", "{} heads"),
    ("model.kv_heads", "{} of keys and values"),
    ("model.head_width", "{} wide"),
)


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
        ("Bytes on the wire", bytes_section(run)),
        ("Rotation", rotation_section(run, name=name)),
        ("What happened", events_section(run)),
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
