"""How does a run's model reach other programs?  As a stock Hugging Face ``LlamaForCausalLM`` folder (section 3.5).

The weights carry Hugging Face's names and shapes from the start and RoPE is half-split as theirs, so nothing is
permuted or renamed.  ``config.json`` says ``rope_theta``, which transformers 4 reads, and ``rope_parameters``, which
transformers 5 does.

transformers rounds RoPE's angles to FP32 before it takes their sines, ours are FP64: the logits of a trained 5M model
differ by 4e-6 within 48 positions and by 2e-4 at 2,048, where ours are 1e-5 from FP64's and nothing else differs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors_as_bytes

import thinwire
from thinwire.base.errors import UserError
from thinwire.base.files import atomic_write, read_json, sha256_file, write_json
from thinwire.data.byte_pairs import END_OF_TEXT
from thinwire.data.encode import TextTokenizer
from thinwire.data.output_folder import filled_beside, is_vacant, only_writer
from thinwire.runs.layout import RunFolder
from thinwire.subspaces.config import result_record
from thinwire.subspaces.language_model import LanguageModel, load_language_model
from thinwire.subspaces.llama import INITIAL_DEVIATION, Llama

WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"
USE = """```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(".")
"""
USE_BYTE_PAIRS = """
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
written = model.generate(**tokenizer("Once upon", return_tensors="pt"), max_new_tokens=50)
print(tokenizer.decode(written[0]))
```
"""
USE_BYTES = """
import torch

prompt = torch.tensor([list("Once upon".encode())])
written = model.generate(prompt, max_new_tokens=50)
print(bytes(written[0].tolist()).decode(errors="replace"))
```
"""


@dataclass(frozen=True)
class Exported:
    """A folder that was written.

    Attributes:
        folder: where.
        files: their names, sorted.
        num_bytes: of all files.
        num_parameters: of the model; a tied head counts once.
        model: ``folded`` where a subspace went into the weights, else ``plain``.
        phase, step, planned_steps: of the checkpoint, and where training was to end.
    """

    folder: Path
    files: tuple[str, ...]
    num_bytes: int
    num_parameters: int
    model: str
    phase: str
    step: int
    planned_steps: int


def export(run: Path, *, out: Path, step: int | None = None) -> Exported:
    """Write the model of a run's newest checkpoint, or of the one at ``step``, for ``transformers``; float32.

    Args:
        run: a run of this method.
        out: the folder to make, new or empty; it is whole or absent.

    Raises:
        UserError: the run has no checkpoint, a file is damaged or missing, ``out`` holds something, or Hugging Face's
            Llama cannot have this shape.
        OSError: the disk is full.
    """
    model = load_language_model(run, step=step)
    _check_shape(model)
    manifest = _provenance(model)
    with only_writer(out):
        if not is_vacant(out):
            fix = "choose another --out, or remove it"
            raise UserError("the output folder holds something", where=str(out), fix=fix)
        with filled_beside(out) as folder:
            _write(model, folder, manifest=manifest)
    files = sorted(out.iterdir())
    return Exported(
        folder=out,
        files=tuple(path.name for path in files),
        num_bytes=sum(path.stat().st_size for path in files),
        num_parameters=model.num_parameters,
        model=manifest["model"],
        phase=model.stock.phase,
        step=model.stock.step,
        planned_steps=model.stock.config.optimizer.steps,
    )


def _check_shape(model: LanguageModel) -> None:
    size = model.stock.config.model
    if size.width % size.heads:
        raise UserError(
            f"Hugging Face's Llama wants a width that is a multiple of the heads; this run has {size.width} and "
            f"{size.heads}",
            where=str(RunFolder(model.run).config),
            fix="use the run with thinwire, or train one with other model.width or model.heads",
        )


def _write(model: LanguageModel, folder: Path, *, manifest: dict[str, Any]) -> None:
    write_json(folder / "config.json", llama_config(model))
    write_json(folder / "generation_config.json", _generation_config(model.tokenizer))
    # As bytes, because safetensors hides the operating system's error (disk full) when it writes the file itself.
    atomic_write(folder / WEIGHTS, tensors_as_bytes(stock_tensors(model.stock.llama), metadata={"format": "pt"}))
    if model.tokenizer.name == "gpt2":
        model.tokenizer.save(folder)
        write_json(folder / "tokenizer_config.json", _tokenizer_config(model.context_tokens))
    atomic_write(folder / "README.md", _readme(model).encode())
    hashes = {path.name: sha256_file(path) for path in sorted(folder.iterdir())}
    write_json(folder / "thinwire.json", manifest | {"sha256": hashes})


def llama_config(model: LanguageModel) -> dict[str, Any]:
    """``config.json`` of a ``LlamaForCausalLM``."""
    size, end = model.stock.config.model, model.tokenizer.end_token
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.stock.llama.vocab_size,
        "hidden_size": size.width,
        "intermediate_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": model.context_tokens,
        "rms_norm_eps": size.norm_epsilon,
        "rope_theta": size.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": size.rope_base},
        "tie_word_embeddings": size.tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": INITIAL_DEVIATION,
        "use_cache": True,
        # Every text begins after the end of another: one token is both.
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float32",
        "dtype": "float32",
    }


def stock_tensors(llama: Llama) -> dict[str, torch.Tensor]:
    """Weights by Hugging Face's names; a tied head is not among them."""
    tensors = {name: parameter.detach().contiguous() for name, parameter in llama.named_parameters()}
    assert (HEAD in tensors) != llama.config.tied
    return tensors


def _generation_config(tokenizer: TextTokenizer) -> dict[str, Any]:
    return {"bos_token_id": tokenizer.end_token, "eos_token_id": tokenizer.end_token, "do_sample": False}


def _tokenizer_config(context_tokens: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "add_prefix_space": False,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
    }


def _provenance(model: LanguageModel) -> dict[str, Any]:
    """What the weights are made of; nothing about the machine or its folders, because a model is shared."""
    folder, stock = RunFolder(model.run), model.stock
    versions = read_json(folder.manifest).get("versions", {})
    return {
        "thinwire": thinwire.__version__,
        "trained_with": versions,
        "preset": folder.read_config().get("preset"),
        "config": result_record(stock.config),
        "data_fingerprint": folder.read_data_record()["fingerprint"],
        "tokenizer": {"name": model.tokenizer.name, "sha256": model.tokenizer.sha256},
        "model": "folded" if model.is_folded else "plain",
        "phase": stock.phase,
        "step": stock.step,
        "num_parameters": model.num_parameters,
    }


def _readme(model: LanguageModel) -> str:
    size, stock = model.stock.config.model, model.stock
    is_bytes = model.tokenizer.name == "byte"
    tokens = "Tokens are GPT-2's byte pairs."
    if is_bytes:
        tokens = "Tokens are bytes: token i is the byte i, and 0 ends a document. There is no tokenizer class."
    folded = " Keys' and values' projections are folded: they hold the subspace that training sent." * model.is_folded
    return (
        f"# A Llama of {model.num_parameters:,} parameters\n\n"
        f"{size.layers} layers, width {size.width}, trained by thinwire for {stock.step:,} of "
        f"{stock.config.optimizer.steps:,} updates on sequences of {model.context_tokens:,} tokens.{folded}\n"
        f"{tokens} `thinwire.json` names the settings and the hash of every file.\n\n"
        f"{USE}{USE_BYTES if is_bytes else USE_BYTE_PAIRS}"
    )
