"""What is a run good for, once the wires are gone?  The stock Llama with the tokenizer it was trained with."""

from dataclasses import dataclass
from pathlib import Path

from thinwire.base.errors import UserError
from thinwire.data.encode import BYTE_SYMBOLS, TextTokenizer
from thinwire.data.tokenizer_files import MERGES, VOCABULARY
from thinwire.data.tokens import open_tokenizer
from thinwire.subspaces.stock import Stock, load_stock


@dataclass(frozen=True)
class LanguageModel:
    """Anyone's model: plain causal attention over tokens.

    Logits of tokens [b, t] are ``model.stock.llama([tokens], FullAttention(model.stock.config.model))[0]``, with
    ``FullAttention`` from ``thinwire.subspaces.full_attention``.

    Attributes:
        run: the folder it comes from.
        stock: weights, configuration, and the checkpoint they are of.
        tokenizer: text to tokens and back.
    """

    run: Path
    stock: Stock
    tokenizer: TextTokenizer

    @property
    def context_tokens(self) -> int:
        """The longest text it has learnt to read."""
        return self.stock.config.sequence.tokens

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.stock.llama.parameters())

    @property
    def is_folded(self) -> bool:
        """Whether a subspace was folded into the weights, so that they are not those that training multiplied by."""
        return self.stock.phase in ("compressed", "folded") and self.stock.config.codec.kind == "subspace"


def load_language_model(run: Path, *, step: int | None = None) -> LanguageModel:
    """The model of a run's newest checkpoint, or of the one at ``step``; float32 on the CPU.

    Raises:
        UserError: ``run`` is no run of this method, has no checkpoint yet, a file is damaged, or its tokenizer is
            missing.
    """
    try:
        stock = load_stock(run, step=step)
    except (KeyError, RuntimeError) as error:
        raise UserError(
            f"the checkpoint does not fit the run's configuration ({error})",
            where=str(run / "checkpoints"),
            fix="restore config.json and checkpoints/ from one copy of the run",
        ) from error
    return LanguageModel(run, stock, tokenizer_of_run(run, vocab_size=stock.llama.vocab_size))


def tokenizer_of_run(run: Path, *, vocab_size: int) -> TextTokenizer:
    """Bytes, or the byte pairs in ``RUN/tokenizer``.

    Raises:
        UserError: the files are missing, damaged, or of another vocabulary than the model's.
    """
    if vocab_size == BYTE_SYMBOLS:
        return open_tokenizer("byte", folder=run)
    folder = run / "tokenizer"
    fix = f"copy {VOCABULARY} and {MERGES} there from the 'tokenizer' folder of the data that the run was trained on"
    if not all((folder / name).is_file() for name in (VOCABULARY, MERGES)):
        raise UserError("the run's tokenizer is missing", where=str(folder), fix=fix)
    tokenizer = open_tokenizer("gpt2", folder=folder)
    if tokenizer.vocab_size != vocab_size:
        what = f"the tokenizer has {tokenizer.vocab_size} tokens, the model {vocab_size}"
        raise UserError(what, where=str(folder), fix=fix)
    return tokenizer
