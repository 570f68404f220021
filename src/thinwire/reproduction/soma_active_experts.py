"""How many experts should answer, and which pairs gain from averaging?  Figures 16 and 17, on one trained ensemble."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from thinwire.base.files import read_json
from thinwire.experiments.soma import soma_paper, soma_small
from thinwire.reproduction.item import Findings, Item, Panel, Scale, Series, Verdict
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.active_experts import measure_active_experts
from thinwire.soma.complementarity import measure_complementarity
from thinwire.soma.config import (
    ClusterConfig,
    ModelConfig,
    RoutingConfig,
    ScoringConfig,
    SomaConfig,
    TrainingConfig,
    result_record,
)
from thinwire.soma.every_expert import HeldOut
from thinwire.soma.run import SomaRun

EXPERTS: dict[Scale, int] = {"smoke": 8, "cpu": 8, "paper": 256}
ROUTED = 4
MOST_OF_THE_GAIN = 0.5


def ensemble_name(scale: Scale) -> str:
    """The run that both items read."""
    return f"ensemble-n{EXPERTS[scale]}"


def ensemble_config(scale: Scale) -> SomaConfig:
    """Experts of one width with a shared frozen head; at cpu scale about three minutes on two cores."""
    count = EXPERTS[scale]
    if scale == "paper":
        return soma_paper(count)
    routing = RoutingConfig(active_experts=ROUTED, prefix_bytes=256)
    if scale == "cpu":
        small = soma_small()
        job = replace(small.experts, directions=128, plateau_updates=150)
        return replace(
            small,
            seed_run=replace(job, updates=400, learning_rate=5e-3, validate_every=25, decoder="trained"),
            experts=replace(job, updates=250, learning_rate=2.5e-3, validate_every=50),
            clusters=replace(small.clusters, num_clusters=count),
            routing=routing,
        )
    job = TrainingConfig(
        updates=30,
        directions=16,
        batch=8,
        window_bytes=32,
        difference="one_sided",
        learning_rate=1e-2,
        epsilon=1e-3,
        validate_every=30,
        validation_windows=32,
        checkpoint_every=30,
    )
    return SomaConfig(
        model=ModelConfig(width=8, embed_width=8),
        seed_run=replace(job, decoder="trained"),
        experts=job,
        clusters=ClusterConfig(num_clusters=count, window_bytes=256, sample_windows=2_000, components=16),
        routing=replace(routing, prefix_bytes=64),
        scoring=ScoringConfig(window_bytes=256, max_windows=64, matrix_windows=4, bootstrap_draws=1_000),
    )


def find_active_experts(place: Workplace) -> Findings:
    """Figure 16."""
    run = place.run(ensemble_name(place.scale), ensemble_config(place.scale))
    held_out = HeldOut("valid", threads=place.threads)
    record = place.part(
        "sweep",
        inputs=["active-experts", weights_of(run)],
        compute=lambda: measure_active_experts(run, held_out=held_out, progress=place.voice.progress),
    )
    sweep, best = record["sweep"], record["best_active_experts"]
    chosen = sweep[min(ROUTED, len(sweep)) - 1]
    one, every, lowest = sweep[0]["loss"], sweep[-1]["loss"], sweep[best - 1]["loss"]
    counts, losses = [row["active_experts"] for row in sweep], [row["loss"] for row in sweep]
    operations = [row["expert_operations_per_byte"] for row in sweep]
    name = f"N = {record['num_experts']}"
    part = chosen["part_of_gain"]
    words = (
        f"k=1 {one:.4f}, k={ROUTED} {chosen['loss']:.4f}, best k={best} {lowest:.4f}, all {every:.4f} nats/byte; "
        f"k={ROUTED} takes {'none' if part is None else f'{part:.0%}'} of the gain"
    )
    return Findings(
        rows=[_flat(row) for row in sweep],
        ours=words,
        verdict=active_experts_verdict(sweep, best=best),
        panels=[
            Panel("Loss against k", "active experts k", "validation loss (nats/byte)", [Series(name, counts, losses)]),
            Panel(
                "Loss against cost",
                "expert operations per byte",
                "validation loss (nats/byte)",
                [Series(name, operations, losses)],
                x_scale="log",
            ),
        ],
        notes=_notes(place.scale, record) + " Every k reads the same weights, windows and routes.",
    )


def active_experts_verdict(sweep: list[dict[str, Any]], *, best: int) -> Verdict:
    """``agrees`` where k = 4 takes more than half of the gain; undecided where the best k may gain nothing at all."""
    if best == 1 or sweep[best - 1]["below_one_expert_ci95"][0] <= 0:
        return "scale too small to tell"
    return "agrees" if sweep[ROUTED - 1]["part_of_gain"] > MOST_OF_THE_GAIN else "differs"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    low, high = row["ci95"]
    return {
        "active_experts": row["active_experts"],
        "loss_nats_per_byte": row["loss"],
        "ci95_low_nats_per_byte": low,
        "ci95_high_nats_per_byte": high,
        "expert_operations_per_byte": row["expert_operations_per_byte"],
        "part_of_gain": row["part_of_gain"],
    }


def find_complementarity(place: Workplace) -> Findings:
    """Figure 17."""
    run = place.run(ensemble_name(place.scale), ensemble_config(place.scale))
    held_out = HeldOut("valid", threads=place.threads)
    record = place.part(
        "pairs",
        inputs=["complementarity", weights_of(run)],
        compute=lambda: measure_complementarity(run, held_out=held_out, progress=place.voice.progress),
    )
    pairs, groups, between = record["pairs"], record["bins"], record["slope_ci95"]
    series = [
        Series(
            "mean of a group of pairs",
            [group["correlation"] for group in groups],
            [group["reduction"] for group in groups],
            [group["standard_error"] for group in groups],
        )
    ]
    if pairs is not None:
        series.append(Series("a pair", pairs["correlation"], pairs["reduction"], kind="points"))
    slope = "no slope" if record["slope"] is None else f"slope {record['slope']:+.4f}"
    words = "" if between is None else f" [{between[0]:+.4f}, {between[1]:+.4f}]"
    return Findings(
        rows=_pair_rows(record),
        ours=f"{slope}{words} nats/byte a unit of correlation; mean reduction {record['mean_reduction']:.4f} nats/byte",
        verdict=complementarity_verdict(between),
        panels=[
            Panel("Averaging two experts", "correlation of errors", "reduction of the loss (nats/byte)", series),
        ],
        notes=_notes(place.scale, record)
        + f" {record['num_pairs']:,} pairs; the interval leaves out one expert at a time.",
    )


def complementarity_verdict(between: list[float] | None) -> Verdict:
    """By the 95% interval of the slope: below zero, above it, or across."""
    if between is None or between[0] <= 0 <= between[1]:
        return "scale too small to tell"
    return "agrees" if between[1] < 0 else "differs"


def _pair_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [
        {
            "kind": "group of pairs",
            "pairs": group["pairs"],
            "correlation": group["correlation"],
            "reduction_nats_per_byte": group["reduction"],
            "standard_error_nats_per_byte": group["standard_error"],
        }
        for group in record["bins"]
    ]
    for first, second, correlation, reduction in zip(*(record["pairs"] or {}).values(), strict=True):
        rows.append(
            {
                "kind": "pair",
                "pairs": 1,
                "correlation": correlation,
                "reduction_nats_per_byte": reduction,
                "first_expert": first,
                "second_expert": second,
            }
        )
    return rows


def weights_of(run: Path) -> list[Any]:
    """What decides the measurement: the run's configuration and what its experts were made from."""
    opened = SomaRun.open(run)
    done = [read_json(opened.job_folder(str(expert)).done) for expert in range(opened.num_experts)]
    return [result_record(opened.config), done]


