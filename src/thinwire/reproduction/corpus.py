"""Which text do items learn from where none is given?  The one that every Python installation carries (the demo's)."""

from pathlib import Path

from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.base.units import format_bytes
from thinwire.data.corpus import MANIFEST, read_manifest
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.reproduction.item import Scale

SOURCE = "python"
MAX_BYTES: dict[Scale, int] = {"smoke": 4_000_000, "cpu": 40_000_000}


def usual_corpus(scale: Scale, *, out: Path, voice: Voice) -> Path:
    """The prepared folder ``out/data``; made once, for a Python installation's text changes with every package.

    Raises:
        UserError: the published setting, which wants the published amount of text.
    """
    if scale not in MAX_BYTES:
        raise UserError(
            f"the scale '{scale}' needs a text of its own",
            where="--data",
            fix="prepare one (thinwire prepare SOURCE... --out DATA), then give --data DATA",
        )
    folder = out / "data"
    if (folder / MANIFEST).is_file() and read_manifest(folder)["arguments"] == [SOURCE]:
        return folder
    options = PrepareOptions(valid_fraction=0.03, test_fraction=0.05, max_bytes=MAX_BYTES[scale])
    summary = prepare([SOURCE], out=folder, options=options, progress=voice.progress)
    voice.say(f"text: {format_bytes(summary.corpus_bytes)} in {folder} ({summary.state})")
    return folder
