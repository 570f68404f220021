"""What do ranks send each other?  Figure 12: experts of their own nothing, one shared expert losses or gradients.

Each form trains a run, whose ranks count their bytes where they are sent; beside them stands the formula, also at the
paper's size.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from thinwire.reproduction.item import Findings, Item, Panel, Scale, Series, Verdict
from thinwire.reproduction.soma_sizes import size_run
from thinwire.reproduction.workplace import Workplace
from thinwire.soma.config import Exchange, ModelConfig, SomaConfig
from thinwire.soma.exchanged_bytes import exchanged_by_job
from thinwire.soma.model import shape_of
from thinwire.soma.perturbation_parallel import bytes_of_update
from thinwire.soma.run import SomaRun

UPDATES = 4
"""Every update sends as much as any other."""
WIDTHS: dict[Scale, tuple[int, ...]] = {"smoke": (8,), "cpu": (16, 32, 64), "paper": (32, 181, 509)}
RANKS: dict[Scale, tuple[int, ...]] = {"smoke": (2,), "cpu": (2, 3), "paper": (2, 8, 16)}
"""The paper ran DDPP on 2, 8 and 16 GPUs (appendix K)."""
FORMS: tuple[Exchange, ...] = ("scalars", "gradients")
PAPER_WIDTH, PAPER_RANKS, PAPER_DIRECTIONS = 509, 8, 64


class Arm(NamedTuple):
    """One run: one expert that ``ranks`` share, or, of form ``none``, two experts that share nothing."""

    form: str
    width: int
    ranks: int

    @property
    def name(self) -> str:
        return f"exchange-{self.form}-d{self.width}-m{self.ranks}"


def find(place: Workplace) -> Findings:
    rows = []
    for width in WIDTHS[place.scale]:
        alone = _row(place, Arm("alone", width, 1), alone=None)
        rows += [alone, _row(place, Arm("none", width, 1), alone=None)]
        for ranks in RANKS[place.scale]:
            rows += [_row(place, Arm(form, width, ranks), alone=alone["run"]) for form in FORMS]
    rows = [{key: value for key, value in row.items() if key != "run"} for row in rows]
    at_paper_size = [_paper_row(form) for form in FORMS]
    return Findings(
        rows=[*rows, *at_paper_size],
        ours=_words(rows, at_paper_size),
        verdict=verdict_of(rows),
        panels=[_panel(rows, ranks=RANKS[place.scale][0])],
        notes=f"bytes of all ranks together, counted where they are sent, in seed run and experts of {UPDATES} updates "
        "each; the losses travel in both forms, because the log keeps them. At each validation a rank sends some 200 "
        "bytes of text besides. Equal: updates, directions and batch. The paper names no number of bytes; its form is "
        "the row 'gradients'.",
    )


def arm_config(scale: Scale, arm: Arm) -> SomaConfig:
    """At paper scale of the paper's monolith, with its n_pert, B and T."""
    config = size_run(scale, num_experts=2 if arm.form == "none" else 1, seed=1)
    job = replace(config.experts, updates=UPDATES, validate_every=UPDATES, checkpoint_every=UPDATES)
    return replace(
        config,
        model=ModelConfig(width=arm.width, embed_width=config.model.embed_width),
        seed_run=job,
        experts=job,
        exchange="gradients" if arm.form == "gradients" else "scalars",
        launch=replace(config.launch, ranks=arm.ranks),
    )


def _row(place: Workplace, arm: Arm, *, alone: Path | None) -> dict[str, Any]:
    config = arm_config(place.scale, arm)
    run = place.run(arm.name, config)
    jobs = exchanged_by_job(run)
    updates = sum(job.updates for job in jobs)
    row = {
        "run": run,
        "exchange": arm.form,
        "width": arm.width,
        "parameters": shape_of(config.model).num_parameters,
        "ranks": arm.ranks,
        "directions": config.experts.directions,
        "updates": updates,
        "losses_bytes": sum(job.counted.losses for job in jobs),
        "gradient_bytes": sum(job.counted.gradient for job in jobs),
        "closed_form_bytes": sum(sum(job.expected) for job in jobs),
        "is_equal": all(job.is_equal for job in jobs) and (arm.ranks == 1 or updates == 2 * UPDATES),
    }
    if updates:
        row["bytes_an_update"] = sum(sum(job.counted) for job in jobs) / updates
    if alone is not None and arm.form == "scalars":
        row["weights_are_those_of_one_process"] = _same_weights(run, alone)
    return row


