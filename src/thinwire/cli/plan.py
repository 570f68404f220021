"""``thinwire plan subspaces [PRESET] --link 300Mbps``: which codec fits a link and a deadline, in closed form."""

import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from thinwire.base.errors import UserError
from thinwire.base.units import format_bytes, format_count
from thinwire.cli.terminal import print_columns, print_json, print_table
from thinwire.comm.link import Link
from thinwire.config.parse import parse
from thinwire.data.encode import BYTE_SYMBOLS
from thinwire.experiments.registry import preset
from thinwire.experiments.subspaces import subspaces_800m
from thinwire.plan import quantities
from thinwire.plan.step_time import measured_step_seconds, step_flops
from thinwire.plan.subspaces import Goal, Question, plan
from thinwire.runs.layout import RunFolder
from thinwire.subspaces.config import SubspacesConfig, check, read_config
from thinwire.subspaces.measured_traffic import vocabulary
from thinwire.subspaces.traffic import Exchange

USAGE = """usage: thinwire plan subspaces [PRESET | RUN] --link 300Mbps [--section.key VALUE ...]
       thinwire plan soma [PRESET | RUN] --budget 10h [--deadline 5h] [--section.key VALUE ...]

soma: which experts, directions and batches fit a budget (thinwire plan soma --help).
subspaces: which codec fits a link.
Without a preset or a run (whose steps were timed): the paper's setting, 132,000 tokens over 8 machines.
thinwire plan subspaces --help lists the flags; --tokens 16B --deadline 30d asks what is done in time.
"""
GPT2_SYMBOLS = 50_257
GPT2_PRESETS = ("subspaces-800m",)
"""Presets of models that read GPT-2's tokens; the others read bytes."""


class Base(NamedTuple):
    """A preset, a run or the paper's setting; the measured time is 0 where there is none."""

    config: SubspacesConfig
    vocab_size: int
    measured_seconds: float = 0.0


@dataclass(frozen=True)
class Arguments:
    """What the command line says."""

    link: str
    link_per: Literal["node", "pair", "both"]
    delay: str
    compute_seconds: float | None
    flops_per_s: float | None
    tokens: str | None
    deadline: str | None
    vocab_size: int
    exchange: Exchange
    config: SubspacesConfig
    json: bool


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return
    if argv[0] == "soma":
        from thinwire.cli import plan_soma

        plan_soma.main(argv[1:])
        return
    if argv[0] != "subspaces":
        fix = "thinwire plan subspaces --link 300Mbps, or thinwire plan soma --budget 10h"
        raise UserError(f"there is no plan for '{argv[0]}'", where="thinwire plan", fix=fix)
    name = argv[1] if len(argv) > 1 and not argv[1].startswith("-") else None
    base = _base(name)
    rest = argv[1 if name is None else 2 :]
    arguments = _parse(base, rest, prog=f"thinwire plan subspaces {name or ''}".strip())
    check(arguments.config, where=name or "the paper's setting")
    if arguments.config.launch.ranks == 1:
        raise UserError("one rank exchanges nothing", where="--launch.ranks 1", fix="plan for two ranks or more")
    record = plan(_question(arguments, measured_seconds=base.measured_seconds))
    if arguments.json:
        print_json(record)
        return
    _print(record)


def _base(name: str | None) -> Base:
    """What the flags start from."""
    if name is None:
        return Base(subspaces_800m(), GPT2_SYMBOLS)
    if (Path(name) / "config.json").is_file():
        run = RunFolder(Path(name))
        config = read_config(run)
        vocab_size = vocabulary(run.root)
        # A step that waited for a modelled link says nothing about the compute.
        seconds = measured_step_seconds(run.log) if config.launch.link_bits_per_s == 0 else 0.0
        return Base(config, vocab_size, seconds)
    found: Any = preset(name)
    if not isinstance(found, SubspacesConfig):
        fix = "leave the preset out, or give a context-parallel one"
        raise UserError(f"'{name}' is no preset of this method", where="thinwire plan subspaces", fix=fix)
    return Base(found, GPT2_SYMBOLS if name in GPT2_PRESETS else BYTE_SYMBOLS)


def _parse(base: Base, argv: list[str], *, prog: str) -> Arguments:
    def fill(
        link: str,
        link_per: Literal["node", "pair", "both"] = "both",
        delay: str = "0",
        compute_seconds: float | None = None,
        flops_per_s: float | None = None,
        tokens: str | None = None,
        deadline: str | None = None,
        vocab_size: int = base.vocab_size,
        exchange: Exchange = "needed",
        config: Annotated[SubspacesConfig, tyro.conf.arg(name="")] = base.config,
        json: bool = False,
    ) -> Arguments:
        """Which codec fits a link and a deadline, in closed form.

        Args:
            link: Rate of a link, for example 300Mbps.
            link_per: Whether all traffic of a node shares the link, or each pair of nodes has one.
            delay: From one end to the other, for example 20ms.
            compute_seconds: Of a step without any link; by default what a run's log says.
            flops_per_s: Instead, what one rank reaches; the step's operations are counted.
            tokens: To train on in all, for example 16B; with --deadline.
            deadline: When they must be done, for example 30d.
            vocab_size: Of the tokenizer: 256 for bytes, 50257 for GPT-2's.
            exchange: needed sends a chunk to ranks with later ones; all_gather to all, as the paper does.
            json: Print one JSON object.
        """
        return Arguments(
            link, link_per, delay, compute_seconds, flops_per_s, tokens, deadline, vocab_size, exchange,
            config, json,
        )  # fmt: skip

    return parse(fill, argv, prog=prog)


