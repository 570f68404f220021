"""``thinwire plan soma [PRESET | RUN] --budget 10h``: which N, n_pert, B and difference fit, in closed form."""

import difflib
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from thinwire.base.errors import UserError
from thinwire.base.files import read_json
from thinwire.cli.plan_soma_table import print_plan
from thinwire.cli.terminal import Terminal, print_json
from thinwire.config.parse import parse
from thinwire.experiments.registry import PRESETS
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.launch.local import available_cores
from thinwire.plan import quantities
from thinwire.plan.noise import NoiseSource, assumed_noise, measured_noise
from thinwire.plan.recorded_choice import choose_recorded, read_curves
from thinwire.plan.soma import Planner
from thinwire.plan.soma_question import Question
from thinwire.plan.update_cost import UpdateCost, measure_update_cost
from thinwire.runs.layout import RunFolder
from thinwire.soma.config import SomaConfig, check
from thinwire.soma.recorded_curve import read_soma_config

USAGE = """usage: thinwire plan soma [PRESET | RUN] --budget 10h [--deadline 5h] [--section.key VALUE ...]

Without a preset or a run: soma-small. A run gives its own nu and a (thinwire measure variance RUN).
thinwire plan soma --help lists the flags; --curves RUN... lets recorded losses choose.
"""
DEFAULT_PRESET = "soma-small"
VARIANCE = "variance.json"
MOST = 1e15
"""choice: a count or a speed above it is a slip."""


class Base(NamedTuple):
    """What the flags start from; ``run`` is None where it is a preset."""

    name: str
    config: SomaConfig
    run: Path | None


@dataclass(frozen=True)
class Arguments:
    """What the command line says."""

    budget: str | None
    deadline: str | None
    devices: int
    memory: str | None
    fixed: Literal["width", "size"]
    updates: int | None
    most_experts: int
    speed: float | None
    curves: tuple[Path, ...]
    config: SomaConfig
    json: bool


def main(argv: list[str]) -> None:
    """Answers ``thinwire plan soma``; ``argv`` is what follows."""
    if not argv:
        sys.stdout.write(USAGE)
        return
    name = None if argv[0].startswith("-") else argv[0]
    base = _base(name)
    rest = argv if name is None else argv[1:]
    arguments = _parse(base, rest, prog=f"thinwire plan soma {name or ''}".strip())
    check(arguments.config, where=base.name)
    question, terminal = _question(arguments), Terminal()
    curves = read_curves(arguments.curves, question=question) if arguments.curves else []
    noise, warnings = _noise(base, question, terminal)
    costs = _costs(arguments, question, terminal)
    options = Planner(question, costs=costs, noise=noise).plan()
    for warning in warnings:
        terminal.say(f"warning: {warning}")
    recorded = None
    if curves and question.budget is not None:
        deadline = question.deadline_seconds
        recorded = choose_recorded(curves, budget=question.budget, deadline_seconds=deadline, devices=question.devices)
    record = _record(question, noise=noise, costs=costs, options=options) | {"recorded": recorded}
    if arguments.json:
        print_json(record)
    else:
        print_plan(record)


def _base(name: str | None) -> Base:
    if name is not None and (Path(name) / "config.json").is_file():
        return Base(name, read_soma_config(RunFolder(Path(name))), Path(name))
    name, presets = name or DEFAULT_PRESET, soma_presets()
    if name not in presets:
        near = difflib.get_close_matches(name, presets, n=1)
        raise UserError(
            f"'{name}' is neither a SOMA preset nor a run's folder",
            where="thinwire plan soma",
            fix=f"did you mean '{near[0]}'?" if near else f"presets: {', '.join(presets)}",
        )
    return Base(name, presets[name], None)


def soma_presets() -> dict[str, SomaConfig]:
    """Of all presets those of this method."""
    made = {name: make() for name, make in PRESETS.items()}
    return {name: config for name, config in made.items() if isinstance(config, SomaConfig)}


def _optional(kind: str, otherwise: str) -> Any:
    """A flag that may be left out: what it takes, and what holds without it."""
    return tyro.conf.arg(metavar=kind, help_behavior_hint=f"(default: {otherwise})")


def _parse(base: Base, argv: list[str], *, prog: str) -> Arguments:
    def fill(
        budget: Annotated[str | None, _optional("AMOUNT", "no limit")] = None,
        deadline: Annotated[str | None, _optional("DURATION", "no limit")] = None,
        devices: int = available_cores(),
        memory: Annotated[str | None, _optional("MEMORY", "not asked")] = None,
        fixed: Literal["width", "size"] = "width",
        updates: Annotated[int | None, _optional("INT", f"{base.config.experts.updates}")] = None,
        most_experts: int = 256,
        speed: Annotated[float | None, _optional("FLOAT", "timed here")] = None,
        curves: tuple[Path, ...] = (),
        config: Annotated[SomaConfig, tyro.conf.arg(name="")] = base.config,
        json: bool = False,
    ) -> Arguments:
        """Which N, n_pert, B and difference fit a budget and a deadline.

        Closed forms give the variance and the number of updates, not the loss. The seed run, clusters and scores are
        not counted.

        Args:
            budget: Of all experts together: 10h (device-hours), 3e12 byte-forwards or 1e15 ops.
            deadline: When the experts must be done, for example 5h.
            devices: That train at once; a device is a core, with the triton kernels a GPU.
            memory: Of one device, for example 4GB.
            fixed: Whether every expert keeps its width, or the ensemble its total size, as N changes.
            updates: Of every expert; what these and other numbers of updates allow is in the JSON.
            most_experts: N = 1, 2, 4, ... and the configuration's own, none above this.
            speed: Byte-forwards a second of one device at the configuration's width, instead of measuring here.
            curves: Runs whose recorded losses choose among their settings where they cover the budget.
            json: Print one JSON object.
        """
        return Arguments(budget, deadline, devices, memory, fixed, updates, most_experts, speed, curves, config, json)

    return parse(fill, argv, prog=prog)


