"""``thinwire evaluate RUN [--on TEXT] [--json]``"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from thinwire.cli.terminal import Terminal, print_json, print_table
from thinwire.config.parse import parse


@dataclass(frozen=True)
class Arguments:
    """Score a run on held-out text.

    SOMA: the router sees the first 256 bytes of a window, the 768 targets behind them count. EGGROLL: the same
    targets. Subspaces: the stock model, with plain causal attention and no codec; every token of a text counts once.
    """

    run: tyro.conf.Positional[Path]
    """A run folder."""
    on: Path | None = None
    """A data folder (its test split) or any text; by default the test split of the run's own data."""
    protocol: Literal["auto", "wikitext", "documents"] = "auto"
    """How a text is cut: at top-level headings (WikiText-103) or as whole documents; auto tells by the first row."""
    active_experts: int | None = None
    """SOMA: overrides k."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire evaluate")
    from thinwire.api.verbs import score
    from thinwire.launch.local import available_cores
    from thinwire.runs.results import keep_result

    terminal = Terminal()
    with terminal.progress() as progress:
        record = score(
            arguments.run,
            on=arguments.on,
            protocol=None if arguments.protocol == "auto" else arguments.protocol,
            active_experts=arguments.active_experts,
            threads=available_cores(),
            progress=progress,
        )
    try:
        keep_result(arguments.run, record)
    except OSError as error:  # a stranger's run, or a full disk: the scores are still worth having
        terminal.say(f"the result is not kept in {arguments.run}: {error.strerror}")
    if arguments.json:
        print_json(record)
    else:
        print_table(score_rows(record))


def score_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines a person reads."""
    return _stock_rows(record) if "loss_nats_per_token" in record else _byte_rows(record)


def _certainty(record: dict[str, Any]) -> str:
    low, high = record["ci95"]
    return f"95%: {low:.4f} to {high:.4f}" if record["documents"] > 1 else "one document: no interval"


def _byte_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Losses in nats per byte."""
    loss, baselines = record["loss_nats_per_byte"], record["baselines"]
    seed_loss = record["seed_loss_nats_per_byte"]
    is_ensemble = seed_loss is not None
    scored = f"{loss:.4f} nats/byte ({_certainty(record)}), {record['bits_per_byte']:.4f} bits"
    rows = [("ensemble" if is_ensemble else "model", scored)]
    if is_ensemble:
        rows.append(("seed run", f"{seed_loss:.4f}"))
    single = record["single_expert_loss_nats_per_byte"]
    if single:
        rows.append(("single experts", "  ".join(f"{value:.4f}" for value in single)))
    rows += [(name.replace("_", " "), f"{baselines[name]:.4f}") for name in ("byte_unigram", "byte_bigram", "xz")]
    experts = f", {record['active_experts']} of {record['num_experts']} experts" if is_ensemble else ""
    done, planned = record["expert_updates"], record["planned_updates"]
    if min(done) < planned:
        at = f"experts are at update {min(done):,} to {max(done):,}" if is_ensemble else f"update {done[0]:,}"
        rows.append(("not finished", f"{at} of {planned:,}"))
    return [*rows, ("scored", f"{record['scored_targets']:,} bytes in {record['windows']:,} windows{experts}")]


def _stock_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Losses in nats per token."""
    rows = [
        ("stock model", f"{record['loss_nats_per_token']:.4f} nats/token ({_certainty(record)})"),
        ("perplexity", f"{record['perplexity']:.3f} a token"),
        ("per byte", f"{record['loss_nats_per_byte']:.4f} nats, {record['bits_per_byte']:.4f} bits"),
    ]
    trained = record.get("as_trained")
    if trained:
        beside = f"; the stock model on the same {trained['windows']:,}: {trained['stock_loss_nats_per_token']:.4f}"
        leak = ", theta sees its own chunk's future" if trained["theta_source"] == "chunk" else ""
        codec = f"codec {record['codec']}{leak}"
        rows.append(("as trained", f"{trained['loss_nats_per_token']:.4f} nats/token ({codec}){beside}"))
    if record["step"] < record["planned_steps"]:
        rows.append(("not finished", f"update {record['step']:,} of {record['planned_steps']:,} ({record['phase']})"))
    size = f"{record['scored_targets']:,} tokens ({record['scored_bytes']:,} bytes) in {record['windows']:,} windows"
    documents = f"{record['documents']:,} document{'' if record['documents'] == 1 else 's'}"
    return [*rows, ("scored", f"{size} of {documents} ({record['protocol']})")]
