"""``thinwire plan soma [PRESET | RUN] --budget 10h``: which N, n_pert, B and difference fit, in closed form."""

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
from thinwire.experiments.registry import preset
from thinwire.kernels.expert_shape import ExpertShape
from thinwire.launch.local import available_cores
from thinwire.plan import quantities
from thinwire.plan.noise import NoiseSource, assumed_noise, measured_noise
from thinwire.plan.recorded_choice import choose_recorded, read_curves
from thinwire.plan.soma import Planner, Question
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
    curves = read_curves(arguments.curves) if arguments.curves else []
    noise = _noise(base, question, terminal)
    costs = _costs(arguments, question, terminal)
    options = Planner(question, costs=costs, noise=noise).plan()
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
    found: Any = preset(name or DEFAULT_PRESET)
    if not isinstance(found, SomaConfig):
        fix = "leave the preset out, or give a SOMA one"
        raise UserError(f"'{name}' is no preset of this method", where="thinwire plan soma", fix=fix)
    return Base(name or DEFAULT_PRESET, found, None)


def _parse(base: Base, argv: list[str], *, prog: str) -> Arguments:
    def fill(
        budget: str | None = None,
        deadline: str | None = None,
        devices: int = available_cores(),
        memory: str | None = None,
        fixed: Literal["width", "size"] = "width",
        updates: int | None = None,
        most_experts: int = 256,
        speed: float | None = None,
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
            updates: Wanted of every expert; by default as many as the preset or run makes.
            most_experts: N = 1, 2, 4, ... up to this.
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
        if value is not None and value <= 0:
            raise UserError(
                "this must be above zero", where=f"--{name.replace('_', '-')} {value}", fix="give more, or leave it out"
            )
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


def _noise(base: Base, question: Question, terminal: Terminal) -> NoiseSource:
    """The run's own, measured now where it was not yet; else what is assumed, with a warning."""
    window_bytes = question.window_bytes
    if base.run is not None:
        kept = RunFolder(base.run).results / VARIANCE
        try:
            return measured_noise(
                read_json(kept) if kept.is_file() else _measure(base.run, terminal), window_bytes=window_bytes
            )
        except UserError as error:
            terminal.say(f"warning: the noise of {base.run} cannot be measured: {error.what}")
    noise = assumed_noise(window_bytes)
    terminal.say(
        f"warning: nu = {noise.terms.nu:.3g} and a = d - 1 are assumed; they differ with text and training. "
        "Give a run for its own (thinwire plan soma RUN ...)"
    )
    return noise


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
            "nu": noise.terms.nu,
            "a": noise.terms_of(next(iter(costs)).num_parameters).a,
            "origin": noise.origin,
            "assumed": noise.is_assumed,
        },
        "speeds": [
            {"width": shape.width, "byte_forwards_per_s": [[o.batch, o.batch / o.per_byte] for o in cost.batches]}
            for shape, cost in costs.items()
        ],
        "options": options,
    }
