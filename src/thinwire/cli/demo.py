"""``thinwire demo``: from text this machine already has to a trained, scored, talking ensemble, and its page."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from thinwire.base.progress import Voice
from thinwire.base.units import format_bytes
from thinwire.cli.program import program
from thinwire.cli.terminal import Terminal, print_bytes, print_table
from thinwire.config.parse import parse
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.experiments.demo import demo

PROMPT = "This function returns the number of "
MAX_TEXT_BYTES = 40_000_000


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
        summary = prepare([arguments.text], out=data, options=options, progress=progress)
        terminal.say(f"text: {format_bytes(summary.corpus_bytes)} in {data} ({summary.state})")
        record = train(
            demo(),
            data=data,
            out=run,
            preset="demo",
            command=shlex.join([program(), "demo", *argv]),
            voice=Voice(progress, terminal.say),
        )
    print_table(score_rows(record))
    sample = write_sample(Sample(run=run, prompt=arguments.prompt, bytes=400))
    print_bytes(b"\nsample (the prompt, then what the ensemble writes):\n" + sample.prompt + sample.text + b"\n\n")
    page = _report(run, arguments.out, terminal)
    print_table([("run folder", str(run)), ("page", page)])


def _report(run: Path, out: Path, terminal: Terminal) -> str:
    """The page, or how to get it where the plotting extra is missing."""
    from thinwire.base.errors import UserError
    from thinwire.report.page import write_report

    try:
        return str(write_report([run], out=out).html)
    except UserError as error:
        terminal.say(f"no page: {error}")
        return "not written"
