"""What did a context-parallel run send, how far did its bases turn, and what happened to its ranks?"""

from thinwire.base.units import format_bytes, format_seconds
from thinwire.report.curve_section import legend
from thinwire.report.markup import attribute, figure, paragraph, table
from thinwire.report.subspaces import facts
from thinwire.report.subspaces.curves import THETA_NAMES, theta_figure, theta_lines
from thinwire.report.subspaces.records import EXCHANGED, TAGS, LinkTime, SubspacesRun
from thinwire.report.svg import inline_svg

MAX_EVENTS = 40


def bytes_section(run: SubspacesRun) -> str:
    """Bytes of an update in each phase and in all; what ``measure traffic`` found."""
    if not run.steps:
        return paragraph("Nothing has been counted yet.", style="quiet")
    rows = [
        (
            phase.phase,
            f"{phase.num_steps:,}",
            *(format_bytes(phase.per_update[tag]) for tag in TAGS),
            format_bytes(phase.exchanged),
        )
        for phase in run.phases
    ]
    total = run.wire_bytes
    exchanged = sum(total[tag] for tag in EXCHANGED)
    rows.append(
        (
            "counted in all",
            f"{run.steps[-1].step:,}",
            *(format_bytes(total[tag]) for tag in TAGS),
            format_bytes(exchanged),
        )
    )
    columns = ("Phase", "updates", *TAGS, "keys and values")
    words = (
        "What all ranks send in one update of a phase, counted where it is sent (sync: the mean over the phase), and "
        "in all, validations included. kv-forward are coded keys and values, kv-backward their gradients, sync "
        "gradients or weights, control heartbeats and agreements; the last column adds the first three. Bases are "
        "sent once and are not in this table."
    )
    notes = [words, facts.counted_words(run)]
    if run.traffic is not None:
        notes += map(_link_words, run.traffic.links)
    shown = table(columns, rows, caption="Bytes of an update, all ranks together")
    return shown + "".join(paragraph(note, style="quiet") for note in notes if note)


def _link_words(link: LinkTime) -> str:
    rate = f"{link.bits_per_s / 1e6:,.6g} Mbit/s per {link.per}"
    words = f"On a link of {rate} an update's exchange takes {_time(link.exchange_seconds)}"
    plain = f", without a codec {_time(link.plain_exchange_seconds)}" if link.phase != "plain" else ""
    return f"{words}{plain} (closed form)."


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def rotation_section(run: SubspacesRun, *, name: str) -> str:
    """theta, angles and orthonormality over the updates; nothing where no theta was at work."""
    if not run.thetas:
        return ""
    last = run.thetas[-1]
    angles = [value for side in last.angle_degrees.values() for value in side if value is not None]
    defects = [value for side in last.orthonormality_defect.values() for value in side if value is not None]
    if not angles:
        return ""
    words = (
        f"At update {last.step:,} the subspaces are turned by {min(angles):.2f} to {max(angles):.2f} degrees from "
        f"their bases, over layers, keys and values; the largest entry of UᵀU − I is {max(defects, default=0.0):.1e}."
    )
    panels = "".join(
        figure(
            inline_svg(
                theta_figure(run, kinds=(kind,)),
                name=f"{name}-{kind.replace('_', '-')}",
                description=attribute(f"{shown}, each layer, over updates. {words}"),
            ),
            caption="",
        )
        for kind, shown in THETA_NAMES.items()
    )
    return paragraph(words) + legend(theta_lines(run)) + f'<div class="panels">{panels}</div>\n'


def events_section(run: SubspacesRun) -> str:
    """Phases, lost and new ranks, resumptions."""
    if not run.events:
        return ""
    rows = [
        (facts.EVENT_WORDS.get(event.what, event.what), f"{event.step:,}", _details(event.details))
        for event in run.events
    ]
    note = paragraph(f"The last {MAX_EVENTS} of {len(rows)}.", style="quiet") if len(rows) > MAX_EVENTS else ""
    columns = ("What", "after update", "")
    return table(columns, rows[-MAX_EVENTS:], caption="Phases, lost and new ranks, resumptions", numeric_from=3) + note


def _details(details: dict[str, object]) -> str:
    words = []
    for key, value in details.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(shown if key in ("phase", "reason") else f"{key} {shown}")
    return "; ".join(words)
