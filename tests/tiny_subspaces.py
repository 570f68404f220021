"""What do tests of a finished context-parallel run read?  One of a few thousand weights, trained in this process."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_tokens
from thinwire.base.errors import InterruptedRunError
from thinwire.config.fingerprint import as_record, flatten
from thinwire.data.corpus import Corpus
from thinwire.data.prepare import PrepareOptions, prepare
from thinwire.data.tokens import open_tokens
from thinwire.experiments.registry import preset
from thinwire.runs.layout import RunFolder
from thinwire.runs.results import keep_result
from thinwire.subspaces import recipe, saving
from thinwire.subspaces.config import (
    CodecConfig,
    LaunchConfig,
    LlamaConfig,
    OptimizerConfig,
    PhasesConfig,
    SequenceConfig,
    SubspacesConfig,
)
from thinwire.subspaces.replica import Replica
from thinwire.subspaces.run import Seat, train_rank
from thinwire.subspaces.scoring import evaluate
from tiny_runs import NoTask, prepared_data, write_texts

PRESET = "subspaces-small"
CONFIG = SubspacesConfig(
    seed=3,
    model=LlamaConfig(layers=2, width=24, heads=4, kv_heads=2, head_width=8, hidden=40),
    sequence=SequenceConfig(tokens=48, chunks=4, batch=2),
    codec=CodecConfig(key_rate=0.75, value_rate=0.5, group=8),
    optimizer=OptimizerConfig(steps=12, learning_rate=2e-2, ramp_steps=2),
    phases=PhasesConfig(warmup_steps=4, warmup_tokens=16, unplug_fraction=0.25),
    launch=LaunchConfig(ranks=1, threads=1, device="cpu"),
    validate_every=6,
    validation_sequences=2,
    test_sequences=8,
    checkpoint_every=2,
)
"""Warm-up to step 4, compressed to step 9, folded to step 12; the newest two checkpoints stay."""


def token_data(folder: Path) -> Path:
    """The same text as ``tiny_runs.prepared_data``, with byte pairs; made once."""
    out = folder / "token-data"
    if not out.exists():
        files = tiny_tokens.write_tokenizer_files(folder / "tokenizer-files")
        options = PrepareOptions(valid_fraction=0.1, test_fraction=0.2, tokenizer="gpt2", tokenizer_files=files)
        prepare([str(write_texts(folder / "token-texts"))], out=out, options=options)
    return out


def train_here(config: SubspacesConfig, *, data: Path, out: Path, until: int | None = None) -> Path:
    """Train in this process, alone, to the last step or until one is made; nothing is scored."""
    corpus = Corpus.open(data)
    recipe.open_or_create(config, corpus=corpus, out=out, preset=PRESET)
    task = _Counter()
    try:
        train_rank(
            config,
            corpus=corpus,
            root=out,
            seat=Seat(0, "127.0.0.1", 0, "serve", 1),
            task=task,
            say=lambda _: None,
            should_stop=lambda: until is not None and task.count >= until - 1,
        )
    except InterruptedRunError:
        assert until is not None
    return out


class _Counter(NoTask):
    def __init__(self) -> None:
        self.count = 0

    def advance(self, count: int = 1) -> None:
        self.count += count


def finished_run(folder: Path, name: str = "llama", **changes: Any) -> Path:
    """A trained and scored run, made once for each name.

    Args:
        folder: where the runs of all tests lie.
        name: of the run; one that ends in ``-tokens`` reads byte pairs.
        changes: of ``CONFIG``; ``codec`` and the like are dataclasses.
    """
    out = folder / name
    if not (out / "results" / "test.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        data = token_data(folder) if name.endswith("-tokens") else prepared_data(folder)
        train_here(replace(CONFIG, **changes), data=data, out=out)
        keep_result(out, evaluate(out, threads=1))
    return out


def flags(config: SubspacesConfig) -> list[str]:
    """The command line's overrides that make ``config`` of the preset."""
    there, wanted = flatten(as_record(preset(PRESET))), flatten(as_record(config))
    words: list[str] = []
    for key, value in wanted.items():
        if there[key] == value:
            continue
        section, _, name = key.rpartition(".")
        if isinstance(value, bool):
            words.append(f"--{section}.{'' if value else 'no-'}{name}".replace("_", "-"))
        else:
            words += [f"--{key}", str(value)]
    return words


def checkpoint_files(run: Path) -> list[Path]:
    """Of the weights, oldest first."""
    return sorted((RunFolder(run).root / "checkpoints").glob("*.safetensors"))


def untrained_run(config: SubspacesConfig, *, data: Path, out: Path, scale: float = 4.0) -> Path:
    """A run whose one checkpoint holds first weights, its matrices scaled up so that logits differ between tokens."""
    corpus = Corpus.open(data)
    recipe.open_or_create(config, corpus=corpus, out=out, preset=PRESET)
    vocab_size = open_tokens(corpus, "train").vocab_size
    first = Replica(config, vocab_size=vocab_size).weights()
    weights = {name: tensor if tensor.dim() == 1 else scale * tensor for name, tensor in first.items()}
    meta = {"phase": "warm-up", "vocab_size": vocab_size, "ranks": 1}
    saving.save_weights(out, step=1, weights=weights, meta=meta)
    return out
