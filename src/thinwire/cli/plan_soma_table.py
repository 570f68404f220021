"""How does a person read a SOMA plan?  A table within 80 columns: one option for each N, the paper's and the own."""

import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

from thinwire.base.units import format_count, format_seconds
from thinwire.cli.terminal import print_columns, print_table

SIGNS = {"central": "+-", "one_sided": "+"}


def print_plan(record: dict[str, Any]) -> None:
    """The record of ``thinwire plan soma --json``, its chosen and given options alone."""
    noise, budget = record["noise"], record["budget"]
    rows = []
    if budget is not None:
        amount = budget["amount"]
        words = {"byte_forwards": f"{amount:.4g} byte-forwards", "operations": f"{amount:.4g} operations"}
        rows.append(("budget", words.get(budget["unit"], f"{format_seconds(amount)} of device time")))
    if record["deadline_seconds"] is not None:
        rows.append(("deadline", format_seconds(record["deadline_seconds"])))
    rows += [
        ("devices", f"{record['devices']}"),
        ("windows", f"{record['window_bytes']:,} bytes"),
        ("noise", noise["origin"]),
        ("nu", f"{noise['nu']:.3g} (Eq. 17); {noise['nu_probe_weighted']:.3g} as the probes weight it"),
    ]
    rows.append(
        ("costs", f"batch noise {noise['batch_cost']:,.0f}, signal {noise['signal_cost']:,.0f}, of one of probes")
    )
    widths = ", ".join(f"{one['a']:,.0f} at width {one['width']}" for one in noise["a_of_width"])
    rows += [("" if index else "a", line) for index, line in enumerate(wrap(widths, 66))]
    print_table(rows)
    shown = [option for option in record["options"] if option["chosen"] or option["role"] != "least"]
    header = ["", "N", "width", "n_pert", "B", "updates", "time", "variance", "worth", "memory"]  # within 80 columns
    print_columns(header, [_cells(option) for option in shown])
    sys.stdout.write(
        "\n  least: noise that costs least, in as many updates as are worth most; paper:\n"
        "  64 x 64; own: the configuration's; +-: central, +: one-sided; !: more than a\n"
        "  device's memory. Variance is relative (Eq. 17); worth: so many updates without\n"
        "  noise. Neither tells a loss: --curves RUN... chooses N.\n"
    )
    if record["recorded"] is not None:
        _print_recorded(record["recorded"])


def _cells(option: dict[str, Any]) -> list[str]:
    return [
        f"{option['role']} {SIGNS[option['difference']]}",
        f"{option['num_experts']}",
        f"{option['width']}",
        f"{option['directions']:,}",
        _batch(option),
        format_count(option["updates"]),
        _duration(option["elapsed_seconds"]),
        f"{option['relative_variance']:.3g}",
        f"{option['noiseless_updates']:.3g}",
        f"{option['memory_bytes'] / 1e6:,.0f} MB" + ("" if option["fits"] else "!"),
    ]


def _batch(setting: dict[str, Any]) -> str:
    """B, and A where it is not 1."""
    return f"{setting['batch']:,}" + (f" x{setting['accumulation']}" if setting["accumulation"] > 1 else "")


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def _print_recorded(recorded: dict[str, Any]) -> None:
    lines = []
    for curve in recorded["curves"]:
        low, high = curve["loss_low"], curve["loss_high"]
        loss = "does not cover it" if low is None else f"{low:.4f} - {high:.4f}"
        setting = f"{curve['num_experts']} x {curve['width']}, {curve['directions']} x {_batch(curve)}"
        lines.append([Path(curve["run"]).name[:28], f"{setting} {SIGNS[curve['difference']]}", loss])
    print_columns(["recorded at this budget", "N x width, n_pert x B", "nats/byte"], lines)
    chosen = recorded["chosen"]
    if chosen is None:
        sys.stdout.write("\n  no recorded run covers this budget, so nothing chooses N\n")
        return
    runs = chosen["runs"]
    sys.stdout.write(
        f"\n  lowest recorded loss: {chosen['loss_nats_per_byte']:.4f} nats/byte"
        f"{f', the mean of {len(runs)} seeds' if len(runs) > 1 else ''}\n"
        f"  N = {chosen['num_experts']}, width {chosen['width']}, n_pert = {chosen['directions']}, "
        f"B = {chosen['batch']}, A = {chosen['accumulation']}, {chosen['difference'].replace('_', '-')} differences\n"
    )
    sys.stdout.write("".join(f"  run: {run}\n" for run in runs))
