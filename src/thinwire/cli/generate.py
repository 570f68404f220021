"""``thinwire generate RUN --prompt TEXT``"""

import base64
from dataclasses import dataclass
from pathlib import Path

import tyro

from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.cli.terminal import Terminal, print_bytes, print_json
from thinwire.config.check import Violations
from thinwire.config.parse import parse
from thinwire.soma.generate import Generated, RouteMode, generate


@dataclass(frozen=True)
class Arguments:
    """Let a run continue a prompt, byte by byte."""

    run: tyro.conf.Positional[Path]
    """A run folder."""
    prompt: str = ""
    """What to continue; a prompt of fewer than 32 bytes averages the experts by cluster prior. One
    that begins with a dash is written --prompt=-text."""
    bytes: int = 512
    """How many bytes to write."""
    temperature: float = 0.7
    """0 takes the likeliest byte, 1 samples from the mixture as it is."""
    seed: int = 1
    """The same seed, run and prompt give the same bytes."""
    route: RouteMode = "refresh"
    """once: keep the first choice of experts; refresh: route anew every 256 bytes."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire generate")
    wrong = Violations()
    wrong.at_least("--bytes", arguments.bytes, 1)
    wrong.within("--temperature", arguments.temperature, 0.0, 100.0)
    wrong.raise_any(where="thinwire generate")
    written = write_sample(arguments)
    if arguments.json:
        print_json(sample_record(written, arguments.temperature, arguments.seed))
        return
    print_bytes(written.prompt + written.text + b"\n")


def write_sample(arguments: Arguments) -> Generated:
    """Generate, and keep the sample in ``RUN/results/sample.json``; says so where that cannot be written."""
    from thinwire.soma.ensemble import load_ensemble

    try:
        prompt = arguments.prompt.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise UserError("the prompt cannot be read as bytes", where="--prompt", fix="give UTF-8 text") from error
    written = generate(
        load_ensemble(arguments.run),
        prompt,
        num_bytes=arguments.bytes,
        temperature=arguments.temperature,
        seed=arguments.seed,
        route=arguments.route,
    )
    record = sample_record(written, arguments.temperature, arguments.seed)
    try:
        write_json(arguments.run / "results" / "sample.json", record)
    except OSError as error:
        Terminal().say(f"the sample is not kept in {arguments.run}: {error.strerror}")
    return written


def sample_record(written: Generated, temperature: float, seed: int) -> dict[str, object]:
    return {
        "prompt": written.prompt.decode("utf-8", errors="replace"),
        "text": written.text.decode("utf-8", errors="replace"),
        "bytes_base64": base64.b64encode(written.text).decode(),
        "temperature": temperature,
        "seed": seed,
        "experts": [list(part) for part in written.experts],
    }
