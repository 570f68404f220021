"""What does the page say about one run?  One function a section; each says so where its part is not there yet."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from thinwire.base.units import format_bytes, format_count, format_seconds
from thinwire.config.fingerprint import flatten
from thinwire.report.curve_section import curves_section
from thinwire.report.facts import (
    count_of,
    is_finished,
    matrix_sentence,
    missing_parts,
)
from thinwire.report.figures import MAX_TERM_ROWS, clusters_figure, matrix_figure
from thinwire.report.markup import (
    attribute,
    bullets,
    bytes_text,
    definitions,
    figure,
    paragraph,
    table,
    text,
)
from thinwire.report.measurement_section import measurement_sections
from thinwire.report.records import Job, LossMatrix, Run
from thinwire.report.score_section import headline, scores_section
from thinwire.report.svg import inline_svg

MAX_TABLE_EXPERTS = 16


def run_sections(run: Run, *, name: str, level: int) -> str:
    """Every section of one run.

    Args:
        name: unique in the page, letters, digits and hyphens; the prefix of every id.
        level: 2 or 3, the level of the sections' headings.
    """
    is_ensemble = run.method == "soma"
    parts = [
        ("What was trained", _trained(run) if is_ensemble else _trained_model(run)),
        ("Loss curves", curves_section(run, name=name)),
        ("Scores", scores_section(run, name=name)),
    ]
    if is_ensemble:
        parts += [
            ("Clusters", _clusters(run, name)),
            ("Experts on each cluster", _matrix(run, name)),
            *measurement_sections(run.measurements, name=name),
            ("Sample", _sample(run)),
        ]
    parts += [("Configuration", _configuration(run)), ("How to continue", _commands(run))]
    body = "".join(f"<section><h{level}>{title}</h{level}>\n{content}</section>\n" for title, content in parts)
    return headline(run) + _missing(run) + body


def _missing(run: Run) -> str:
    missing = [*missing_parts(run), *run.damage]
    if not missing:
        return ""
    return f'<div class="notice" role="note"><p>What is not here</p>{bullets(missing)}</div>\n'


def _trained(run: Run) -> str:
    flat = flatten(run.config)
    pairs: list[tuple[str, object]] = [("Preset", run.preset), ("Experts", _experts_words(run, flat))]
    shape = [f"{word} {flat[key]}" for key, word in _MODEL_WORDS if key in flat]
    if shape:
        pairs.append(("One expert", ", ".join(shape)))
    if isinstance(run.manifest.get("num_parameters"), int):
        pairs.append(("Parameters, one expert", f"{run.manifest['num_parameters']:,}"))
    pairs.append(("Seed run", _job_words([run.seed_run], flat, "seed_run")))
    pairs.append(("Each expert's training", _job_words(run.experts, flat, "experts")))
    pairs.append(
        ("Bytes processed", f"{format_count(float(run.byte_forwards))} byte-forwards in all ({_share_words(run)})")
    )
    pairs.append(("Device time", f"{format_seconds(run.device_seconds)}, all jobs together"))
    if "seed" in flat:
        pairs.append(("Random seed", flat["seed"]))
    return definitions(pairs)


def _trained_model(run: Run) -> str:
    """The one model of an EGGROLL run."""
    flat, job = flatten(run.config), next(iter(run.experts), None)
    pairs: list[tuple[str, object]] = [
        ("Preset", run.preset),
        ("Method", "EGGROLL: rank-one perturbations, sign steps"),
    ]
    pairs.append(("Model", ", ".join(f"{word} {flat[key]}" for key, word in _MODEL_WORDS if key in flat)))
    if isinstance(run.manifest.get("num_parameters"), int):
        pairs.append(("Parameters", f"{run.manifest['num_parameters']:,}"))
    if job is not None and job.last_update > 0:
        planned = "" if is_finished(job) else f" of {job.planned_updates or 0:,}"
        words = [f"{job.last_update:,}{planned} updates"]
        for key, noun in (("population", "members"), ("streams", "streams"), ("update_bytes", "bytes an update")):
            if f"training.{key}" in flat:
                words.append(f"{_grouped(flat[f'training.{key}'])} {noun}")
        pairs.append(("Training", ", ".join(words)))
    pairs.append(("Bytes processed", f"{format_count(float(run.byte_forwards))} byte-forwards"))
    pairs.append(("Device time", format_seconds(run.device_seconds)))
    if "seed" in flat:
        pairs.append(("Random seed", flat["seed"]))
    return definitions(pairs)


_MODEL_WORDS = (("model.width", "width"), ("model.depth", "depth"), ("model.embed_width", "embedding width"))


def _experts_words(run: Run, flat: dict[str, Any]) -> str:
    active = flat.get("routing.active_experts")
    words = count_of(run.num_experts, "expert")
    return words if active is None else f"{words}, {active} active for each text"


def _share_words(run: Run) -> str:
    experts = sum(job.byte_forwards for job in run.experts)
    return f"seed run {format_count(float(run.seed_run.byte_forwards))}, experts {format_count(float(experts))}"


def _job_words(jobs: Sequence[Job], flat: dict[str, Any], section: str) -> str:
    started = [job for job in jobs if job.last_update > 0]
    if not started:
        return "not started"
    low, high = min(job.last_update for job in started), max(job.last_update for job in started)
    planned = "" if all(map(is_finished, started)) else f" of {started[0].planned_updates or 0:,}"
    words = [f"{low:,}{planned} updates" if low == high else f"{low:,} to {high:,}{planned} updates"]
    for key, noun in (("directions", "directions"), ("batch", "windows a batch"), ("window_bytes", "bytes a window")):
        if f"{section}.{key}" in flat:
            words.append(f"{_grouped(flat[f'{section}.{key}'])} {noun}")
    if f"{section}.difference" in flat:
        words.append(f"{str(flat[f'{section}.difference']).replace('_', '-')} differences")
    return ", ".join(words)


def _grouped(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _clusters(run: Run, name: str) -> str:
    if run.clusters is None:
        return paragraph("The clusters are not found yet.", style="quiet")
    clusters, partition = run.clusters, _partition(run)
    if partition == "iid":
        drawn = format_count(float(max(clusters.sizes, default=0)))
        return paragraph(f"There are none: every expert draws from all {drawn} training windows (partition = iid).")
    smallest, largest = min(clusters.sizes, default=0), max(clusters.sizes, default=0)
    total, number = format_count(float(sum(clusters.sizes))), count_of(len(clusters.sizes), "cluster")
    words = f"{number} of {total} training windows; the largest has {largest:,}, the smallest {smallest:,}."
    if partition == "random":
        return paragraph(f"Random shards instead of clusters of like text (partition = random): {words}")
    caption = "Training windows by cluster; the line or stroke is an equal share."
    rows = [
        (f"cluster {cluster}", f"{size:,}", f"{fraction:.1%}", ", ".join(terms) or "none")
        for cluster, (size, fraction, terms) in enumerate(
            zip(clusters.sizes, clusters.fractions, clusters.top_terms, strict=True)
        )
    ]
    picture = inline_svg(
        clusters_figure(clusters), name=f"{name}-clusters", description=attribute(f"Cluster sizes: {words}")
    )
    listed = _cluster_table(rows)
    if len(rows) > MAX_TERM_ROWS:
        listed = f"<details><summary>Sizes and terms of all clusters</summary>{listed}</details>\n"
    return paragraph(words) + figure(picture, caption=caption, style="middle") + listed


def _cluster_table(rows: Sequence[tuple[str, str, str, str]]) -> str:
    ordered = [(cluster, terms, size, fraction) for cluster, size, fraction, terms in rows]
    return table(
        ("Cluster", "Top terms", "Windows", "Part"), ordered, caption="Clusters and their top terms", numeric_from=2
    )


def _partition(run: Run) -> str:
    """``semantic`` for runs from before there was another."""
    return str(flatten(run.config).get("clusters.partition", "semantic"))


def _matrix(run: Run, name: str) -> str:
    if run.matrix is None:
        return paragraph("The matrix is not there yet.", style="quiet")
    words = matrix_sentence(run.matrix)
    if run.matrix.num_experts == run.matrix.num_clusters == 1:
        return paragraph(words)
    if _partition(run) == "iid":
        return paragraph("All experts are validated on the same windows, so none of them is an expert's own.")
    picture = inline_svg(
        matrix_figure(run.matrix), name=f"{name}-matrix", description=attribute(f"Loss matrix. {words}")
    )
    caption = "Colour: how far an expert lies above the best one on that cluster."
    if max(run.matrix.num_experts, run.matrix.num_clusters) <= MAX_TABLE_EXPERTS:
        caption += " The losses are in the table below."
    return paragraph(words) + figure(picture, caption=caption, style="middle") + _matrix_table(run.matrix)


def _matrix_table(matrix: LossMatrix) -> str:
    if max(matrix.num_experts, matrix.num_clusters) > MAX_TABLE_EXPERTS:
        return ""
    columns = ("Expert", *(f"cluster {cluster}" for cluster in range(matrix.num_clusters)))
    rows = [(f"expert {index}", *(f"{loss:.4f}" for loss in row)) for index, row in enumerate(matrix.losses)]
    if matrix.windows_per_cluster:
        rows.append(("held-out windows", *(f"{count:,}" for count in matrix.windows_per_cluster)))
    shown = table(columns, rows, caption="Loss of each expert on each cluster's held-out windows (nats/byte)")
    return f"<details><summary>The same as a table</summary>{shown}</details>\n"


def _sample(run: Run) -> str:
    sample = run.sample
    if sample is None:
        return paragraph("No sample has been generated yet.", style="quiet")
    words = [f"{format_bytes(float(len(sample.continuation)))} generated"]
    words += [f"temperature {sample.temperature:g}"] if sample.temperature is not None else []
    words += [f"seed {sample.seed}"] if sample.seed is not None else []
    prompt = f'<strong class="prompt">{text(sample.prompt)}</strong>' if sample.prompt else ""
    start = "The prompt is bold and underlined; the rest is the model's." if sample.prompt else "There was no prompt."
    note = paragraph(f"{start} {', '.join(words)}.", style="quiet")
    return note + f'<div class="sample">{prompt}{bytes_text(sample.continuation)}</div>\n'


def _configuration(run: Run) -> str:
    rows = [(key, _plain(value)) for key, value in sorted(flatten(run.config).items())]
    content = table(("Setting", "Value"), rows, caption="Every setting of the run", numeric_from=2)
    shown = f"<details><summary>{count_of(len(rows), 'setting')}</summary>{content}</details>\n"
    if run.manifest:
        rows = [(key, _plain(value)) for key, value in sorted(flatten(run.manifest).items())]
        content = table(("Key", "Value"), rows, caption="Inputs, versions and machine", numeric_from=2)
        shown += f"<details><summary>Inputs, versions and machine</summary>{content}</details>\n"
    return shown


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _commands(run: Run) -> str:
    folder = shlex.quote(str(run.folder))
    given, place = run.manifest.get("command"), run.manifest.get("working_folder")
    program = shlex.quote(shlex.split(given)[0]) if isinstance(given, str) and given else "thinwire"
    train = given or f"{program} train {shlex.quote(run.preset)} --data DATA --out {folder}"
    where = f" (in the folder {place}, where it was given first)" if given and isinstance(place, str) and place else ""
    pairs = [
        (f"Go on training, or finish what was interrupted{where}", str(train)),
        ("Score it on another text", f"{program} evaluate {folder} --on TEXT"),
    ]
    if run.method == "soma":
        pairs += [
            ("Let it write", f'{program} generate {folder} --prompt "The " --bytes 400 --temperature 0.8 --seed 1'),
            (
                "Rebuild the weights of any update from the scalar log",
                f"{program} replay {folder} --to UPDATE --out DIR",
            ),
        ]
    pairs.append(("Make this page again", f"{program} report {folder} --out DIR"))
    return definitions(pairs).replace("<dl>", '<dl class="commands">', 1)