def _question(arguments: Arguments) -> Question:
    if arguments.budget is None and arguments.deadline is None:
        raise UserError("nothing limits the training", where="--budget, --deadline", fix="give one, e.g. --budget 10h")
    if arguments.curves and arguments.budget is None:
        fix = "give a budget too, e.g. --budget 10h"
        raise UserError("recorded losses are read at a budget", where="--curves", fix=fix)
    deadline = inf
    if arguments.deadline is not None:
        deadline = quantities.seconds(arguments.deadline, where="--deadline")
    for name in ("devices", "updates", "most_experts", "speed"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value <= MOST:
            what = f"this must be a number above zero and at most {MOST:g}"
            raise UserError(what, where=f"--{name.replace('_', '-')} {value}", fix="change it, or leave it out")
    if arguments.speed is not None and arguments.speed < 1:
        fix = "give byte-forwards a second, for example 1e6"
        raise UserError("a device reads at least a byte a second", where=f"--speed {arguments.speed}", fix=fix)
    if deadline <= 0:
        raise UserError("a deadline must be above zero", where="--deadline", fix="for example 5h")
    return Question(
        config=arguments.config,
        budget=None if arguments.budget is None else quantities.budget(arguments.budget, where="--budget"),
        deadline_seconds=deadline,
        devices=arguments.devices,
        memory_bytes=None if arguments.memory is None else quantities.num_bytes(arguments.memory, where="--memory"),
        fixed=arguments.fixed,
        wanted_updates=arguments.updates or arguments.config.experts.updates,
        most_experts=arguments.most_experts,
    )


def _noise(base: Base, question: Question, terminal: Terminal) -> tuple[NoiseSource, list[str]]:
    """The run's own, measured now where it was not yet; else what is assumed, with what to warn of."""
    window_bytes, warnings = question.window_bytes, []
    if base.run is not None:
        kept = RunFolder(base.run).results / VARIANCE
        try:
            record = read_json(kept) if kept.is_file() else _measure(base.run, terminal)
            noise = measured_noise(record, window_bytes=window_bytes)
            return noise, [_assumed_costs(noise)] if noise.costs_assumed else []
        except UserError as error:
            warnings.append(f"the noise of {base.run} cannot be measured: {error.what}")
    noise = assumed_noise(window_bytes)
    warnings.append(
        f"nu = {noise.nu:.3g} and a gradient spread evenly over all weights are assumed; both differ with text and "
        "training. Give a run for its own (thinwire plan soma RUN ...)"
    )
    return noise, [*warnings, _assumed_costs(noise)]


def _assumed_costs(noise: NoiseSource) -> str:
    return (
        f"costs of noise are assumed ({noise.costs.batch:,.0f} and {noise.costs.signal:,.0f}): nobody measured them, "
        "or the loss is not curved upwards there (thinwire measure variance RUN)"
    )


def _measure(run: Path, terminal: Terminal) -> dict[str, Any]:
    from thinwire.soma.measured_variance import Effort, measure_variance

    terminal.say(f"{run} has no results/{VARIANCE} yet: measuring nu and a")
    with terminal.progress() as progress:
        return measure_variance(run, effort=Effort(threads=available_cores()), progress=progress)


def _costs(arguments: Arguments, question: Question, terminal: Terminal) -> dict[ExpertShape, UpdateCost]:
    shapes = list(dict.fromkeys(ensemble.shape for ensemble in question.ensembles()))
    if arguments.speed is not None:
        model = arguments.config.model
        own = ExpertShape(width=model.width, depth=model.depth, embed_width=model.embed_width)
        operations = arguments.speed * own.operations_per_byte
        return {shape: UpdateCost.at_speed(operations / shape.operations_per_byte) for shape in shapes}
    costs = {}
    with terminal.progress() as progress:
        task = progress.task("timing updates", len(shapes))
        for shape in shapes:
            costs[shape] = measure_update_cost(shape, implementation=arguments.config.launch.implementation)
            task.advance()
        task.close()
    return costs


def _record(
    question: Question,
    *,
    noise: NoiseSource,
    costs: dict[ExpertShape, UpdateCost],
    options: list[dict[str, Any]],
) -> dict[str, Any]:
    terms = {shape: noise.terms_of(shape) for shape in costs}
    return {
        "kind": "plan-soma",
        "budget": None if question.budget is None else question.budget._asdict(),
        "deadline_seconds": None if question.deadline_seconds == inf else question.deadline_seconds,
        "devices": question.devices,
        "memory_bytes": question.memory_bytes,
        "fixed": question.fixed,
        "window_bytes": question.window_bytes,
        "wanted_updates": question.wanted_updates,
        "noise": {
            "nu": noise.nu,
            "nu_probe_weighted": next(iter(terms.values())).nu,
            "a_of_width": [{"width": shape.width, "a": of.a} for shape, of in terms.items()],
            "batch_cost": noise.costs.batch,
            "signal_cost": noise.costs.signal,
            "costs_assumed": noise.costs_assumed,
            "origin": noise.origin,
            "assumed": noise.is_assumed,
        },
        "speeds": [
            {"width": shape.width, "byte_forwards_per_s": [[o.batch, o.batch / o.per_byte] for o in cost.batches]}
            for shape, cost in costs.items()
        ],
        "options": options,
    }