def _notes(scale: Scale, record: dict[str, Any]) -> str:
    config = ensemble_config(scale)
    return (
        f"N = {record['num_experts']} experts of width {config.model.width}, {config.experts.updates:,} updates each; "
        f"{record['scored_targets']:,} bytes of the validation split."
    )


ITEMS: tuple[Item, ...] = (
    Item(
        name="soma-fig16",
        covers=(),
        shows="loss against the number of active experts k",
        paper="k = 4 captures most of the gain; N=256: k = 4 to 12 lowers the loss by 0.013 nats/byte more, all 256 "
        "experts give a higher loss; at k = 4, N=256 reaches 1.72 and N=8 1.78",
        rule="agrees where k = 4 takes more than half of the gain from k = 1 to the best k; too small to tell where "
        "the best k's gain is not above zero (95%, document bootstrap)",
        minutes={"smoke": 0.15, "cpu": 4, "paper": 60_000},
        find=find_active_experts,
    ),
    Item(
        name="soma-fig17",
        covers=(),
        shows="what averaging two experts gains, against how alike their errors are",
        paper="experts with less similar errors gain more; 32,640 pairs of N=256, mean reduction 0.083 nats/byte",
        rule="agrees where the slope of reduction on correlation is negative and its 95% interval (jackknife over "
        "experts) excludes zero; differs where it is positive likewise",
        minutes={"smoke": 0.1, "cpu": 0.5, "paper": 60},
        find=find_complementarity,
    ),
)
