"""``thinwire demo``: both methods on text this machine already has: trained, scored, compared, and one page."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from thinwire.base.files import read_json
from thinwire.base.progress import Voice
from thinwire.base.units import format_bytes
from thinwire.cli.program import program
from thinwire.cli.terminal import Terminal, print_bytes, print_table
from thinwire.config.parse import parse
from thinwire.data.corpus import MANIFEST, read_manifest
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.experiments.demo import demo, demo_compressed, demo_plain
from thinwire.runs.layout import RunFolder
from thinwire.subspaces.config import SubspacesConfig

PROMPT = "This function returns the number of "
MAX_TEXT_BYTES = 40_000_000
THIN_BITS_PER_S = 10e6


@dataclass(frozen=True)
class Arguments:
    """Prepare, train, score, talk, report; a second run goes on with, or keeps, what is there."""

    out: Path = Path("runs/demo")
    """Where everything goes."""
    text: str = "python"
    """A file or folder to learn from; by default the text that every Python installation carries."""
    prompt: str = PROMPT
    """What the sample continues."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire demo")
    from thinwire.cli.evaluate import score_rows
    from thinwire.cli.generate import Arguments as Sample
    from thinwire.cli.generate import write_sample
    from thinwire.soma.recipe import train

    terminal = Terminal()
    data, run = arguments.out / "data", arguments.out / "soma"
    options = PrepareOptions(valid_fraction=0.03, test_fraction=0.05, max_bytes=MAX_TEXT_BYTES)
    with terminal.progress() as progress:
        if _is_prepared(data, text=arguments.text):
            terminal.say(f"text: in {data}, kept")
        else:
            summary = prepare([arguments.text], out=data, options=options, progress=progress)
            terminal.say(f"text: {format_bytes(summary.corpus_bytes)} in {data} ({summary.state})")
        record = train(
            demo(),
            data=data,
            out=run,
            preset="demo",
            command=shlex.join([*program(), "demo", *argv]),
            voice=Voice(progress, terminal.say),
        )
    print_table(score_rows(record))
    sample = write_sample(Sample(run=run, prompt=arguments.prompt, bytes=400))
    print_bytes(b"\nsample (the prompt, then what the ensemble writes):\n" + sample.prompt + sample.text + b"\n\n")
    runs = {"plain": arguments.out / "subspaces-plain", "compressed": arguments.out / "subspaces"}
    presets = {"plain": demo_plain(), "compressed": demo_compressed()}
    command = shlex.join([*program(), "demo", *argv])
    for name, folder in runs.items():
        terminal.say(f"a Llama over four local ranks, keys and values {name}")
        _train_over_ranks(presets[name], data=data, out=folder, preset=f"demo-{name}", command=command)
    _print_side_by_side(runs)
    page = _report([run, *runs.values()], arguments.out, terminal)
    print_table([("run folders", ", ".join(map(str, (run, runs["compressed"])))), ("page", page)])


def _is_prepared(data: Path, *, text: str) -> bool:
    """Whether the demo's text is there. The text of a Python installation changes with every package that is
    installed; the demo goes on with what it began with."""
    return text == "python" and (data / MANIFEST).is_file() and read_manifest(data)["arguments"] == [text]


def _train_over_ranks(config: SubspacesConfig, *, data: Path, out: Path, preset: str, command: str) -> None:
    from thinwire.subspaces.recipe import train

    terminal = Terminal()
    with terminal.progress() as progress:
        voice = Voice(progress, terminal.say)
        train(config, data=data, out=out, preset=preset, command=command, voice=voice)


def _print_side_by_side(runs: dict[str, Path]) -> None:
    """Loss and bytes of the plain and the compressed run, and how long each would wait for a thin wire: for keys and
    values, counted, and for the weights that it averages now and then, in closed form."""
    from thinwire.cli.measure import on_link
    from thinwire.comm.link import Link
    from thinwire.subspaces.measured_traffic import main_phase, measure_traffic

    columns: list[list[str]] = []
    for name, run in runs.items():
        traffic = measure_traffic(run)
        phases = {found["phase"]: found for found in traffic["phases"]}
        own = phases[main_phase(phases) or "warm-up"]
        loss = read_json(RunFolder(run).results / "test.json")["loss_nats_per_token"]
        link = on_link(run, traffic, Link(THIN_BITS_PER_S))
        exchanged = [format_bytes(own["exchange_bytes_per_update"]), f"{own['part_of_plain']:.2%}"]
        seconds = [f"{link[key]:.2f} s" for key in ("exchange_seconds", "sync_seconds")]
        cells = [*exchanged, format_bytes(link["sync_bytes_per_update"]), *seconds]
        columns.append([name, f"{loss:.4f} nats/byte", *cells])
    rate = f"at {THIN_BITS_PER_S / 1e6:.0f} Mbit/s"
    exchange = ["K/V counted an update", "of plain"]
    weights = "weights an update, on average"
    titles = ["a Llama over four ranks", "test loss, stock model", *exchange, weights, f"K/V {rate}", f"weights {rate}"]
    sys.stdout.write("\n")
    print_table(
        [(title, "".join(f"{cell:>20}" for cell in cells)) for title, *cells in zip(titles, *columns, strict=True)]
    )
    sys.stdout.write("\n")


def _report(runs: list[Path], out: Path, terminal: Terminal) -> str:
    """The page, or how to get it where the plotting extra is missing."""
    from thinwire.base.errors import UserError
    from thinwire.report.page import write_report

    try:
        return str(write_report(runs, out=out).html)
    except UserError as error:
        terminal.say(f"no page: {error}")
        return "not written"
