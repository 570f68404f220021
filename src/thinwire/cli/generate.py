"""``thinwire generate RUN --prompt TEXT``, or ``--prompts-file FILE`` for one prompt a line."""

import base64
import builtins
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from thinwire.base.errors import UserError
from thinwire.base.files import write_json
from thinwire.cli.terminal import Terminal, print_bytes, print_json
from thinwire.config.check import Violations
from thinwire.config.parse import parse


@dataclass(frozen=True)
class Arguments:
    """Let a run continue a prompt."""

    run: tyro.conf.Positional[Path]
    """A run folder."""
    prompt: str = ""
    """What to continue. One that begins with a dash is written --prompt=-text. SOMA: one of fewer than 32 bytes
    averages the experts by cluster prior. Subspaces: the model reads the last tokens of one that is too long."""
    prompts_file: Path | None = None
    """Instead of --prompt: a file with one prompt a line; all are continued at once, each as it would be alone."""
    bytes: int = 512
    """How many bytes to write."""
    temperature: float = 0.7
    """0 takes the likeliest byte or token, 1 samples from the model as it is."""
    seed: int = 1
    """The same seed, run and prompt give the same bytes."""
    route: Literal["once", "refresh"] | None = None
    """SOMA: once keeps the first choice of experts; refresh (the default) routes anew every 256 bytes."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> None:
    arguments = parse(Arguments, argv, prog="thinwire generate")
    wrong = Violations()
    wrong.at_least("--bytes", arguments.bytes, 1)
    wrong.within("--temperature", arguments.temperature, 0.0, 100.0)
    wrong.raise_any(where="thinwire generate")
    if arguments.prompts_file:
        _write_several(arguments, arguments.prompts_file)
        return
    written = write_sample(arguments)
    if arguments.json:
        print_json(sample_record(written, arguments.temperature, arguments.seed))
        return
    print_bytes(written.prompt + written.text + b"\n")


def _write_several(arguments: Arguments, file: Path) -> None:
    """One sample a line of the file, printed and not kept in the run."""
    from thinwire.api.verbs import generate_batch, load
    from thinwire.launch.local import available_cores

    prompts = _prompts_of(arguments, file)
    samples = generate_batch(
        load(arguments.run),
        prompts,
        num_bytes=arguments.bytes,
        temperature=arguments.temperature,
        seed=arguments.seed,
        route=arguments.route,
        threads=available_cores(),
    )
    if arguments.json:
        records = [sample_record(written, arguments.temperature, arguments.seed) for written in samples]
        print_json({"samples": records})
        return
    for written in samples:
        print_bytes(written.prompt + written.text + b"\n")


def _prompts_of(arguments: Arguments, file: Path) -> list[builtins.bytes]:
    if arguments.prompt:
        raise UserError("prompts are given twice", where="--prompt and --prompts-file", fix="leave one of them out")
    try:
        text = file.read_bytes()
    except OSError as error:
        what = f"the prompts cannot be read: {error.strerror}"
        raise UserError(what, where=str(file), fix="give a file with one prompt a line") from error
    if not text:
        raise UserError("the file is empty", where=str(file), fix="give a file with one prompt a line")
    return [line.removesuffix(b"\r") for line in text.removesuffix(b"\n").split(b"\n")]


def write_sample(arguments: Arguments) -> Any:
    """Generate, and keep the sample in ``RUN/results/sample.json``; says so where that cannot be written."""
    from thinwire.api.verbs import generate, load

    try:
        prompt = arguments.prompt.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise UserError("the prompt cannot be read as bytes", where="--prompt", fix="give UTF-8 text") from error
    written = generate(
        load(arguments.run),
        prompt,
        num_bytes=arguments.bytes,
        temperature=arguments.temperature,
        seed=arguments.seed,
        route=arguments.route,
    )
    terminal = Terminal()
    if getattr(written, "unread_prompt_tokens", 0):
        unread, length = written.unread_prompt_tokens, written.prompt_tokens
        terminal.say(f"the prompt is longer than the model's context: {unread:,} of its {length:,} tokens are not read")
    record = sample_record(written, arguments.temperature, arguments.seed)
    try:
        write_json(arguments.run / "results" / "sample.json", record)
    except OSError as error:
        terminal.say(f"the sample is not kept in {arguments.run}: {error.strerror}")
    return written


def sample_record(written: Any, temperature: float, seed: int) -> dict[str, object]:
    """Plain values: the text, and which experts wrote it or how much of the prompt was read."""
    common = {
        "prompt": written.prompt.decode("utf-8", errors="replace"),
        "text": written.text.decode("utf-8", errors="replace"),
        "bytes_base64": base64.b64encode(written.text).decode(),
        "temperature": temperature,
        "seed": seed,
    }
    if hasattr(written, "experts"):
        return common | {"experts": [list(part) for part in written.experts]}
    return common | {
        "prompt_tokens": written.prompt_tokens,
        "unread_prompt_tokens": written.unread_prompt_tokens,
    }