def _same_weights(one: Path, other: Path) -> bool:
    """Of the expert, bit for bit."""
    pair = [SomaRun.open(root).final_expert("0") for root in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*pair, strict=True))


def _paper_row(form: Exchange) -> dict[str, Any]:
    """An update of the paper's monolith by the formula."""
    config = arm_config("paper", Arm(form, PAPER_WIDTH, PAPER_RANKS))
    parameters = shape_of(config.model).num_parameters
    job = replace(config.experts, directions=PAPER_DIRECTIONS)
    parts = PAPER_RANKS if form == "gradients" else 1
    each = bytes_of_update(job, num_parameters=parameters, ranks=PAPER_RANKS, gradient_parts=parts)
    return {
        "exchange": f"{form}, by the formula",
        "width": PAPER_WIDTH,
        "parameters": parameters,
        "ranks": PAPER_RANKS,
        "directions": PAPER_DIRECTIONS,
        "bytes_an_update": sum(each),
    }


def verdict_of(rows: list[dict[str, Any]]) -> Verdict:
    """Counted equals closed form, independent experts send nothing, and scalars give one process's weights."""
    holds = [row["is_equal"] and row.get("weights_are_those_of_one_process", True) for row in rows]
    silent = [row["losses_bytes"] == row["gradient_bytes"] == 0 for row in rows if row["ranks"] == 1]
    return "agrees" if all(holds) and all(silent) else "differs"


def _words(rows: list[dict[str, Any]], at_paper_size: list[dict[str, Any]]) -> str:
    equal = sum(row["is_equal"] for row in rows)
    scalars, gradients = (row["bytes_an_update"] for row in at_paper_size)
    size = at_paper_size[0]["parameters"] / 1e6
    return (
        f"counted bytes equal the formula in {equal} of {len(rows)} runs; independent experts send 0; for {size:.2f}M "
        f"parameters, {PAPER_DIRECTIONS} directions and {PAPER_RANKS} ranks an update's gradients take "
        f"{gradients / 1e6:,.0f} MB and its losses {scalars / 1e3:,.1f} kB, {gradients / scalars:,.0f} times fewer"
    )


def _panel(rows: list[dict[str, Any]], *, ranks: int) -> Panel:
    def series(form: str) -> list[Series]:
        found = [row for row in rows if row["exchange"] == form and row["ranks"] == ranks]
        sizes = [row["parameters"] for row in found]
        closed = [row["closed_form_bytes"] / row["updates"] for row in found]
        counted = [row["bytes_an_update"] for row in found]
        return [Series(form, sizes, counted, kind="points"), Series(form, sizes, closed, kind="dashed")]

    return Panel(
        f"bytes of one update on {ranks} ranks",
        "parameters",
        "bytes, all ranks",
        [one for form in FORMS for one in series(form)],
        x_scale="log",
        y_scale="log",
    )


ITEMS = (
    Item(
        name="soma-fig12",
        covers=("soma-appendixH2",),
        shows="bytes that an update sends: independent experts, one shared expert by losses, by gradients",
        paper="FSO exchanges no per-step updates; DDPP sends gradient estimates to a coordinator and back at every "
        "step (no number of bytes)",
        rule="in every run the counted bytes equal the formula, independent experts send none, and ranks that exchange "
        "losses end at the weights of one process, bit for bit",
        minutes={"smoke": 0.7, "cpu": 4, "paper": 60},
        find=find,
    ),
)