def _question(arguments: Arguments, *, measured_seconds: float) -> Question:
    rate = quantities.bits_per_s(arguments.link, where="--link")
    delay = quantities.seconds(arguments.delay, where="--delay")
    kinds: tuple[Literal["node", "pair"], ...] = ("node", "pair")
    links = tuple(Link(rate, kind, delay) for kind in kinds if arguments.link_per in (kind, "both"))
    if (arguments.tokens is None) != (arguments.deadline is None):
        fix = "give both: --tokens 16B --deadline 30d"
        raise UserError("a deadline needs the tokens to train on", where="--deadline, --tokens", fix=fix)
    goal = None
    if arguments.tokens is not None and arguments.deadline is not None:
        num_tokens = quantities.count(arguments.tokens, where="--tokens")
        goal = Goal(max(num_tokens, 1), quantities.seconds(arguments.deadline, where="--deadline"))
    return Question(
        arguments.config,
        links,
        arguments.vocab_size,
        _compute_seconds(arguments) or measured_seconds,
        goal,
        arguments.exchange,
    )


def _compute_seconds(arguments: Arguments) -> float:
    """As given; 0 where it is not."""
    given = [value for value in (arguments.compute_seconds, arguments.flops_per_s) if value is not None]
    where = "--compute-seconds, --flops-per-s"
    if len(given) > 1:
        raise UserError("the compute time is given twice", where=where, fix="give one of them")
    if not all(0 < value < inf for value in given):
        raise UserError(
            "a compute time or speed must be finite and above zero", where=where, fix="leave it out if it is unknown"
        )
    if arguments.flops_per_s is not None:
        flops = step_flops(arguments.config, vocab_size=arguments.vocab_size)
        return flops / arguments.flops_per_s / arguments.config.launch.ranks
    return arguments.compute_seconds or 0.0


def _print(record: dict[str, Any]) -> None:
    compute, allowed = record["compute_seconds"], record["allowed_step_seconds"]
    rows = [
        ("a step", f"{record['tokens_per_step']:,} tokens over {record['ranks']} ranks"),
        ("parameters", f"{format_count(record['parameters'])}, vocabulary {_vocabulary(record['vocab_size'])}"),
        (
            "compute",
            "unknown: speeds are the link's limit (give --flops-per-s)"
            if compute is None
            else f"{compute:.3g} s a step",
        ),
    ]
    if allowed is not None:
        rows.append(("may take", f"{allowed:.3g} s a step"))
    rows += [
        (f"link per {link['per']}", f"{link['bits_per_s'] / 1e6:,.6g} Mbit/s{_gentlest(link, allowed)}")
        for link in record["links"]
    ]
    print_table(rows)
    for link in record["links"]:
        options = [option for option in record["options"] if option["link_per"] == link["per"]]
        print_columns(_header(link["per"], allowed), [_cells(option) for option in options])
        sys.stdout.write(_weights_words(options[1], every=record["sync_every"]))


def _header(per: str, allowed: float | None) -> list[str]:
    """Within 80 columns."""
    names = [f"per {per}", "bytes", "/plain", "exchange", "weights", "step", "tokens/s"]
    return names if allowed is None else [*names, "fits"]


def _vocabulary(size: int) -> str:
    hints = {
        BYTE_SYMBOLS: f" (bytes; GPT-2's: --vocab-size {GPT2_SYMBOLS})",
        GPT2_SYMBOLS: f" (GPT-2's; bytes: --vocab-size {BYTE_SYMBOLS})",
    }
    return f"{size:,}{hints.get(size, '')}"


def _weights_words(own: dict[str, Any], *, every: int) -> str:
    """What to change where the configuration's own codec waits for weights, whatever is done to keys and values."""
    if not own["is_bound_by_weights"]:
        return ""
    what = "summed at every update" if every == 1 else f"averaged every {every} updates"
    return (
        f"\n  Weights take most of the time: {format_bytes(own['sync_bytes_per_step'])} an update, {what}.\n"
        "  Raise --sync.every (a divisor of --checkpoint-every), at a price in loss.\n"
    )


def _gentlest(link: dict[str, Any], allowed: float | None) -> str:
    if allowed is None:
        return ""
    if link["gentlest_rank"] is None:
        return "; no subspace fits"
    return f"; the largest rank that fits is {link['gentlest_rank']} ({link['gentlest_rate']:.1%} left out)"


def _cells(option: dict[str, Any]) -> list[str]:
    speed, fits = option["tokens_per_s_overlapped"], option["fits"]
    cells = [
        option["codec"].removeprefix("subspace "),
        format_bytes(option["wire_bytes"]),
        f"{option['fraction_of_plain']:.2%}",
        *(_time(option[key]) for key in ("exchange_seconds", "sync_seconds", "step_seconds_overlapped")),
        "-" if speed is None else format_count(round(speed)),
    ]
    return cells if fits is None else [*cells, "yes" if fits else "no"]


def _time(seconds: float) -> str:
    """At most eight characters."""
    for limit, unit, size in ((60.0, "s", 1.0), (3600.0, "min", 60.0), (86_400.0, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86_400.0:,.0f} d"
