"""``thinwire evaluate RUN [--on TEXT] [--json]``"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from thinwire.cli.terminal import Terminal, print_json, print_table
from thinwire.config.parse import parse


@dataclass(frozen=True)
class Arguments:
    """Score a run: the router sees the first 256 bytes of a window, the 768 targets behind them count."""

    run: tyro.conf.Positional[Path]
    """A run folder."""
    on: Path | None = None
    """A data folder (its test split) or any text; by default the test split of the run's own data."""
    protocol: Literal["auto", "wikitext", "documents"] = "auto"
    """How a text is cut: at top-level headings (WikiText-103) or as whole documents; auto tells by the first row."""
    active_experts: int | None = None
    """Overrides k."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire evaluate")
    from thinwire.launch.local import available_cores
    from thinwire.soma.scoring import keep_result, score_text

    terminal = Terminal()
    with terminal.progress() as progress:
        record = score_text(
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
    """The lines a person reads; losses in nats per byte."""
    low, high = record["ci95"]
    loss, baselines = record["loss_nats_per_byte"], record["baselines"]
    certainty = f"95%: {low:.4f} to {high:.4f}" if record["documents"] > 1 else "one document: no interval"
    rows = [
        (
            "ensemble",
            f"{loss:.4f} nats/byte ({certainty}), {record['bits_per_byte']:.4f} bits",
        ),
        ("seed run", f"{record['seed_loss_nats_per_byte']:.4f}"),
    ]
    single = record["single_expert_loss_nats_per_byte"]
    if single:
        rows.append(("single experts", "  ".join(f"{value:.4f}" for value in single)))
    rows += [(name.replace("_", " "), f"{baselines[name]:.4f}") for name in ("byte_unigram", "byte_bigram", "xz")]
    experts = f"{record['active_experts']} of {record['num_experts']} experts"
    done, planned = record["expert_updates"], record["planned_updates"]
    if min(done) < planned:
        rows.append(("not finished", f"experts are at update {min(done):,} to {max(done):,} of {planned:,}"))
    return [*rows, ("scored", f"{record['scored_targets']:,} bytes in {record['windows']:,} windows, {experts}")]
