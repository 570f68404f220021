"""``thinwire measure WHAT RUN``: what can be measured of a run; ``traffic``, counted bytes beside the closed form."""

import difflib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.base.units import format_bytes, format_seconds
from thinwire.cli.measure_active_experts import active_experts
from thinwire.cli.measure_complementarity import complementarity
from thinwire.cli.measure_exchange import measure_exchange, print_exchange
from thinwire.cli.measure_throughput import throughput
from thinwire.cli.measure_variance import variance
from thinwire.cli.terminal import print_columns, print_json, print_table
from thinwire.comm.link import Link
from thinwire.config.parse import parse
from thinwire.plan import quantities
from thinwire.plan.step_time import step_time
from thinwire.runs.layout import RunFolder
from thinwire.soma.recorded_curve import SOMA
from thinwire.subspaces.config import read_config
from thinwire.subspaces.measured_traffic import main_phase, measure_traffic
from thinwire.subspaces.traffic import step_traffic

RESULT = "traffic.json"


@dataclass(frozen=True)
class TrafficArguments:
    """Bytes that a run's ranks counted, beside the closed form; kept in RUN/results/traffic.json."""

    run: tyro.conf.Positional[Path]
    """The run folder; it may still be in progress."""
    link: str = "300Mbps"
    """Of a context-parallel run: rate of the link on which the exchange of an update is timed in closed form."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return
    if argv[0] not in MEASURES:
        near = difflib.get_close_matches(argv[0], MEASURES, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        fix = f"{hint}There is: {', '.join(MEASURES)}"
        raise UserError(f"there is no measure '{argv[0]}'", where="thinwire measure", fix=fix)
    _, measure = MEASURES[argv[0]]
    measure(argv[1:])


def usage() -> str:
    width = max(map(len, MEASURES))
    lines = [f"  {name:<{width}}  {what}" for name, (what, _) in MEASURES.items()]
    return "\n".join(
        ["usage: thinwire measure WHAT RUN [--json]", "", *lines, "", "thinwire measure WHAT --help tells more.", ""]
    )


def traffic(argv: list[str]) -> None:
    arguments = parse(TrafficArguments, argv, prog="thinwire measure traffic")
    rate = quantities.bits_per_s(arguments.link, where="--link")
    if RunFolder(arguments.run).read_config().get("kind") == SOMA.kind:
        _show(arguments, measure_exchange(arguments.run), show=print_exchange)
        return
    record = measure_traffic(arguments.run)
    record["links"] = [
        on_link(arguments.run, record, Link(rate, "node")),
        on_link(arguments.run, record, Link(rate, "pair")),
    ]
    _show(arguments, record, show=_print)


def _show(arguments: TrafficArguments, record: dict[str, Any], *, show: Callable[[dict[str, Any]], None]) -> None:
    """Keep what was measured, and print it."""
    write_json(RunFolder(arguments.run).results / RESULT, record)
    if arguments.json:
        print_json(record)
    else:
        show(record)


def on_link(run: Path, record: dict[str, Any], link: Link) -> dict[str, Any]:
    """How long an update's bytes take, of the run's own codec and of none; weights on average over the updates."""
    config = read_config(RunFolder(run))
    phase = main_phase(found["phase"] for found in record["phases"])
    bytes_of = {
        of: step_traffic(config, vocab_size=record["vocab_size"], num_ranks=record["ranks"], phase=of)
        for of in ({phase, "plain"} if phase else ())
    }
    times = {of: step_time(config, sent, link=link, phase=of) for of, sent in bytes_of.items()}
    own, plain = (times[phase], times["plain"]) if phase else (None, None)
    return {
        **asdict(link),
        "phase": phase,
        "exchange_seconds": own and own.exchange,
        "plain_exchange_seconds": plain and plain.exchange,
        "sync_seconds": own and own.sync,
        "sync_bytes_per_update": bytes_of[phase].sync_bytes_per_step if phase else None,
    }


def _print(record: dict[str, Any]) -> None:
    rows = [
        (
            "run",
            f"{record['codec']}, update {record['step']:,} of {record['planned_steps']:,}, {record['ranks']} ranks",
        ),
        ("an update", f"{record['tokens_per_step']:,} tokens"),
    ]
    print_table(rows)
    print_columns(
        ["sent for", "counted", "closed form", ""],
        [
            [tag, f"{found['counted_bytes']:,}", f"{found['closed_form_bytes']:,}", _verdict(found["is_equal"])]
            for tag, found in record["by_tag"].items()
        ],
    )
    print_columns(
        ["phase", "updates", "K/V an update", "a token", "of plain", ""],
        [_phase_cells(phase) for phase in record["phases"]],
    )
    notes = [
        (f"{link['bits_per_s'] / 1e6:,.6g} Mbit/s per {link['per']}", _link_words(link)) for link in record["links"]
    ]
    notes += [
        ("left out", f"updates {one['after'] + 1:,} to {one['last']:,}: {one['why']}") for one in record["left_out"]
    ]
    if record["assumed_sequences"]:
        notes.append(
            ("assumed", "the log does not say over how many sequences a validation went; the setting was taken")
        )
    sys.stdout.write("\n")
    print_table(notes)


def _phase_cells(phase: dict[str, Any]) -> list[str]:
    per_update, per_token, part = (
        phase[key] for key in ("exchange_bytes_per_update", "exchange_bytes_per_token", "part_of_plain")
    )
    return [
        phase["phase"],
        f"{phase['first_step']:,} to {phase['last_step']:,}",
        "-" if per_update is None else format_bytes(per_update),
        "-" if per_token is None else format_bytes(per_token),
        "-" if part is None else f"{part:.2%}",
        _verdict(phase["is_equal"]),
    ]


def _verdict(is_equal: bool) -> str:
    return "equal" if is_equal else "DIFFERS"


def _link_words(link: dict[str, Any]) -> str:
    if link["phase"] is None:
        return "nothing is exchanged in the warm-up"
    words = f"K/V {_time(link['exchange_seconds'])}"
    if link["phase"] != "plain":
        words += f" (plain {_time(link['plain_exchange_seconds'])})"
    return f"{words}, weights {_time(link['sync_seconds'])}"


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{1000 * seconds:.2f} ms"


MEASURES: dict[str, tuple[str, Callable[[list[str]], None]]] = {
    "active-experts": ("a SOMA run's loss and cost for every number of active experts", active_experts),
    "complementarity": ("what averaging any two experts gains, against how alike they err", complementarity),
    "throughput": ("a SOMA run's speed here, training and routed scoring, beside the peak", throughput),
    "traffic": ("bytes that a run's ranks sent each other, beside the closed form", traffic),
    "variance": ("a SOMA run's gradient noise, measured and predicted; what n_pert and B suit it", variance),
}
"""What can be measured: in a few words, and the command."""
