"""Which tokenizer do tests use?  Byte pairs learnt from a few words, in files of GPT-2's kind."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXT = ["the harbour and the anchor, the sailor and the lantern; 'tis the island that we've seen. " * 4]
VOCABULARY = 300


def write_tokenizer_files(folder: Path) -> Path:
    """``vocab.json`` and ``merges.txt`` in ``folder``: 256 bytes, 43 merges and the end of text."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.model.save(str(folder))
    return folder
